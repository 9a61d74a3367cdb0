//! What a component has measured of itself, kept for `turnflow explain`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::state::file_name;

/// The file in the component's own directory.
const FILE: &str = "measured.txt";

/// Keeps the newest measurement of a component in its own directory, if it has one.
pub struct Measured {
    file: Option<PathBuf>,
    /// What was measured, as the component's `explain` shows it.
    settings: String,
}

impl Measured {
    pub(super) fn new(directory: Option<PathBuf>, settings: &str) -> Self {
        let file = directory.map(|directory| directory.join(FILE));
        Self { file, settings: settings.to_owned() }
    }

    /// Keeps this line instead of the last one. If it cannot be written, only `turnflow explain` lacks it.
    pub fn keep(&self, line: &str) {
        let Some(file) = &self.file else { return };
        // The members of an agent share its file.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let new = file.with_extension(format!("{}.new", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let written = std::fs::write(&new, format!("{}\n{line}\n", self.settings));
        if let Err(error) = written.and_then(|()| std::fs::rename(&new, file)) {
            let _ = std::fs::remove_file(&new);
            tracing::debug!(file = %file.display(), %error, "a measurement was not written");
        }
    }
}

/// The newest measurement of the component with this id, from earlier runs with this state directory. `explained` are
/// its present settings; a measurement of others is left out.
pub fn measured(state: &Path, id: &str, explained: &str) -> Option<String> {
    let file = state.join("components").join(file_name(id)).join(FILE);
    let text = std::fs::read_to_string(file).ok()?;
    let (settings, line) = text.split_once('\n')?;
    // Anything but one whole line is damaged.
    let line = line.strip_suffix('\n').filter(|line| !line.contains(char::is_control))?;
    explained.contains(settings).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_measurement_of_the_present_settings_is_shown() {
        let state = tempfile::tempdir().unwrap();
        let shown = |explained: &str| measured(state.path(), "found", explained);
        assert_eq!(shown("top: 10, index: Ivf(from: 5)"), None);
        let directory = state.path().join("components/found");
        std::fs::create_dir_all(&directory).unwrap();
        let kept = Measured::new(Some(directory.clone()), "index: Ivf(from: 5)");
        kept.keep("recall 0.97");
        kept.keep("recall 0.98");
        assert_eq!(shown("top: 10, index: Ivf(from: 5)").as_deref(), Some("recall 0.98"));
        assert_eq!(shown("top: 10"), None);
        std::fs::write(directory.join(FILE), "index: Ivf(from: 5)\nrecall 0.9").unwrap();
        assert_eq!(shown("top: 10, index: Ivf(from: 5)"), None, "half a line");
        std::fs::write(directory.join(FILE), "index: Ivf(from: 5)\nrecall 0.9\n.98\n").unwrap();
        assert_eq!(shown("top: 10, index: Ivf(from: 5)"), None, "two lines");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
        Measured::new(None, "").keep("recall 0.5");
    }
}
