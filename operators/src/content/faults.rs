//! Classifies Lance's errors: damaged data, or a failure of the system.

use std::error::Error;

use turnflow_engine::component::IndexError;
use turnflow_engine::panics::{Panicked, caught_async};

use crate::bm25::is_no_file;

/// Why a call of Lance failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// Lance returned an error.
    Lance {
        /// The action that failed.
        action: &'static str,
        /// Lance's error.
        error: turnflow_tables::Error,
    },
    /// Lance panicked, as it may on damaged data.
    Panicked {
        /// The action that failed.
        action: &'static str,
        /// The panic.
        panic: Panicked,
    },
    /// The data is not encodings of this model.
    Unfit(String),
}

impl Fault {
    /// Whether the stored data is missing, damaged or of another schema. Any other error is temporary (too many open
    /// files, the disk does not respond) and must not discard the stored data.
    pub fn is_lost(&self) -> bool {
        match self {
            Fault::Unfit(_) | Fault::Panicked { .. } => true,
            Fault::Lance { error, .. } => tells_of_contents(error) && !is_of_the_system(error),
        }
    }
}

impl From<Fault> for IndexError {
    fn from(fault: Fault) -> Self {
        let (action, reason) = match fault {
            Fault::Lance { action, error } => (action, error.to_string()),
            Fault::Panicked { action, panic } => (action, format!("it {panic}")),
            Fault::Unfit(reason) => ("read the stored data", reason),
        };
        IndexError::Store { store: "Lance", action, reason }
    }
}

/// Calls Lance.
pub(super) async fn call<T, F>(action: &'static str, call: impl FnOnce() -> F) -> Result<T, Fault>
where
    F: Future<Output = turnflow_tables::Result<T>>,
{
    match caught_async(call).await {
        Ok(done) => done.map_err(|error| Fault::Lance { action, error }),
        Err(panic) => Err(Fault::Panicked { action, panic }),
    }
}

/// Whether an error of this kind may be caused by the data that Lance has read.
fn tells_of_contents(error: &turnflow_tables::Error) -> bool {
    use turnflow_tables::Error as E;
    matches!(
        error.find_root(),
        E::DatasetNotFound { .. }
            | E::NotFound { .. }
            | E::VersionNotFound { .. }
            | E::CorruptFile { .. }
            | E::SchemaMismatch { .. }
            | E::Schema { .. }
            | E::FieldNotFound { .. }
            | E::VersionConflict { .. }
            | E::NotSupported { .. }
            | E::InvalidInput { .. }
            | E::Arrow { .. }
            | E::IO { .. }
            | E::Internal { .. }
            | E::Execution { .. }
            | E::Wrapped { .. }
            | E::External { .. }
    )
}

/// Whether the operating system has failed with an error other than a missing file, or the process is shutting down.
/// Lance converts some causes to text, which contains the system's error code.
fn is_of_the_system(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        let mut codes = text.match_indices(SYSTEM_CODE).map(|(at, _)| &text[at + SYSTEM_CODE.len()..]);
        let cancelled = cause.downcast_ref::<tokio::task::JoinError>().is_some_and(|error| error.is_cancelled());
        let passes = |code: &str| !code.split_once(')').is_some_and(|(code, _)| code.parse().is_ok_and(is_lasting));
        if cancelled || codes.any(passes) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Prefix of the error code in the text of `std::io::Error`.
const SYSTEM_CODE: &str = "(os error ";

/// Whether an error code is about the stored data: the file is missing, or something else is in its place.
fn is_lasting(code: i32) -> bool {
    code == libc::ENOENT || is_no_file(code)
}

/// Whether the error is a conflict with another commit.
pub(super) fn is_conflict(fault: &Fault) -> bool {
    use turnflow_tables::Error as E;
    let Fault::Lance { error, .. } = fault else { return false };
    matches!(
        error.find_root(),
        E::IncompatibleTransaction { .. } | E::CommitConflict { .. } | E::RetryableCommitConflict { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_not_losses() {
        let lance = |error| Fault::Lance { action: "scan", error };
        let io = |code| std::io::Error::from_raw_os_error(code);
        for code in [5, 13, 24, 28] {
            assert!(!lance(io(code).into()).is_lost(), "{code}");
            assert!(!lance(turnflow_tables::Error::io(format!("cannot open it: {}", io(code)))).is_lost(), "{code}");
        }
        for code in [2, 20, 21, 40] {
            assert!(lance(turnflow_tables::Error::io(format!("cannot open it: {}", io(code)))).is_lost(), "{code}");
        }
        assert!(lance(turnflow_tables::Error::not_found("data/a.lance")).is_lost());
        assert!(lance(turnflow_tables::Error::invalid_input("the file does not end as it should")).is_lost());
        assert!(!lance(turnflow_tables::Error::Stop).is_lost());
        assert!(Fault::Unfit("`hash` has another type".to_owned()).is_lost());
    }
}
