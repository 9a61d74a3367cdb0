//! Passages, questions and pairs per second.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;
use turnflow_engine::inference::Role;
use turnflow_operators::models::onnx::Device;
use turnflow_operators::models::onnx::direct::{Direct, Settings};

use super::device::per_cent;
use super::setting::{LARGE, Setting, Sizes};

/// Lengths of texts in tokens.
const LENGTHS: [usize; 4] = [16, 64, 128, 256];
/// Texts in a batch.
const BATCHES: [usize; 6] = [1, 8, 32, 128, 256, 1024];
/// Limits of batches to compare in the service.
const SIZES: [Sizes; 6] = [
    Sizes { batch: 64, tokens: 2048 },
    Sizes { batch: 64, tokens: 16_384 },
    Sizes { batch: 256, tokens: 16_384 },
    Sizes { batch: 256, tokens: 65_536 },
    Sizes { batch: 1024, tokens: 65_536 },
    Sizes { batch: 1024, tokens: 262_144 },
];
/// Questions that are asked at once.
const QUESTIONS: usize = 500;

/// A batch of texts of one length: pieces of the passages' tokens.
fn batch(tokens: &[u32], texts: usize, length: usize) -> Vec<Vec<u32>> {
    let one = |text: usize| tokens.iter().cycle().skip(text * 31 % tokens.len()).take(length).copied().collect();
    (0..texts).map(one).collect()
}

/// Direct calls of sessions with turnflow's settings and with ONNX Runtime's own.
pub(super) fn shapes(setting: &Setting) -> anyhow::Result<()> {
    println!("Passages per second (utilization of the GPU), and milliseconds of a call.\n");
    println!("| numbers | tokens | {} |", BATCHES.map(|size| format!("batch {size}")).join(" | "));
    println!("|---|---|{}", "---|".repeat(BATCHES.len()));
    let config = |directory: &Path| setting.encoder(directory, setting.device, LARGE);
    let mut arms = vec![("32 bits", config(&setting.encoder)?, Settings::Service)];
    arms.push(("TF32", config(&setting.encoder)?, Settings::Defaults));
    if let Some(directory) = &setting.half {
        arms.push(("16 bits", config(directory)?, Settings::Service));
    }
    for (name, config, settings) in arms {
        let mut direct = Direct::open(&config, settings)?;
        let mut tokens = Vec::new();
        for text in setting.texts.iter().take(256) {
            tokens.extend(direct.tokenize(text, Role::Passage)?);
        }
        for length in LENGTHS {
            let mut row = format!("| {name} | {length} |");
            for size in BATCHES {
                let batch = batch(&tokens, size, length);
                let batch: Vec<&Vec<u32>> = batch.iter().collect();
                let mut begun = Instant::now();
                let mut first = true;
                let seconds = setting.time(|| {
                    direct.run(&batch)?;
                    if std::mem::take(&mut first) {
                        begun = Instant::now();
                    }
                    Ok(())
                })?;
                let busy = per_cent(setting.watch.busy_since(begun));
                let _ = write!(row, " {:.0} ({busy}), {:.2} |", size as f64 / seconds, 1000.0 * seconds);
            }
            println!("{row}");
        }
    }
    Ok(())
}

/// The inference service with limits of batches of different sizes.
pub(super) fn service(setting: &Setting) -> anyhow::Result<()> {
    let texts = &setting.texts;
    let questions = &texts[..texts.len().min(QUESTIONS)];
    println!(
        "{} passages as the corpus sends them, and {} texts each in a call of its own, all at once.\n",
        texts.len(),
        questions.len()
    );
    println!(
        "| numbers | `batch`, `batch_tokens` | passages/s | utilization | padding | passages a batch | questions/s | a question alone, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let encoders = setting.encoders().flat_map(|encoder| SIZES.map(|sizes| (encoder, sizes)));
    for ((name, directory), sizes) in encoders {
        let encoder = setting.open_at(directory, setting.device, sizes)?;
        setting.embed(&encoder, &texts[..texts.len().min(2048)])?;
        let before = encoder.model.usage();
        let begun = Instant::now();
        let seconds = setting.time(|| setting.embed(&encoder, texts).map(drop))?;
        let busy = per_cent(setting.watch.busy_since(begun));
        let used = encoder.model.usage();
        let padding = 1.0 - (used.tokens - before.tokens) as f64 / ((used.padded - before.padded) as f64).max(1.0);
        let a_batch = (used.inputs - before.inputs) as f64 / ((used.batches - before.batches) as f64).max(1.0);
        let asked = setting.time(|| setting.ask(&encoder, questions).map(drop))?;
        let alone = setting.time(|| setting.ask(&encoder, &questions[..1]).map(drop))?;
        println!(
            "| {name} | {}, {} | {:.0} | {busy} | {:.1} % | {a_batch:.0} | {:.0} | {:.2} |",
            sizes.batch,
            sizes.tokens,
            texts.len() as f64 / seconds,
            100.0 * padding,
            questions.len() as f64 / asked,
            1000.0 * alone,
        );
    }
    if setting.reranker.is_some() {
        println!("\nPairs of a passage with others, one call of 100 and of 1,000 pairs.\n");
        println!("| `batch`, `batch_tokens` | pairs/s, 100 | pairs/s, 1,000 | utilization |");
        println!("|---|---|---|---|");
        for sizes in [Sizes { batch: 32, tokens: 4096 }, Sizes { batch: 128, tokens: 32_768 }, SIZES[3], SIZES[5]] {
            let Some(pairs) = setting.open_pairs(setting.device, sizes)? else { continue };
            let mut rates = Vec::new();
            let mut busy = None;
            for count in [100, 1000] {
                let texts = &texts[..texts.len().min(count)];
                let begun = Instant::now();
                let seconds = setting.time(|| setting.score(&pairs, texts).map(drop))?;
                busy = setting.watch.busy_since(begun);
                rates.push(format!("{:.0}", texts.len() as f64 / seconds));
            }
            println!("| {}, {} | {} | {} |", sizes.batch, sizes.tokens, rates.join(" | "), per_cent(busy));
        }
    }
    Ok(())
}

/// The same model in PyTorch, with the same shapes.
pub(super) fn torch(setting: &Setting, python: Option<&Path>) -> anyhow::Result<()> {
    let Some(python) = python else {
        println!("Not run: it needs `--python`.");
        return Ok(());
    };
    let direct = Direct::open(&setting.encoder(&setting.encoder, Device::Cpu, LARGE)?, Settings::Service)?;
    let some = &setting.texts[..64];
    let tokens = some.iter().map(|text| direct.tokenize(text, Role::Passage)).collect::<Result<Vec<_>, _>>()?;
    let vectors = setting.embed(&setting.open(Device::Cpu, LARGE)?, some)?;
    let vectors: Vec<Vec<f32>> = vectors.iter().map(|vector| vector.to_vec()).collect();
    let given = serde_json::json!({
        "tokens": tokens, "vectors": vectors, "lengths": LENGTHS, "batches": BATCHES, "seconds": setting.seconds,
        "device": if setting.device == Device::Cpu { "cpu".to_owned() } else { format!("cuda:{}", setting.gpu) },
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), given.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/compare/torch_encoder.py");
    let script = if script.exists() { script } else { "examples/compare/torch_encoder.py".into() };
    let status = Command::new(python).arg(&script).arg(setting.encoder.join("model.onnx")).arg(file.path()).status();
    let status = status.with_context(|| format!("cannot run `{}`", python.display()))?;
    anyhow::ensure!(status.success(), "`{}` ended with {status}", script.display());
    Ok(())
}
