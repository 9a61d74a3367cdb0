//! Follows the changes of the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode};
use turnflow_engine::odd_json;

use super::Changes;
use super::changes::Touched;
use super::cursor::{Cursor, running};
use super::read::{Query, Reader};
use super::rows::Rows;
use crate::mapped::KeyMap;
use crate::postgres::connect::{Calls, Server};
use crate::postgres::names::{Table, quoted};
use crate::postgres::slot::{CHANGES, Slot, Snapshot};
use crate::readers::jsonl::Fields;
use crate::remote::{Retry, lasting};

/// How often an idle connection is tested.
const TEST: Duration = Duration::from_secs(30);
/// Pause until a transaction that has committed can be seen.
const PAUSE: Duration = Duration::from_millis(20);

/// How changes are found.
enum How {
    Poll(Duration),
    Cursor { every: Duration, compare: Option<Duration> },
    Notify(String),
    Slot { slot: Slot, keys: BTreeMap<Table, String>, every: Duration },
}

/// Reads the rows of a query and follows their changes.
pub struct PostgresCorpus {
    server: Server,
    query: Query,
    how: How,
    context: ComponentContext,
    rows: Rows,
    is_ready: bool,
    cursor: Cursor,
    /// Where the slot was advanced to.
    advanced: Option<u64>,
    /// A table of the slot is no longer the one that was read.
    is_table_lost: bool,
}

impl PostgresCorpus {
    pub(super) fn new(
        server: Server,
        query: Query,
        fields: Fields,
        deleted: Option<String>,
        changes: &Changes,
        context: &ComponentContext,
    ) -> Result<Self, ConnectorError> {
        let seconds = Duration::from_secs_f64;
        let how = match changes {
            Changes::Poll { every_s } => How::Poll(seconds(*every_s)),
            Changes::Cursor { every_s, compare_s, .. } => {
                How::Cursor { every: seconds(*every_s), compare: (*compare_s > 0.0).then(|| seconds(*compare_s)) }
            }
            Changes::Notify { channel } => How::Notify(channel.clone()),
            Changes::Slot { name, tables, publication, every_s } => {
                let keys = tables.iter().map(|(table, column)| Ok((Table::parse(table)?, column.clone())));
                let keys = keys.collect::<Result<BTreeMap<Table, String>, String>>().map_err(lasting)?;
                let (tables, publication) =
                    (keys.keys().cloned().collect(), publication.as_ref().unwrap_or(name).clone());
                let publishes = "insert, update, delete, truncate";
                let slot = Slot { name: name.clone(), publication, tables, publishes };
                How::Slot { slot, keys, every: seconds(*every_s) }
            }
        };
        let rows = Rows::new(fields, deleted, query.max_bytes, server.database());
        let (is_ready, cursor, advanced, is_table_lost) = Default::default();
        Ok(Self { server, query, how, context: context.clone(), rows, is_ready, cursor, advanced, is_table_lost })
    }

    /// The same with a mapping.
    pub(super) fn mapped(self, keys: Option<KeyMap>) -> Self {
        Self { rows: self.rows.mapped(keys), ..self }
    }
}

impl CorpusSource for PostgresCorpus {
    fn run(mut self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let mut retry = Retry::new(self.server.shown.clone(), mode, &self.context);
        loop {
            match self.follow(mode, &output, &mut retry) {
                Ok(()) => return Ok(()),
                Err(ConnectorError::Stopped(stopped)) => return Err(stopped.into()),
                Err(error) => retry.failed(&error, output.stop())?,
            }
        }
    }
}

impl PostgresCorpus {
    /// Connects and follows the changes. `Ok` with [`Mode::Once`] only.
    fn follow(&mut self, mode: Mode, output: &CorpusOutput, retry: &mut Retry) -> Result<(), ConnectorError> {
        let runtime = self.context.runtime().clone();
        let calls = Calls::connect(&self.server, &runtime, output.stop())?;
        let query = self.query.clone();
        let reader = Reader::new(&calls, &query, output)?;
        // Changes are recorded from here on; then everything is read.
        let mut is_whole = self.is_ready;
        if mode == Mode::Follow {
            match &self.how {
                How::Notify(channel) => {
                    calls.get(calls.client().batch_execute(&format!("LISTEN {}", quoted(channel))))?;
                    is_whole = false;
                }
                How::Slot { slot, .. } => {
                    let found = slot.ensure(&calls)?;
                    // Someone else may have advanced or replaced it.
                    let is_moved = self.advanced.is_some_and(|advanced| found.done > advanced);
                    is_whole &= !found.is_new && !is_moved && !std::mem::take(&mut self.is_table_lost);
                    self.advanced = Some(found.done);
                }
                How::Cursor { .. } => calls.check_primary()?,
                How::Poll(_) => {}
            }
        }
        if !is_whole {
            self.read_all(&reader, output)?;
        }
        retry.worked();
        if mode == Mode::Once {
            return Ok(());
        }
        match &self.how {
            How::Poll(every) => {
                let every = *every;
                loop {
                    self.wait(&reader, every)?;
                    self.read_all(&reader, output)?;
                    retry.worked();
                }
            }
            How::Cursor { every, compare } => {
                let (every, compare) = (*every, *compare);
                loop {
                    self.wait(&reader, every)?;
                    self.read_new(&reader, output, compare)?;
                    retry.worked();
                }
            }
            How::Notify(_) => loop {
                self.read_notified(&reader, output)?;
                retry.worked();
            },
            How::Slot { slot, keys, every } => {
                let (slot, keys, every) = (slot.clone(), keys.clone(), *every);
                self.follow_slot(&reader, output, retry, &slot, &keys, every)
            }
        }
    }

    /// Waits, and tests the connection from time to time.
    fn wait(&self, reader: &Reader<'_>, time: Duration) -> Result<(), ConnectorError> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            reader.calls.idle(left.min(TEST), false)?;
            if left <= TEST {
                return Ok(());
            }
            reader.calls.get(reader.calls.client().check_connection())?;
        }
    }

    /// Reads everything.
    fn read_all(&mut self, reader: &Reader<'_>, output: &CorpusOutput) -> Result<(), ConnectorError> {
        let running = match self.how {
            How::Cursor { .. } => running(reader.calls)?,
            _ => BTreeSet::new(),
        };
        let largest = reader.all(&mut self.rows)?;
        let is_first = !self.is_ready;
        self.rows.commit(is_first, output)?;
        if is_first {
            output.ready()?;
            self.is_ready = true;
        }
        if matches!(self.how, How::Cursor { .. }) {
            self.cursor.reached(running, largest);
            self.cursor.compared = Some(Instant::now());
        }
        Ok(())
    }

    /// Reads the rows with later values, or everything when it is time.
    fn read_new(
        &mut self,
        reader: &Reader<'_>,
        output: &CorpusOutput,
        compare: Option<Duration>,
    ) -> Result<(), ConnectorError> {
        let since = self.cursor.compared.map(|compared| compared.elapsed());
        if compare.is_some_and(|compare| since.is_none_or(|since| since >= compare)) {
            return self.read_all(reader, output);
        }
        let running = running(reader.calls)?;
        let from = self.cursor.from.clone();
        let largest = reader.from(&mut self.rows, from.as_deref())?;
        self.rows.commit(false, output)?;
        self.cursor.reached(running, largest);
        Ok(())
    }

    /// Waits for notifications, and reads the rows that they name.
    fn read_notified(&mut self, reader: &Reader<'_>, output: &CorpusOutput) -> Result<(), ConnectorError> {
        let mut arrived = reader.calls.session.inbox.take();
        while arrived.payloads.is_empty() && !arrived.is_overfull {
            reader.calls.idle(TEST, true)?;
            arrived = reader.calls.session.inbox.take();
            if arrived.payloads.is_empty() && !arrived.is_overfull {
                reader.calls.get(reader.calls.client().check_connection())?;
            }
        }
        let mut ids = BTreeSet::new();
        let mut is_all = arrived.is_overfull;
        for payload in &arrived.payloads {
            match ids_of(payload) {
                Some(found) => ids.extend(found),
                None => is_all = true,
            }
        }
        if is_all {
            return self.read_all(reader, output);
        }
        reader.ids(&mut self.rows, &ids.into_iter().collect::<Vec<_>>())?;
        self.rows.commit(false, output)?;
        Ok(())
    }

    fn follow_slot(
        &mut self,
        reader: &Reader<'_>,
        output: &CorpusOutput,
        retry: &mut Retry,
        slot: &Slot,
        keys: &BTreeMap<Table, String>,
        every: Duration,
    ) -> Result<(), ConnectorError> {
        let calls = reader.calls;
        let mut done = self.advanced.unwrap_or_default();
        let tables_then = slot.tables_now(calls)?;
        loop {
            let written = Slot::written(calls)?;
            if let Err(error) = slot.check_tables(calls, &tables_then) {
                // The rows of the new table are not changes of the former one.
                self.is_table_lost = true;
                return Err(error);
            }
            let mut is_all = true;
            if written > done {
                let mut touched = Touched::new(keys);
                is_all = slot.peek(calls, written, CHANGES, |bytes| touched.take(bytes))?;
                // A commit can be decoded a moment before others see it, or longer if it waits for a standby.
                while !touched.is_seen(&Snapshot::now(calls)?) {
                    calls.idle(PAUSE, false)?;
                }
                if touched.is_everything {
                    self.read_all(reader, output)?;
                } else {
                    reader.ids(&mut self.rows, &touched.ids.iter().cloned().collect::<Vec<_>>())?;
                    self.rows.commit(false, output)?;
                }
                if let Some(to) = if is_all { Some(written) } else { touched.end } {
                    slot.advance(calls, to)?;
                    done = to;
                    self.advanced = Some(to);
                }
            }
            retry.worked();
            if is_all {
                calls.idle(every, false)?;
            }
        }
    }
}

/// The ids in a notification: one, or a JSON list. `None` if it has none.
fn ids_of(payload: &str) -> Option<Vec<String>> {
    if payload.trim().is_empty() {
        return None;
    }
    let id = |value: Value| match value {
        Value::String(id) => id,
        other => other.to_string(),
    };
    match payload.trim_start().starts_with('[').then(|| odd_json::exact::<Vec<Value>>(payload)) {
        Some(Ok(ids)) => Some(ids.into_iter().map(id).collect()),
        _ => Some(vec![payload.to_owned()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_has_one_id_or_a_list() {
        assert_eq!(ids_of("17").unwrap(), ["17"]);
        assert_eq!(ids_of("[17, \"a\"]").unwrap(), ["17", "a"]);
        assert_eq!(ids_of("[123456789012345678901234567890]").unwrap(), ["123456789012345678901234567890"]);
        assert_eq!(ids_of("[draft").unwrap(), ["[draft"]);
        assert_eq!(ids_of(" "), None);
    }
}
