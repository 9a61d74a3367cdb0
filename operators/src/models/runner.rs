//! A session that outlives its GPU: if the device fails, the model runs on the CPU from then on.

use std::path::{Path, PathBuf};

use ort::session::{Session, SessionInputValue};
use ort::value::Tensor;
use turnflow_engine::inference::InferenceError;

use super::runtime::{Device, Settings, require_inputs, session};

/// The session of a text encoder.
pub(crate) struct Runner {
    session: Session,
    path: PathBuf,
    device: Device,
    threads: Option<usize>,
}

impl Runner {
    /// Opens a session of a model with BERT's inputs. `threads` defaults to the number of cores.
    pub fn open(
        path: &Path,
        device: Device,
        threads: Option<usize>,
        settings: Settings,
    ) -> Result<Self, InferenceError> {
        let session = session(path, device, threads, settings)?;
        require_inputs(&session, &["input_ids", "attention_mask"])?;
        Ok(Self { session, path: path.to_owned(), device, threads })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Calls the session. If the GPU has failed, opens the model on the CPU and calls that.
    ///
    /// # Errors
    ///
    /// [`InferenceError::Memory`] if the device has too little memory, [`InferenceError::Failed`] for anything else.
    pub fn run<T>(&mut self, mut run: impl FnMut(&mut Session) -> ort::Result<T>) -> Result<T, InferenceError> {
        let error = match run(&mut self.session) {
            Ok(outputs) => return Ok(outputs),
            Err(error) => error.to_string(),
        };
        if is_of_memory(&error) {
            return Err(InferenceError::Memory(error));
        }
        if !self.has_lost_its_device() {
            return Err(InferenceError::Failed(error));
        }
        tracing::error!(model = %self.path.display(), device = ?self.device, %error,
            "the GPU has failed: the model runs on the CPU until turnflow is started again");
        let session = session(&self.path, Device::Cpu, self.threads, Settings::Service)?;
        // A session cannot free the memory of a device that has failed; ONNX Runtime would end the process.
        std::mem::forget(std::mem::replace(&mut self.session, session));
        self.device = Device::Cpu;
        run(&mut self.session).map_err(|error| InferenceError::Failed(error.to_string()))
    }

    /// Whether the session is on a GPU and fails on two tokens, too, with memory to spare.
    fn has_lost_its_device(&mut self) -> bool {
        self.device != Device::Cpu && tiny(&mut self.session).is_err_and(|error| !is_of_memory(&error.to_string()))
    }
}

/// Runs two tokens.
fn tiny(session: &mut Session) -> ort::Result<()> {
    let names: Vec<String> = session.inputs().iter().map(|input| input.name().to_owned()).collect();
    let mut inputs: Vec<(String, SessionInputValue<'_>)> = Vec::new();
    for name in names {
        let value = i64::from(name != "token_type_ids");
        inputs.push((name, Tensor::from_array(([1, 2], vec![value; 2]))?.into()));
    }
    session.run(inputs).map(drop)
}

/// The error of a session.
pub(crate) fn failed(error: ort::Error) -> InferenceError {
    let error = error.to_string();
    if is_of_memory(&error) { InferenceError::Memory(error) } else { InferenceError::Failed(error) }
}

/// Whether ONNX Runtime or CUDA says that memory is short.
fn is_of_memory(error: &str) -> bool {
    const SAYINGS: [&str; 4] = ["out of memory", "failed to allocate memory", "alloc_failed", "bad_alloc"];
    let error = error.to_lowercase();
    SAYINGS.iter().any(|saying| error.contains(saying))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_other_faults() {
        let of_arena = "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 51539607552";
        assert!(is_of_memory(of_arena));
        assert!(is_of_memory("CUDA failure 2: out of memory ; GPU=0 ; hostname=host"));
        assert!(is_of_memory("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED"));
        assert!(!is_of_memory("CUDA failure 700: an illegal memory access was encountered"));
    }
}
