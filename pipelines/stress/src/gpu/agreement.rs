//! The device's vectors and scores beside the CPU's.

use std::time::Instant;

use turnflow_operators::models::onnx::direct::{Direct, Settings};
use turnflow_operators::models::onnx::{Device, OnnxConfig};

use super::claim;
use super::setting::{Apart, LARGE, Setting, shown};

/// Greatest difference of a value of two vectors of length 1.
const DIFFERENCE: f32 = 1e-4;
/// Smallest cosine of vectors in 16 and in 32 bits.
const COSINE: f64 = 0.9999;
/// Greatest difference of a score of a pair.
const SCORE: f32 = 1e-2;
/// Passages to compare.
const TEXTS: usize = 512;
/// Pairs to compare.
const PAIRS: usize = 128;

pub(super) fn run(setting: &Setting) -> anyhow::Result<()> {
    let texts = &setting.texts[..setting.texts.len().min(TEXTS)];
    let begun = Instant::now();
    let encoder = setting.open(setting.device, LARGE)?;
    println!("- `{}` on {:?}: loaded in {:.1} s", shown(&setting.encoder), setting.device, since(begun));
    let begun = Instant::now();
    let on_device = setting.embed(&encoder, texts)?;
    println!("- first {} passages: {:.2} s", texts.len(), since(begun));
    let on_cpu = setting.embed(&setting.open(Device::Cpu, LARGE)?, texts)?;
    let apart = Apart::of(&on_device, &on_cpu);
    let said = |apart: &Apart| {
        format!("greatest difference {:.1e}, smallest cosine {:.7}, {} equal", apart.most, apart.cosine, apart.equal)
    };
    println!("- vectors here and on the CPU: {}", said(&apart));

    let again = setting.embed(&encoder, texts)?;
    println!("- vectors here twice, in the same batches: {}", said(&Apart::of(&on_device, &again)));
    let alone = texts[..64].iter().map(|text| setting.embed(&encoder, std::slice::from_ref(text)));
    let alone = alone.collect::<anyhow::Result<Vec<_>>>()?.concat();
    println!("- 64 vectors here, alone and in batches: {}", said(&Apart::of(&alone, &on_device)));

    let config = setting.encoder(&setting.encoder, setting.device, LARGE)?;
    for (name, settings) in [("with turnflow's settings", Settings::Service), ("with TF32", Settings::Defaults)] {
        let vectors = direct(&config, settings, texts)?;
        println!("- vectors of direct calls {name} and the CPU's: {}", said(&Apart::of(&vectors, &on_cpu)));
    }
    let mut half_holds = true;
    if let Some(directory) = &setting.half {
        let vectors = setting.embed(&setting.open_at(directory, setting.device, LARGE)?, texts)?;
        let apart = Apart::of(&vectors, &on_cpu);
        println!("- vectors of the encoder in 16 bits here and of that in 32 bits on the CPU: {}", said(&apart));
        half_holds = apart.cosine >= COSINE;
    }
    let mut scores_hold = true;
    if let Some(pairs) = setting.open_pairs(setting.device, LARGE)? {
        let some = &texts[..texts.len().min(PAIRS)];
        let here = setting.score(&pairs, some)?;
        let there = match setting.open_pairs(Device::Cpu, LARGE)? {
            Some(pairs) => setting.score(&pairs, some)?,
            None => Vec::new(),
        };
        let most = here.iter().zip(&there).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let range = there.iter().fold((f32::MAX, f32::MIN), |range, score| (range.0.min(*score), range.1.max(*score)));
        println!(
            "- scores of {} pairs, from {:.2} to {:.2}: greatest difference {most:.1e}",
            here.len(),
            range.0,
            range.1
        );
        scores_hold = here.len() == there.len() && most <= SCORE;
    }
    claim(&format!("vectors differ from the CPU's by at most {DIFFERENCE:.0e}"), apart.most <= DIFFERENCE)?;
    claim(&format!("vectors in 16 bits have a cosine of at least {COSINE} to those in 32 bits"), half_holds)?;
    claim(&format!("scores differ from the CPU's by at most {SCORE:.0e}"), scores_hold)
}

fn direct(
    config: &OnnxConfig,
    settings: Settings,
    texts: &[String],
) -> anyhow::Result<Vec<turnflow_engine::inference::Vector>> {
    let mut direct = Direct::open(config, settings)?;
    let mut vectors = Vec::new();
    for part in texts.chunks(64) {
        let tokens = part.iter().map(|text| direct.tokenize(text, turnflow_engine::inference::Role::Passage));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        vectors.extend(direct.run(&tokens.iter().collect::<Vec<_>>())?);
    }
    Ok(vectors)
}

fn since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64()
}
