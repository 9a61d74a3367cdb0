//! What a reader says about a file that it has read, such as that a part of it is missing. A child process has no log, so
//! its notes go to its parent with the document.

use std::cell::RefCell;

/// Most notes about one file.
const MOST: usize = 20;

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Adds a note about the file that this thread reads.
pub(crate) fn add(note: String) {
    NOTES.with_borrow_mut(|notes| {
        if notes.len() < MOST && !notes.contains(&note) {
            notes.push(note);
        }
    });
}

/// The notes since the last call.
pub(crate) fn take() -> Vec<String> {
    NOTES.take()
}

/// Writes notes about a document to the log.
pub(crate) fn log(document: &str, notes: &[String]) {
    notes.iter().for_each(|note| tracing::warn!(document, "{note}"));
}
