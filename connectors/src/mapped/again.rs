//! Records that a mapped source could not read, and that are mapped once more.

use std::collections::HashSet;

use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::ConnectorError;
use turnflow_records::{Mapping, Record, Source, Stream};

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

    /// The turns of records, each with its place. What was mapped before is not known here.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn map(&mut self, records: &[(String, Vec<u8>)]) -> Result<Again, ConnectorError> {
        let mut again = Again::default();
        self.known = Known::default();
        let mut stream = Stream::new(self.mapping.options().clone(), Default::default(), 0);
        for (number, (position, record)) in records.iter().enumerate() {
            match self.items(record, position) {
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
        let given: HashSet<usize> = again
            .turns
            .iter()
            .map(|(number, _)| *number)
            .chain(again.refused.iter().map(|(number, _)| *number))
            .collect();
        let none = (0..records.len()).filter(|number| !given.contains(number));
        again.refused.extend(none.map(|number| (number, "not mapped: no turn comes of it".to_owned())));
        Ok(again)
    }

    /// The messages of a record at `PATH:NUMBER`.
    fn items(&self, record: &[u8], position: &str) -> Result<Vec<turnflow_records::Item>, String> {
        let value = self.mapping.value(record, &mut Default::default())?;
        let place = position.rsplit_once(':').and_then(|(path, number)| Some((path, number.parse().ok()?)));
        let (path, number) = place.unwrap_or((&self.path, 1));
        self.mapping.run(&Record { value, source: Source { path: path.into(), number } })
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
        self.store.commit(&change).map_err(failed)?;
        self.store.set_mapped_again().map_err(failed)
    }
}
