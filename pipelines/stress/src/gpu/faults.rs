//! A GPU whose memory is full, and a GPU that fails.

use std::time::Instant;

use turnflow_operators::models::onnx::Device;

use super::claim;
use super::device::Driver;
use super::setting::{Apart, LARGE, Setting, Sizes};

/// Memory that is left free, in bytes.
const FREE: usize = 700 << 20;
/// Batches that need several times as much.
const HUGE: Sizes = Sizes { batch: 4096, tokens: 4096 * 256 };
/// Greatest difference of a value of a vector.
const DIFFERENCE: f32 = 1e-3;

/// Other programs take the memory; large batches must be divided and answered.
pub(super) fn full(setting: &Setting) -> anyhow::Result<()> {
    if setting.device == Device::Cpu {
        println!("Not run: it needs a GPU.");
        return Ok(());
    }
    // The longest texts, so that the batches are as large as they can be.
    let mut texts = setting.texts.clone();
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    texts.truncate(2048);
    let expected = setting.embed(&setting.open(setting.device, LARGE)?, &texts)?;
    let encoder = setting.open(setting.device, HUGE)?;
    let driver = Driver::open(setting.gpu)?;
    let taken = driver.fill(FREE)?;
    println!("- {} MiB of the GPU are free; one batch may have {} tokens", driver.free()? >> 20, HUGE.tokens);
    let before = encoder.model.usage();
    let begun = Instant::now();
    let vectors = setting.embed(&encoder, &texts);
    let seconds = begun.elapsed().as_secs_f64();
    let used = encoder.model.usage();
    let calls = used.batches - before.batches;
    let vectors = match vectors {
        Ok(vectors) => vectors,
        Err(error) => {
            driver.release(&taken)?;
            claim(&format!("all passages get their vectors; {calls} calls, then: {error}"), false)?;
            return Ok(());
        }
    };
    println!("- {} passages in {seconds:.2} s and {calls} calls of the model", texts.len());
    let begun = Instant::now();
    setting.embed(&encoder, &texts)?;
    let again = encoder.model.usage().batches - used.batches;
    println!("- the same again: {:.2} s and {again} calls", begun.elapsed().as_secs_f64());
    driver.release(&taken)?;
    let apart = Apart::of(&vectors, &expected);
    claim(
        &format!("every passage has its vector though memory is full (greatest difference {:.1e})", apart.most),
        vectors.len() == texts.len() && apart.most <= DIFFERENCE,
    )?;
    let after = setting.embed(&encoder, &texts)?;
    claim("and when there is memory again", Apart::of(&after, &expected).most <= DIFFERENCE)
}

/// The context fails as it does after a fault of the hardware; the models must go on, on the CPU.
pub(super) fn lost(setting: &Setting) -> anyhow::Result<()> {
    if setting.device == Device::Cpu {
        println!("Not run: it needs a GPU.");
        return Ok(());
    }
    let texts = &setting.texts[..setting.texts.len().min(256)];
    let encoder = setting.open(setting.device, LARGE)?;
    let pairs = setting.open_pairs(setting.device, LARGE)?;
    let expected = setting.embed(&encoder, texts)?;
    let scores = pairs.as_ref().map(|pairs| setting.score(pairs, &texts[..32])).transpose()?;
    println!("- the GPU was made to fail: CUDA error {}", Driver::open(setting.gpu)?.fail()?);
    let begun = Instant::now();
    let vectors = setting.embed(&encoder, texts)?;
    println!("- {} passages after that: {:.2} s", texts.len(), begun.elapsed().as_secs_f64());
    let apart = Apart::of(&vectors, &expected);
    claim(
        &format!("the encoder goes on, on the CPU (greatest difference {:.1e})", apart.most),
        vectors.len() == texts.len() && apart.most <= DIFFERENCE,
    )?;
    if let (Some(pairs), Some(scores)) = (&pairs, scores) {
        let after = setting.score(pairs, &texts[..32])?;
        let most = after.iter().zip(&scores).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        claim(
            &format!("and the cross-encoder (greatest difference {most:.1e})"),
            after.len() == scores.len() && most <= 0.1,
        )?;
    }
    let error = setting.open(setting.device, LARGE).err().map(|error| error.to_string());
    println!("- a model that is loaded now: {}", error.as_deref().unwrap_or("works"));
    drop((encoder, pairs));
    claim("the models can be unloaded", true)
}
