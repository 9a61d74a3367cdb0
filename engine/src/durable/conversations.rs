//! Conversations in the checkpoint database: one head per conversation, one row per utterance, and an
//! index by last use.
//!
//! A turn writes only its two new utterances. The index begins with the conversations that have been
//! idle longest.

use std::collections::VecDeque;
use std::sync::Arc;

use redb::{ReadTransaction, ReadableDatabase as _, ReadableTable, Table, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use super::store::{json, table};
use super::{ConversationChange, FormerTurn, Said, StoredConversation};
use crate::connector::Applied;

/// Heads, by conversation key.
const HEADS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("heads");
/// Utterances, by conversation key, a zero byte, and number (8 bytes, big-endian).
const UTTERANCES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("utterances");
/// Index of last use, by seconds (8 bytes, big-endian) and conversation key.
const USED: TableDefinition<'_, &[u8], ()> = TableDefinition::new("used");
/// The old format: whole conversations, by key.
const WHOLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("conversations");

/// The stored fields of a conversation except its utterances.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    first: u64,
    next: u64,
    reply: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<FormerTurn>,
    applied: Applied,
    used: u64,
}

/// A conversation in the old format.
#[derive(Deserialize)]
struct Whole {
    history: Vec<Said>,
    reply: Option<Arc<str>>,
    applied: Applied,
    used: u64,
}

fn utterance_key(key: &[u8], number: u64) -> Vec<u8> {
    [key, &[0], &number.to_be_bytes()].concat()
}

fn used_key(used: u64, key: &[u8]) -> Vec<u8> {
    [&used.to_be_bytes()[..], key].concat()
}

/// Parses a head; `None` if it is invalid. This is not an error, since retries would not help and the
/// conversation would wait forever.
fn parse(key: &[u8], bytes: &[u8]) -> Option<Head> {
    let head = serde_json::from_slice(bytes);
    head.inspect_err(|error| {
        let key = String::from_utf8_lossy(key);
        tracing::error!(%error, conversation = %key, "cannot read a stored conversation");
    })
    .ok()
}

/// Loads a conversation.
pub(super) fn load(transaction: &ReadTransaction, key: &[u8]) -> Result<Option<StoredConversation>, redb::Error> {
    let Some(heads) = table(transaction, HEADS)? else { return Ok(None) };
    let Some(head) = heads.get(key)?.and_then(|head| parse(key, head.value())) else { return Ok(None) };
    let mut history: VecDeque<Said> = VecDeque::new();
    if let Some(rows) = table(transaction, UTTERANCES)? {
        for row in rows.range(&*utterance_key(key, head.first)..&*utterance_key(key, head.next))? {
            let (at, row) = row?;
            // Another conversation's key may begin with this one's.
            if at.value().len() == key.len() + 9
                && let Ok(utterance) = serde_json::from_slice(row.value())
            {
                history.push_back(utterance);
            }
        }
    }
    let Head { next, reply, groups, former, applied, used, .. } = head;
    Ok(Some(StoredConversation {
        first: next - (history.len() as u64).min(next),
        history,
        reply,
        groups,
        former,
        applied,
        used,
    }))
}

/// The tables, opened for writing.
pub(super) struct Tables<'t> {
    heads: Table<'t, &'static [u8], &'static [u8]>,
    utterances: Table<'t, &'static [u8], &'static [u8]>,
    used: Table<'t, &'static [u8], ()>,
}

impl<'t> Tables<'t> {
    pub fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            heads: transaction.open_table(HEADS)?,
            utterances: transaction.open_table(UTTERANCES)?,
            used: transaction.open_table(USED)?,
        })
    }

    fn head(&self, key: &[u8]) -> Result<Option<Head>, redb::Error> {
        Ok(self.heads.get(key)?.and_then(|head| parse(key, head.value())))
    }

    fn put(&mut self, key: &[u8], head: &Head) -> Result<(), redb::Error> {
        self.heads.insert(key, &*json(head))?;
        self.used.insert(&*used_key(head.used, key), ())?;
        Ok(())
    }

    /// Writes the new utterances and removes those that are dropped.
    pub fn change(&mut self, key: &[u8], change: &ConversationChange) -> Result<(), redb::Error> {
        let old = self.head(key)?;
        if let Some(old) = &old {
            self.used.remove(&*used_key(old.used, key))?;
            for number in old.first..change.first.min(old.next) {
                self.utterances.remove(&*utterance_key(key, number))?;
            }
        }
        for (number, utterance) in (change.from..).zip(&change.said).filter(|(number, _)| *number >= change.first) {
            self.utterances.insert(&*utterance_key(key, number), &*json(utterance))?;
        }
        let ConversationChange { first, reply, groups, former, applied, used, .. } = change.clone();
        self.put(key, &Head { first, next: change.next(), reply, groups, former, applied, used })
    }

    /// Removes a conversation.
    pub fn remove(&mut self, key: &[u8]) -> Result<(), redb::Error> {
        if let Some(head) = self.head(key)? {
            self.used.remove(&*used_key(head.used, key))?;
            for number in head.first..head.next {
                self.utterances.remove(&*utterance_key(key, number))?;
            }
        }
        self.heads.remove(key)?;
        Ok(())
    }

    /// Sets the time of last use.
    pub fn use_at(&mut self, key: &[u8], used: u64) -> Result<(), redb::Error> {
        let Some(head) = self.head(key)? else { return Ok(()) };
        self.used.remove(&*used_key(head.used, key))?;
        self.put(key, &Head { used, ..head })
    }

    /// Removes all conversations with keys from `from` (inclusive) to `to` (exclusive).
    pub fn forget(&mut self, from: &[u8], to: &[u8]) -> Result<(), redb::Error> {
        let mut used = Vec::new();
        for entry in self.heads.range(from..to)? {
            let (key, head) = entry?;
            used.extend(parse(key.value(), head.value()).map(|head| used_key(head.used, key.value())));
        }
        for key in used {
            self.used.remove(&*key)?;
        }
        self.heads.retain_in(from..to, |_, _| false)?;
        self.utterances.retain_in(from..to, |_, _| false)?;
        Ok(())
    }
}

/// Conversations that expire, and those whose last use is in the future.
#[derive(Default)]
pub(super) struct Due {
    pub gone: Vec<Vec<u8>>,
    pub ahead: Vec<Vec<u8>>,
}

/// At most `most` conversations last used before `before`, if they may be removed, or after `now`.
pub(super) fn due(
    transaction: &ReadTransaction,
    before: u64,
    now: u64,
    most: usize,
    may_go: impl Fn(&[u8], &Applied) -> bool,
) -> Result<Due, redb::Error> {
    let mut due = Due::default();
    let (Some(used), Some(heads)) = (table(transaction, USED)?, table(transaction, HEADS)?) else { return Ok(due) };
    let mut old = used.range(..&*used_key(before, &[]))?;
    while due.gone.len() < most
        && let Some(entry) = old.next()
    {
        let (at, _) = entry?;
        let key = &at.value()[8..];
        let head = heads.get(key)?.and_then(|head| parse(key, head.value()));
        if head.is_none_or(|head| may_go(key, &head.applied)) {
            due.gone.push(key.to_vec());
        }
    }
    let mut ahead = used.range(&*used_key(now.saturating_add(1), &[])..)?;
    while due.gone.len() + due.ahead.len() < most
        && let Some(entry) = ahead.next()
    {
        due.ahead.push(entry?.0.value()[8..].to_vec());
    }
    Ok(due)
}

/// Migrates at most `most` conversations from the old format; returns whether there were any.
pub(super) fn migrate(database: &redb::Database, most: usize) -> Result<bool, redb::Error> {
    let mut old = Vec::new();
    {
        let transaction = database.begin_read()?;
        let Some(whole) = table(&transaction, WHOLE)? else { return Ok(false) };
        for entry in whole.iter()?.take(most) {
            let (key, value) = entry?;
            old.push((key.value().to_vec(), serde_json::from_slice::<Whole>(value.value()).ok()));
        }
    }
    let transaction = database.begin_write()?;
    if old.is_empty() {
        transaction.delete_table(WHOLE)?;
        transaction.commit()?;
        return Ok(false);
    }
    {
        let mut whole = transaction.open_table(WHOLE)?;
        let mut tables = Tables::open(&transaction)?;
        for (key, known) in old {
            whole.remove(&*key)?;
            if let Some(Whole { history, reply, applied, used }) = known {
                tables.change(
                    &key,
                    &ConversationChange {
                        from: 0,
                        said: history,
                        first: 0,
                        reply,
                        groups: Vec::new(),
                        former: Vec::new(),
                        applied,
                        used,
                    },
                )?;
            }
        }
    }
    transaction.commit()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Speaker;

    fn said(text: &str) -> Said {
        // What earlier versions have stored has no turn.
        Said { speaker: Speaker::User, text: text.into(), turn: 0, log: 0, key: None }
    }

    fn rows(database: &redb::Database) -> (u64, u64, u64) {
        use redb::ReadableTableMetadata as _;
        let transaction = database.begin_read().unwrap();
        let count = |of| table(&transaction, of).unwrap().map_or(0, |table| table.len().unwrap());
        (count(HEADS), count(UTTERANCES), table(&transaction, USED).unwrap().map_or(0, |table| table.len().unwrap()))
    }

    fn write(database: &redb::Database, write: impl FnOnce(&mut Tables<'_>)) {
        let transaction = database.begin_write().unwrap();
        write(&mut Tables::open(&transaction).unwrap());
        transaction.commit().unwrap();
    }

    #[test]
    fn only_what_was_said_since_is_written_and_what_is_dropped_goes() {
        let directory = tempfile::tempdir().unwrap();
        let database = redb::Database::create(directory.path().join("t.redb")).unwrap();
        // One key is a prefix of the other.
        let keys: [&[u8]; 2] = [b"s\0c", b"s\0c\0x"];
        for round in 0..20 {
            for key in keys {
                let (from, first) = (round * 2, (round * 2 + 2_u64).saturating_sub(5));
                let texts = [said(&format!("{round} {}", key.len())), said("so")];
                let said = texts.to_vec();
                let change = ConversationChange {
                    from,
                    said,
                    first,
                    reply: None,
                    groups: vec!["g".into()],
                    former: Vec::new(),
                    applied: (0, round).into(),
                    used: round,
                };
                write(&database, |tables| tables.change(key, &change).unwrap());
            }
        }
        assert_eq!(rows(&database), (2, 10, 2));
        let known = load(&database.begin_read().unwrap(), keys[0]).unwrap().unwrap();
        assert_eq!((known.first, known.history.len(), known.used), (35, 5, 19));
        assert_eq!(&*known.history[1].text, "18 3");
        // Utterances after a gap, which an expiry leaves, are kept.
        let change = ConversationChange {
            from: 50,
            said: vec![said("x")],
            first: 45,
            reply: None,
            groups: vec!["g".into()],
            former: Vec::new(),
            applied: (0, 9).into(),
            used: 9,
        };
        write(&database, |tables| tables.change(keys[0], &change).unwrap());
        let known = load(&database.begin_read().unwrap(), keys[0]).unwrap().unwrap();
        assert_eq!((known.first, known.history.len()), (50, 1));
        assert_eq!(rows(&database), (2, 6, 2));
        write(&database, |tables| tables.remove(keys[0]).unwrap());
        assert_eq!(rows(&database), (1, 5, 1));
        write(&database, |tables| tables.forget(b"s\0", b"s\x01").unwrap());
        assert_eq!(rows(&database), (0, 0, 0));
    }

    #[test]
    fn what_was_kept_whole_is_brought_over() {
        let directory = tempfile::tempdir().unwrap();
        let database = redb::Database::create(directory.path().join("t.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut whole = transaction.open_table(WHOLE).unwrap();
            for number in 0..7_u8 {
                let text =
                    r#"{"history": [{"speaker": "user", "text": "hm"}], "reply": "so", "applied": [1, 2], "used": 3}"#;
                whole.insert(&[b's', 0, number][..], text.as_bytes()).unwrap();
            }
            whole.insert(&b"s\0bad"[..], &b"{"[..]).unwrap();
        }
        transaction.commit().unwrap();
        while migrate(&database, 3).unwrap() {}
        assert!(!migrate(&database, 3).unwrap());
        assert_eq!(rows(&database), (7, 7, 7));
        let known = load(&database.begin_read().unwrap(), &[b's', 0, 4]).unwrap().unwrap();
        let reply = Some("so".into());
        let history = VecDeque::from([said("hm")]);
        assert_eq!(
            known,
            StoredConversation {
                history,
                first: 0,
                reply,
                groups: Vec::new(),
                former: Vec::new(),
                applied: (1, 2).into(),
                used: 3
            }
        );
    }
}
