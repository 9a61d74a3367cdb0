//! What Lance's errors say of what is stored: whether it is at fault, or the system.

use std::error::Error;

use turnflow_engine::component::IndexError;
use turnflow_engine::panics::{Panicked, caught_async};

use crate::bm25::is_no_file;

/// Why a call of Lance gave nothing.
#[derive(Debug)]
pub(super) enum Fault {
    /// Lance says so.
    Lance {
        /// What was tried.
        action: &'static str,
        /// What it said.
        error: lance::Error,
    },
    /// It panicked: what is damaged may lead it anywhere.
    Panicked {
        /// What was tried.
        action: &'static str,
        /// With what.
        panic: Panicked,
    },
    /// There is something else than encodings of this model.
    Unfit(String),
}

impl Fault {
    /// Whether what is stored is gone, damaged or of another schema. Any other error passes (no
    /// more files may be open, the disk does not answer) and must not cost what is stored.
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
            Fault::Unfit(reason) => ("read what is stored", reason),
        };
        IndexError::Store { store: "Lance", action, reason }
    }
}

/// Calls Lance.
pub(super) async fn call<T, F>(action: &'static str, call: impl FnOnce() -> F) -> Result<T, Fault>
where
    F: Future<Output = lance::Result<T>>,
{
    match caught_async(call).await {
        Ok(done) => done.map_err(|error| Fault::Lance { action, error }),
        Err(panic) => Err(Fault::Panicked { action, panic }),
    }
}

/// What Lance calls an error, where that may be about what it has read.
fn tells_of_contents(error: &lance::Error) -> bool {
    use lance::Error as E;
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

/// Whether the operating system has refused something other than a file that is not there, or the
/// process is ending. Lance turns some of its causes to text, which has the system's code.
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

/// As `std::io::Error` writes the system's errors.
const SYSTEM_CODE: &str = "(os error ";

/// Codes that tell of what is stored: the file is not there, or something else is in its place.
fn is_lasting(code: i32) -> bool {
    code == libc::ENOENT || is_no_file(code)
}

/// Whether another commit has come between.
pub(super) fn is_conflict(fault: &Fault) -> bool {
    use lance::Error as E;
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
            assert!(!lance(lance::Error::io(format!("cannot open it: {}", io(code)))).is_lost(), "{code}");
        }
        for code in [2, 20, 21, 40] {
            assert!(lance(lance::Error::io(format!("cannot open it: {}", io(code)))).is_lost(), "{code}");
        }
        assert!(lance(lance::Error::not_found("data/a.lance")).is_lost());
        assert!(lance(lance::Error::invalid_input("the file does not end as it should")).is_lost());
        assert!(!lance(lance::Error::Stop).is_lost());
        assert!(Fault::Unfit("`hash` has another type".to_owned()).is_lost());
    }
}
