//! Sends the stored turns to the engine.

use turnflow_engine::connector::{ConnectorError, Offsets, SourceOffset, TurnOutput};

use super::store::Store;
use crate::turns::failed;

/// Maximum number of turns in a page, and their size in bytes.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 4 << 20;
/// Number of turns that are covered by a checkpoint and not removed yet.
const COVERED: u64 = 1000;

pub(super) struct Reader<'a> {
    store: &'a Store,
    output: &'a TurnOutput,
    /// Counts the stores that the source had: numbers begin again in another one.
    generation: u64,
    /// The number of the last turn that was sent, and of the last one that an earlier process has answered.
    after: u64,
    begun: u64,
    /// The turns up to this number are removed.
    removed: u64,
    /// Whether it was looked for turns that are covered since the start.
    has_looked: bool,
    former: Option<Offsets>,
}

impl<'a> Reader<'a> {
    pub fn new(store: &'a Store, output: &'a TurnOutput) -> Self {
        let mut reader =
            Self { store, output, generation: 0, after: 0, begun: 0, removed: 0, has_looked: false, former: None };
        match output.resume() {
            Some(offset) if offset.log == *store.id() => {
                reader.generation = offset.generation;
                (reader.after, reader.begun) = (offset.end, offset.end);
            }
            Some(offset) => {
                reader.generation = offset.generation + 1;
                reader.former = Some(output.resume_partitions().clone());
            }
            None => match output.resume_partitions() {
                former if former.is_empty() => output.begins(reader.offset(0)),
                former => reader.former = Some(former.clone()),
            },
        }
        reader
    }

    /// The offsets of the source when it had no mapping.
    pub fn former(&mut self) -> Option<Offsets> {
        self.former.take()
    }

    fn offset(&self, number: u64) -> SourceOffset {
        let log = self.store.id().clone();
        SourceOffset { log, generation: self.generation, end: number, line: number, ..SourceOffset::default() }
    }

    /// The number of the last turn whose answer a checkpoint covers.
    pub fn covered(&self) -> u64 {
        let offsets = self.output.acknowledgements().offsets();
        let covered = offsets.get("").filter(|offset| offset.log == *self.store.id()).map_or(0, |offset| offset.end);
        covered.max(self.begun)
    }

    /// Whether a checkpoint covers all that was sent.
    pub fn is_covered(&self) -> bool {
        self.covered() >= self.after
    }

    /// Sends the next page; false if there is none. Removes what a checkpoint covers.
    pub fn step(&mut self) -> Result<bool, ConnectorError> {
        let covered = self.covered();
        if covered > self.removed && (!self.has_looked || covered - self.removed >= COVERED) {
            self.store.remove(covered).map_err(failed)?;
            self.removed = covered;
        }
        self.has_looked = true;
        let page = self.store.page(self.after, PAGE, PAGE_BYTES).map_err(failed)?;
        let is_any = !page.is_empty();
        for (number, position, turn) in page {
            self.output.line(&turn, &position, Some(self.offset(number)))?;
            self.after = number;
        }
        Ok(is_any)
    }
}
