//! What a component has measured of itself, kept for `turnflow explain`.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::state::file_name;

/// The file in the component's own directory.
const FILE: &str = "measured.txt";

/// Keeps the newest measurement of a component in its own directory, if it has one.
pub struct Measured {
    file: Option<PathBuf>,
    kept: Mutex<String>,
}

impl Measured {
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self { file: directory.map(|directory| directory.join(FILE)), kept: Mutex::default() }
    }

    /// Keeps this line instead of the last one. If it cannot be written, only `turnflow explain` lacks it.
    pub fn keep(&self, line: &str) {
        let Some(file) = &self.file else { return };
        let mut kept = self.kept.lock();
        if *kept != line {
            line.clone_into(&mut kept);
            if let Err(error) = std::fs::write(file, format!("{line}\n")) {
                tracing::debug!(file = %file.display(), %error, "a measurement was not written");
            }
        }
    }
}

/// The newest measurement of the component with this id, from earlier runs with this state directory.
pub fn measured(state: &Path, id: &str) -> Option<String> {
    let file = state.join("components").join(file_name(id)).join(FILE);
    let text = std::fs::read_to_string(file).ok()?;
    // A line that was not written to its end is left out.
    text.strip_suffix('\n').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_measurement_is_kept_and_half_a_line_is_left_out() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(measured(state.path(), "found"), None);
        let directory = state.path().join("components/found");
        std::fs::create_dir_all(&directory).unwrap();
        let kept = Measured::new(Some(directory.clone()));
        kept.keep("recall 0.97");
        kept.keep("recall 0.98");
        assert_eq!(measured(state.path(), "found").as_deref(), Some("recall 0.98"));
        std::fs::write(directory.join(FILE), "recall 0.9").unwrap();
        assert_eq!(measured(state.path(), "found"), None);
        Measured::new(None).keep("recall 0.5");
    }
}
