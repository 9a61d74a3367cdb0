//! From which value of a column rows are read, so that none is missed.
//!
//! A transaction that began before a moment can still add rows with values that are smaller than those seen at that moment.
//! A later one cannot. So a moment is the largest value that was seen, and the transactions that were running afterwards:
//! when all of them have ended and a read has followed, rows with smaller values need not be read any more.

use std::collections::BTreeSet;
use std::time::Instant;

use turnflow_engine::connector::ConnectorError;

use crate::postgres::connect::Calls;

/// Maximum number of moments that a cursor remembers. More of them let it move on earlier.
const MOMENTS: usize = 64;

/// From which value rows are read.
#[derive(Default)]
pub(super) struct Cursor {
    /// All rows with smaller values are read, or are of transactions in `moments`.
    pub(super) from: Option<String>,
    largest: Option<String>,
    /// The values that were reached, and the transactions that were running later.
    moments: Vec<(Option<String>, BTreeSet<String>)>,
    /// When everything was last read.
    pub(super) compared: Option<Instant>,
}

impl Cursor {
    /// A read has reached this value. `running` are the transactions that were running before it began.
    pub(super) fn reached(&mut self, running: BTreeSet<String>, largest: Option<String>) {
        for (_, of_moment) in &mut self.moments {
            of_moment.retain(|transaction| running.contains(transaction));
        }
        // What was seen before this read is complete except for these transactions.
        self.moments.push((self.largest.take(), running));
        self.largest = largest;
        if let Some(last) = self.moments.iter().rposition(|(_, running)| running.is_empty()) {
            if let (Some(value), _) = &self.moments[last] {
                self.from = Some(value.clone());
            }
            self.moments.drain(..=last);
        }
        if self.moments.len() > MOMENTS {
            let mut number = 0;
            self.moments.retain(|_| {
                number += 1;
                number % 2 == 0
            });
        }
    }
}

/// The transactions that are running, without our own.
pub(super) fn running(calls: &Calls<'_>) -> Result<BTreeSet<String>, ConnectorError> {
    let query = "SELECT DISTINCT virtualtransaction FROM pg_locks \
                 WHERE locktype IN ('virtualxid', 'transactionid') AND granted AND mode = 'ExclusiveLock' \
                 AND pid IS DISTINCT FROM pg_backend_pid()";
    let rows = calls.get(calls.client().query(query, &[]))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_moves_on_when_the_transactions_of_a_moment_have_ended() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let mut cursor = Cursor::default();
        cursor.reached(set(&["1/1"]), Some("a".to_owned()));
        cursor.reached(set(&["1/1", "2/1"]), Some("b".to_owned()));
        cursor.reached(set(&["1/1"]), Some("c".to_owned()));
        assert_eq!(cursor.from, None);
        cursor.reached(set(&["3/1"]), Some("d".to_owned()));
        assert_eq!(cursor.from.as_deref(), Some("b"), "3/1 may have begun before d was reached");
        cursor.reached(set(&[]), Some("d".to_owned()));
        assert_eq!(cursor.from.as_deref(), Some("d"));
        for number in 0..1000 {
            cursor.reached(set(&["4/1"]), Some(format!("e{number}")));
        }
        assert!(cursor.moments.len() <= MOMENTS + 1 && cursor.from.as_deref() == Some("d"));
    }
}
