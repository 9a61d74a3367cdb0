//! What an import says: the files that it wrote, and the records that it left out.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use turnflow_engine::wording::count;

use super::output::Written;

/// Places that are listed for each reason.
const PLACES: usize = 20;

/// Records that were left out for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The reason.
    pub reason: String,
    /// Number of records.
    pub records: u64,
    /// The first of them, each as `file:line`, or `file` if the whole file is meant.
    pub places: Vec<String>,
}

/// Records that are left out, by reason.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(BTreeMap<String, LeftOut>);

impl Ledger {
    pub fn add(&mut self, reason: impl Into<String>, place: String) {
        let reason = reason.into();
        let entry = self.0.entry(reason.clone()).or_default();
        entry.reason = reason;
        entry.records += 1;
        if entry.places.len() < PLACES {
            entry.places.push(place);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn list(self) -> Vec<LeftOut> {
        self.0.into_values().collect()
    }
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The files, sorted by name.
    pub files: Vec<Written>,
    /// Records and files without a place in the result, such as passages without text.
    pub skipped: Vec<LeftOut>,
    /// Records that cannot be read.
    pub invalid: Vec<LeftOut>,
    /// Judgements of passages that no imported corpus has; 0 if no corpus was imported.
    pub judgements_without_passage: u64,
}

/// Writes a list of what was left out, one line per reason.
pub(super) fn list(f: &mut fmt::Formatter<'_>, word: &str, left_out: &[LeftOut]) -> fmt::Result {
    for LeftOut { reason, records, places } in left_out {
        write!(f, "\n{word} {records}: {reason}: {}", places.iter().take(3).cloned().collect::<Vec<_>>().join(", "))?;
        if *records > 3 {
            write!(f, ", …")?;
        }
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Written { file, record, records }) in self.files.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            write!(f, "{gap}{file}: {}", count(*records, record))?;
        }
        list(f, "skipped", &self.skipped)?;
        list(f, "skipped, invalid,", &self.invalid)?;
        if self.judgements_without_passage > 0 {
            let judgements = count(self.judgements_without_passage, "judgement");
            write!(f, "\n{judgements} of passages that are in no imported corpus")?;
        }
        Ok(())
    }
}
