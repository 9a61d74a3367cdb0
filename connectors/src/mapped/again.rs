//! Records that a mapped source could not read, and that are mapped once more.

use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::ConnectorError;
use turnflow_records::{Mapping, Record, Source, Stream, decode};

use super::FILE;
use super::store::{Change, Known, Store};
use crate::open_once::{Opened, Place};
use crate::turns::failed;

/// What is made of records.
#[derive(Debug, Default)]
pub struct Again {
    /// The turns, as JSON, with the numbers of their records.
    pub turns: Vec<(usize, Vec<u8>)>,
    /// The numbers of records that cannot be mapped, and why.
    pub refused: Vec<(usize, String)>,
}

/// Maps records once more. Numbers of turns go on after those that the source has given in its state directory.
pub struct MapsAgain {
    mapping: Mapping,
    path: String,
    store: std::sync::Arc<Opened<Store>>,
    known: Known,
}

impl MapsAgain {
    /// For a source with this mapping. The engine must not run.
    ///
    /// # Errors
    ///
    /// The store of the source cannot be opened.
    pub fn open(mapping: Mapping, context: &ComponentContext) -> Result<Self, ConnectorError> {
        let place = Place::of(context, FILE)?;
        // Nothing is forgotten here.
        let store = Store::open(place, u64::MAX).map_err(failed)?;
        Ok(Self { mapping, path: context.id().to_owned(), store, known: Known::default() })
    }

    /// The turns of records.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn map(&mut self, records: &[Vec<u8>]) -> Result<Again, ConnectorError> {
        let mut again = Again::default();
        let mut stream = Stream::new(self.mapping.options().clone(), Default::default(), 0);
        for (number, record) in records.iter().enumerate() {
            match self.items(record, number as u64 + 1) {
                Ok(items) => drop(stream.take(items, &number.to_string(), 0)),
                Err(reason) => again.refused.push((number, format!("not mapped: {reason}"))),
            }
        }
        let mut memory = self.known.with(&self.store);
        let released = stream.release(0, true, &mut memory);
        memory.error().map_err(failed)?;
        let turns = released.turns.into_iter();
        let turns = turns.filter_map(|(turn, place)| Some((place.parse().ok()?, serde_json::to_vec(&turn).ok()?)));
        again.turns = turns.collect();
        Ok(again)
    }

    fn items(&self, record: &[u8], number: u64) -> Result<Vec<turnflow_records::Item>, String> {
        let value = decode::value(record, &mut Default::default())?;
        self.mapping.run(&Record { value, source: Source { path: self.path.as_str().into(), number } })
    }

    /// Keeps what is known of the messages: the source takes none of them a second time.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub fn keep(mut self) -> Result<(), ConnectorError> {
        let stored = self.store.begin().map_err(failed)?;
        let change = Change {
            records: stored.records,
            next_held: stored.next_held,
            known: self.known.changes(),
            ..Change::default()
        };
        self.store.commit(&change).map_err(failed)
    }
}
