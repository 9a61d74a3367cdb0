//! Follows the inserts into a table by a replication slot.
//!
//! The offset of a row must increase in the order of the commits, and must be the same each time the row is decoded. It is
//! the pair of the position of its transaction's commit and the number of the row in the transaction, as `generation` and
//! `end`. (The positions of the rows themselves do not increase: transactions overlap, so a row may be written long before
//! the commit that precedes its own.) Another server or another slot may begin at smaller positions: its positions are
//! counted from the last offset of the former one, and the identity of the log says from where.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset};
use turnflow_engine::record::TurnRecord;

use super::Reading;
use super::values::value;
use crate::postgres::connect::Calls;
use crate::postgres::pgoutput::{Cell, Column, Message, Relation, parse};
use crate::postgres::slot::{CHANGES, Slot};
use crate::remote::{Retry, passing};

/// Where the reader is; survives the connection.
#[derive(Default)]
pub(super) struct Inserts {
    log: Option<Log>,
    /// The commit and the number of the last row that was sent.
    last: (u64, u64),
    /// The transactions that were sent and are not acknowledged.
    sent: VecDeque<Sent>,
    /// The position that existed at the start.
    at_start: Option<u64>,
    is_caught_up: bool,
}

/// The identity of what is read.
#[derive(Clone)]
struct Log {
    /// Server, database, slot, and `base`.
    identity: String,
    /// Is added to each position.
    base: u64,
}

/// A transaction that was sent.
struct Sent {
    commit: u64,
    rows: u64,
    end: u64,
}

/// A transaction that is being read.
#[derive(Default)]
struct Reader {
    relation: Option<Relation>,
    commit: u64,
    rows: u64,
    /// The last row that is a turn: only turns are acknowledged.
    turns: u64,
    /// The end of the last whole transaction.
    end: Option<u64>,
}

impl Reading<'_> {
    /// Connects and follows the slot. `Ok` with [`Mode::Once`] only.
    pub(super) fn follow_slot(
        &self,
        inserts: &mut Inserts,
        name: &str,
        publication: &str,
        every_s: f64,
        retry: &mut Retry,
    ) -> Result<(), ConnectorError> {
        let calls = self.connect()?;
        let tables = [self.source.table.clone()].into();
        let slot = Slot { name: name.to_owned(), publication: publication.to_owned(), tables, publishes: "insert" };
        // The positions are those of the slot, whichever table has the name.
        let (server, _) = self.identity(&calls)?;
        let found = slot.ensure(&calls)?;
        let tables_then = slot.tables_now(&calls)?;
        self.resume_log(inserts, format!("{server}/{name}"), found.is_new);
        if found.is_new {
            inserts.sent.clear();
        }
        let every = Duration::from_secs_f64(every_s);
        let mut done = found.done;
        let (mut read, mut limit) = (0, CHANGES);
        loop {
            self.acknowledge(&calls, inserts, &slot, &mut done)?;
            let written = Slot::written(&calls)?;
            slot.check_tables(&calls, &tables_then)?;
            let at_start = *inserts.at_start.get_or_insert(written);
            let up_to = if self.mode == Mode::Once { at_start } else { written };
            let waiting: u64 = inserts.sent.iter().map(|sent| sent.rows).sum();
            // What is not acknowledged is decoded again each time, so it is bounded.
            let is_room = waiting < CHANGES as u64 / 2;
            if is_room && up_to > read {
                let mut reader = Reader::default();
                let is_all = slot.peek(&calls, up_to, limit, |bytes| self.take(&mut reader, inserts, bytes))?;
                let end = if is_all { Some(up_to) } else { reader.end };
                if let Some(end) = end.filter(|end| inserts.sent.is_empty() && *end > done) {
                    slot.advance(&calls, end)?;
                    (done, limit) = (end, CHANGES);
                } else if !is_all {
                    // The same changes come again, and then further ones.
                    limit = limit.saturating_mul(2);
                }
                retry.worked();
                if !is_all {
                    continue;
                }
                read = up_to;
                if read >= at_start && !inserts.is_caught_up {
                    inserts.is_caught_up = true;
                    self.output.caught_up();
                }
            }
            retry.worked();
            if inserts.is_caught_up && self.mode == Mode::Once {
                return Ok(());
            }
            let until = Instant::now() + every;
            crossbeam_channel::select! {
                recv(self.output.acknowledgements().changed()) -> _ => {}
                recv(self.output.stop().receiver()) -> _ => {}
                default(every) => {}
            }
            // New acknowledgements free the slot at once; new rows are looked for when it is time.
            self.acknowledge(&calls, inserts, &slot, &mut done)?;
            calls.idle(until.saturating_duration_since(Instant::now()), false)?;
        }
    }

    fn resume_log(&self, inserts: &mut Inserts, identity: String, is_new: bool) {
        let known = match &inserts.log {
            Some(log) => Some((log.identity.clone(), log.base, log.base + inserts.last.0, inserts.last)),
            None => self.output.resume().and_then(|offset| {
                let (identity, base) = offset.log.rsplit_once('+')?;
                let base: u64 = base.parse().ok()?;
                let last = (offset.generation.saturating_sub(base), offset.end);
                Some((identity.to_owned(), base, offset.generation, last))
            }),
        };
        let log = match known {
            Some((known, base, _, last)) if known == identity && !is_new => {
                inserts.last = last;
                Log { identity, base }
            }
            Some((_, _, generation, _)) => {
                let table = &self.source.table;
                tracing::warn!(%table, "the server or the slot was replaced; turns in between may be missing");
                inserts.last = (0, 0);
                Log { identity, base: generation + 1 }
            }
            None => {
                let log = Log { identity, base: 0 };
                self.output.begins(SourceOffset { log: log.written().into(), ..SourceOffset::default() });
                log
            }
        };
        inserts.log = Some(log);
    }

    /// Advances the slot behind the transactions that are wholly acknowledged.
    fn acknowledge(
        &self,
        calls: &Calls<'_>,
        inserts: &mut Inserts,
        slot: &Slot,
        done: &mut u64,
    ) -> Result<(), ConnectorError> {
        let offsets = self.output.acknowledgements().offsets();
        let Some(log) = &inserts.log else { return Ok(()) };
        // After a restart, what an earlier process has answered counts from the start.
        let safe = [offsets.get(""), self.output.resume()].into_iter().flatten();
        let safe = safe.filter(|offset| *offset.log == *log.written()).map(SourceOffset::order).max();
        let Some((generation, end)) = safe else { return Ok(()) };
        let safe = (generation.saturating_sub(log.base), end);
        let mut to = None;
        while let Some(sent) = inserts.sent.front()
            && (sent.commit, sent.rows) <= safe
        {
            to = Some(sent.end);
            inserts.sent.pop_front();
        }
        if let Some(to) = to.filter(|to| *to > *done) {
            slot.advance(calls, to)?;
            *done = to;
        }
        Ok(())
    }

    fn take(&self, reader: &mut Reader, inserts: &mut Inserts, bytes: &[u8]) -> Result<(), ConnectorError> {
        let table = &self.source.table;
        match parse(bytes).map_err(passing)? {
            Message::Begin { commit, .. } => (reader.commit, reader.rows, reader.turns) = (commit, 0, 0),
            Message::Commit { commit, end } => {
                reader.end = Some(end);
                let is_known = inserts.sent.back().is_some_and(|last| last.commit >= commit);
                if reader.turns > 0 && !is_known {
                    inserts.sent.push_back(Sent { commit, rows: reader.turns, end });
                }
            }
            Message::Relation(relation) if relation.schema == table.schema && relation.name == table.name => {
                reader.relation = Some(relation);
            }
            Message::Insert { relation, new } => {
                let Some(of) = reader.relation.as_ref().filter(|of| of.id == relation) else { return Ok(()) };
                reader.rows += 1;
                let at = (reader.commit, reader.rows);
                if at <= inserts.last || self.send_insert(inserts.log.as_ref(), at, &of.columns, &new)? {
                    reader.turns = reader.rows;
                }
                inserts.last = inserts.last.max(at);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends a row; false if it is not a turn.
    fn send_insert(
        &self,
        log: Option<&Log>,
        (commit, row): (u64, u64),
        columns: &[Column],
        cells: &[Cell<'_>],
    ) -> Result<bool, ConnectorError> {
        let Some(log) = log else { return Ok(false) };
        let position = format!("{}: {:X}/{:X}, row {row}", self.source.table, commit >> 32, commit & 0xffff_ffff);
        let bytes: usize = cells.iter().map(|cell| if let Cell::Text(text) = cell { text.len() } else { 0 }).sum();
        if bytes > self.source.max_bytes {
            let reason = format!("the row has {bytes} bytes, more than `max_bytes` ({})", self.source.max_bytes);
            self.output.dead_beginning(&position, &reason, b"");
            return Ok(false);
        }
        let mut odd = Vec::new();
        let fields = columns.iter().zip(cells).map(|(column, cell)| {
            let (value, is_odd) = value(column.of, cell);
            odd.extend(is_odd.then(|| column.name.clone()));
            (column.name.clone(), value)
        });
        let fields: Map<String, Value> = fields.collect();
        let shown = Value::Object(fields.clone()).to_string();
        match super::record_of(fields, &odd, &position, self.output.is_mapped()) {
            Ok(turn) => {
                let (generation, log) = (log.base + commit, log.written().into());
                let offset = SourceOffset { log, generation, end: row, line: row, ..SourceOffset::default() };
                self.output.line(&turn, &position, Some(offset))?;
                Ok(self.output.is_mapped() || TurnRecord::parse(&turn).is_ok())
            }
            Err(reason) => {
                self.output.dead_letter(&position, &reason, shown.as_bytes());
                Ok(false)
            }
        }
    }
}

impl Log {
    fn written(&self) -> String {
        format!("{}+{}", self.identity, self.base)
    }
}
