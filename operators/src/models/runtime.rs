//! Shared by all ONNX models: the runtime library, sessions, devices and tokenizers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use turnflow_engine::component::config;

use ort::ep;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use tokenizers::Tokenizer;
use turnflow_engine::inference::{InferenceError, Tokenize};

/// The device that a model runs on.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// The NVIDIA GPU with this index.
    Cuda(i32),
}

/// Minimum difference between the padded lengths of batches on a GPU, in tokens.
const STEP: usize = 16;

impl Device {
    /// The length to pad a batch to, if its longest text has `tokens` tokens. Texts are cut to `most` tokens, and a
    /// model may have no positions beyond that.
    ///
    /// On a GPU each new shape takes memory that the arena does not release, and time to select kernels. Lengths are
    /// therefore rounded up: to a multiple of 16 tokens up to 128, then to an eighth of the next power of two, which
    /// leaves 16 lengths up to 512 and adds less than a quarter to longer texts. On the CPU a new shape costs nothing,
    /// but padding does.
    pub(crate) fn padded(self, tokens: usize, most: usize) -> usize {
        match self {
            Device::Cpu => tokens,
            Device::Cuda(_) => {
                let step = (tokens.next_power_of_two() / 8).max(STEP);
                tokens.next_multiple_of(step).min(most.max(tokens))
            }
        }
    }
}

/// Settings of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// The service's settings: the session shares the cores with others.
    Service,
    /// ONNX Runtime's defaults, except for the number of threads.
    Defaults,
}

/// Reads a file of a model.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, InferenceError> {
    std::fs::read(path).map_err(|error| InferenceError::File { path: path.to_owned(), reason: error.to_string() })
}

/// Hashes a model file, and the file beside it that holds the weights of larger models.
pub(crate) fn hash_file(hasher: &mut blake3::Hasher, path: &Path) -> Result<(), InferenceError> {
    let mut file = |path: &Path| {
        let error = |error: std::io::Error| InferenceError::File { path: path.to_owned(), reason: error.to_string() };
        hasher.update_reader(std::fs::File::open(path).map_err(error)?).map(|_| ()).map_err(error)
    };
    file(path)?;
    for ending in ["_data", ".data"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(ending);
        let beside = PathBuf::from(beside);
        if beside.exists() {
            file(&beside)?;
        }
    }
    Ok(())
}

/// The ONNX Runtime environment of the process, loaded once.
pub(crate) fn environment(model: &Path) -> Result<ort::environment::Environment, InferenceError> {
    static ENVIRONMENT: OnceLock<Result<ort::environment::Environment, InferenceError>> = OnceLock::new();
    ENVIRONMENT
        .get_or_init(|| {
            let library = runtime_library(model)?;
            ort::init_from(&library)
                .map_err(|error| InferenceError::Runtime(format!("cannot load `{}`: {error}", library.display())))?
                .with_name("turnflow")
                .build()
                .map_err(|error| InferenceError::Runtime(error.to_string()))
        })
        .clone()
}

/// Directories of the runtime library. The build for NVIDIA GPUs also runs models on the CPU, so it comes first.
const DIRECTORIES: [&str; 2] = ["onnxruntime-cuda", "onnxruntime"];

/// Path of the runtime library: `$ORT_DYLIB_PATH`, or else the library in `onnxruntime-cuda/` or `onnxruntime/` in a
/// directory above the model or in `models`, or the one that is installed with the program, in `../lib/turnflow`.
fn runtime_library(model: &Path) -> Result<PathBuf, InferenceError> {
    if let Some(given) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(given);
        return if path.exists() {
            Ok(path)
        } else {
            Err(InferenceError::Runtime(format!(
                "$ORT_DYLIB_PATH names `{}`, which does not exist; correct it, or unset it to use \
                 the library that `turnflow models fetch` installs",
                path.display()
            )))
        };
    }
    let absolute = std::path::absolute(model).unwrap_or_else(|_| model.to_owned());
    let near = absolute.ancestors().skip(1).take(4).map(Path::to_owned).chain([PathBuf::from("models")]);
    let near = near.flat_map(|directory| DIRECTORIES.map(|name| directory.join(name)));
    let name = format!("libonnxruntime{}", std::env::consts::DLL_SUFFIX);
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    let installed = program.as_deref().and_then(|path| Some(path.parent()?.parent()?.join("lib/turnflow")));
    let candidates: Vec<PathBuf> = near.chain(installed).map(|directory| directory.join(&name)).collect();
    candidates.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        InferenceError::Runtime(format!(
            "`{}` does not exist; run `turnflow models fetch`, or set $ORT_DYLIB_PATH",
            candidates.get(3).map_or("models/onnxruntime".into(), |path| path.display().to_string())
        ))
    })
}

/// Opens a session for a model file. `threads` defaults to the number of cores.
pub(crate) fn session(
    path: &Path,
    device: Device,
    threads: Option<usize>,
    settings: Settings,
) -> Result<Session, InferenceError> {
    let failed = |error: &dyn std::fmt::Display| InferenceError::Failed(error.to_string());
    let environment = environment(path)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut builder = Session::builder(&environment)
        .map_err(|error| failed(&error))?
        .with_optimization_level(GraphOptimizationLevel::All)
        .map_err(|error| failed(&error))?
        .with_intra_threads(threads.unwrap_or(cores))
        .map_err(|error| failed(&error))?;
    // The CPU arena stays on: it grows to the size of the largest batch and no further, and batches are slower without
    // it (`turnflow bench --memory`).
    if settings == Settings::Service {
        builder = builder
            // ONNX Runtime keeps a memory pattern for each shape, and there are many shapes.
            .with_memory_pattern(false)
            .map_err(|error| failed(&error))?
            // Threads that spin between batches would take cores from the workers.
            .with_config_entry("session.intra_op.allow_spinning", "0")
            .map_err(|error| failed(&error))?;
    }
    if let Device::Cuda(device) = device {
        let provider = ep::CUDA::default()
            .with_device_id(device)
            // An arena never shrinks, and each session has its own. If arenas doubled, they would soon hold more GPU
            // memory than the models ever use together.
            .with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
            // TF32 keeps 10 bits of each factor. Vectors would differ from the CPU's in the third digit.
            .with_tf32(settings == Settings::Defaults);
        builder = builder.with_execution_providers([provider.build().error_on_failure()]).map_err(|error| {
            InferenceError::Device { device: format!("Cuda({device})"), reason: needs_cuda(&error.to_string()) }
        })?;
    }
    builder.commit_from_file(path).map_err(|error| match (device, cuda_failure(&error.to_string())) {
        (Device::Cuda(number), Some(said)) => {
            InferenceError::Device { device: format!("Cuda({number})"), reason: said.to_owned() }
        }
        _ => failed(&error),
    })
}

/// What CUDA says in a message of ONNX Runtime, without the place in its source.
fn cuda_failure(said: &str) -> Option<&str> {
    let said = &said[said.find("CUDA failure")?..];
    Some(said.split(" ;").next().unwrap_or(said).trim())
}

/// ONNX Runtime's message without its final punctuation, followed by the requirements of CUDA.
fn needs_cuda(said: &str) -> String {
    let said = said.trim().trim_end_matches(['.', ':', ';']);
    format!(
        "{said}; it needs an NVIDIA driver, CUDA 13, cuDNN 9, and the GPU build of ONNX Runtime, which \
         `turnflow models fetch onnxruntime-cuda` brings"
    )
}

/// Fails unless a model has these inputs.
pub(crate) fn require_inputs(session: &Session, wanted: &[&str]) -> Result<(), InferenceError> {
    let inputs: Vec<&str> = session.inputs().iter().map(|input| input.name()).collect();
    match wanted.iter().find(|wanted| !inputs.contains(wanted)) {
        Some(missing) => Err(InferenceError::Shape(format!("has no input `{missing}`; it has: {}", inputs.join(", ")))),
        None => Ok(()),
    }
}

/// A tokenizer as its file defines it, but without padding and truncation.
pub(crate) struct Tokens {
    /// Content of the file.
    pub bytes: Vec<u8>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The padding token, if the file names one.
    pub pad: Option<i64>,
}

impl Tokens {
    /// Reads a `tokenizer.json`.
    pub fn read(path: &Path) -> Result<Self, InferenceError> {
        let bytes = read(path)?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes)
            .map_err(|error| InferenceError::Tokenizer(format!("`{}`: {error}", path.display())))?;
        let pad = tokenizer.get_padding().map(|padding| i64::from(padding.pad_id));
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| InferenceError::Tokenizer(error.to_string()))?;
        Ok(Self { bytes, tokenizer, pad })
    }
}

/// A tokenizer without truncation, for chunkers.
pub(crate) struct Offsets(pub Tokenizer);

impl Tokenize for Offsets {
    fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
        let encoding = self.0.encode(text, false).map_err(|error| InferenceError::Tokenizer(error.to_string()))?;
        Ok(encoding.get_offsets().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_on_a_gpu_are_few_and_on_the_processor_exact() {
        assert!((0..600).all(|tokens| Device::Cpu.padded(tokens, 512) == tokens));
        let padded = |tokens| Device::Cuda(0).padded(tokens, 512);
        let some = [1, 16, 17, 128, 129, 256, 257, 500, 512].map(padded);
        assert_eq!(some, [16, 16, 32, 128, 160, 256, 320, 512, 512]);
        let mut lengths: Vec<usize> = (1..=512).map(padded).collect();
        assert!(lengths.iter().zip(1..).all(|(padded, tokens)| *padded >= tokens));
        assert!(lengths.is_sorted());
        lengths.dedup();
        assert_eq!(lengths.len(), 16);
        // Not beyond the model's maximum.
        assert_eq!(Device::Cuda(0).padded(490, 500), 500);
        assert_eq!(Device::Cuda(0).padded(3, 8), 8);
    }

    #[test]
    fn cuda_is_quoted_without_the_source() {
        let said =
            "cuda_call.cc:154 CudaCall CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; line=91";
        assert_eq!(cuda_failure(said), Some("CUDA failure 700: an illegal memory access was encountered"));
        assert_eq!(cuda_failure("no such file"), None);
    }

    #[test]
    fn one_mark_ends_what_the_runtime_says() {
        let told = needs_cuda("CUDA execution provider is not enabled in this build.\n");
        assert!(told.starts_with("CUDA execution provider is not enabled in this build; it needs"), "{told}");
    }
}
