//! Errors of listing and fetching models, with remedies.

use std::io;
use std::path::PathBuf;

/// Why models could not be listed or fetched.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The manifest cannot be parsed.
    #[error("models.ron: {source}")]
    Manifest {
        /// The parser's error, with its place.
        source: ron::error::SpannedError,
    },
    /// A model is listed before the model that it is made from, or that model does not exist.
    #[error("models.ron: `{name}` is made from `{needs}`, which is not listed before it")]
    Order {
        /// The model.
        name: String,
        /// The model that it is made from.
        needs: String,
    },
    /// A model names a conversion script that does not exist.
    #[error("models.ron: `{name}` names the script `{script}`, which is not in convert/")]
    Script {
        /// The model.
        name: String,
        /// The script.
        script: String,
    },
    /// The manifest does not have the requested model.
    #[error("unknown model `{name}`; available: {}", known.join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The requested model is not packaged for this kind of machine.
    #[error(
        "`{name}` is not packaged for {} {}: install it yourself; for ONNX Runtime, set ORT_DYLIB_PATH to its library",
        std::env::consts::ARCH,
        std::env::consts::OS
    )]
    Host {
        /// The model.
        name: String,
    },
    /// Python cannot be started.
    #[error("models are fetched by python3, which cannot be started: apt-get install python3 python3-pip python3-venv")]
    Python {
        /// The operating system's error.
        source: io::Error,
    },
    /// Python lacks a module, which Debian packages separately.
    #[error("python3 has no {module}: apt-get install python3-pip python3-venv")]
    Module {
        /// The module: `pip` or `venv`.
        module: &'static str,
    },
    /// The package registry cannot be reached.
    #[error("no network: the package registry cannot be reached for {package}\n{detail}")]
    Network {
        /// The package, as `name==version`.
        package: String,
        /// The last lines of pip's output.
        detail: String,
    },
    /// pip fails for another reason.
    #[error("pip cannot fetch {package}\n{detail}")]
    Pip {
        /// The package, as `name==version`.
        package: String,
        /// The last lines of pip's output.
        detail: String,
    },
    /// A wheel does not have the files that the manifest expects.
    #[error("cannot unpack {}\n{detail}", wheel.display())]
    Unpack {
        /// The wheel.
        wheel: PathBuf,
        /// The last lines of Python's output.
        detail: String,
    },
    /// A conversion script failed, or its environment could not be created.
    #[error("`{name}`: {step} failed\n{detail}")]
    Convert {
        /// The model.
        name: String,
        /// The failed step.
        step: String,
        /// The last lines of its output.
        detail: String,
    },
    /// A file cannot be fetched from a model hub.
    #[error("{file} of {repo} cannot be fetched from the model hub: {reason}")]
    Hub {
        /// Owner and name of the repository.
        repo: String,
        /// The file.
        file: String,
        /// The error of the hub or the network.
        reason: String,
    },
    /// A file does not have the checksum in the manifest.
    #[error("{file} has SHA-256 {found}, not {expected}")]
    Checksum {
        /// The file.
        file: String,
        /// The manifest's checksum.
        expected: String,
        /// The file's checksum.
        found: String,
    },
    /// A file or directory cannot be read or written.
    #[error("{}: cannot read or write it", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}
