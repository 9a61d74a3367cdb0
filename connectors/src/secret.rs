//! Secrets of connectors: passwords, keys and tokens. The pipeline file says where one is and never contains it.

use turnflow_engine::component::{ComponentError, config};
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::spec::FilePath;

/// Where a secret is. The pipeline file never contains it.
#[config]
#[derive(PartialEq, Eq)]
pub enum Secret {
    /// In an environment variable.
    Env(#[field(hidden)] String),
    /// In a file; white space around it is ignored. The file is read again for each new connection, so a secret that
    /// expires can be replaced there.
    File(#[field(hidden)] FilePath),
}

impl Secret {
    /// Reads the secret.
    ///
    /// # Errors
    ///
    /// The variable is not set, or the file cannot be read, or it is empty.
    pub fn read(&self) -> Result<String, ConnectorError> {
        let wrong = |problem: String| ConnectorError::from(ComponentError::new(problem));
        // A file may be missing or empty for a moment, while it is being replaced.
        let passing = |problem: String| ConnectorError::from(ComponentError::transient(problem));
        let (value, of) = match self {
            Self::Env(name) => {
                let value = std::env::var(name);
                (value.map_err(|_| wrong(format!("the environment variable `{name}` is not set")))?, name)
            }
            Self::File(file) => {
                let value = std::fs::read_to_string(&file.path);
                let unread = |error| passing(format!("cannot read the secret in `{}`: {error}", file.written));
                (value.map_err(unread)?, &file.written)
            }
        };
        match value.trim() {
            "" => Err(passing(format!("the secret in `{of}` is empty"))),
            value => Ok(value.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_again_and_says_what_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let secret = Secret::File(FilePath::from(&*path));
        assert!(secret.read().unwrap_err().to_string().contains("cannot read the secret"));
        for value in ["one", "two\n"] {
            std::fs::write(&path, value).unwrap();
            assert_eq!(secret.read().unwrap(), value.trim());
        }
        std::fs::write(&path, " \n").unwrap();
        assert!(secret.read().unwrap_err().to_string().contains("is empty"));
        let missing = Secret::Env("TURNFLOW_NO_SUCH_SECRET".to_owned());
        assert_eq!(
            missing.read().unwrap_err().to_string(),
            "the environment variable `TURNFLOW_NO_SUCH_SECRET` is not set"
        );
        assert_eq!(turnflow_engine::spec::from_str::<Secret>("Env(\"A\")").unwrap(), Secret::Env("A".to_owned()));
    }
}
