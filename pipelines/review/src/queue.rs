//! The queue: the journal, and what it says.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use turnflow_engine::connector::{
    ConnectorError, Judgement, ReviewError, ReviewItem, ReviewList, ReviewPage, ReviewQueue,
};
use turnflow_engine::record::AnswerRecord;

use crate::book::{Book, Entry, said};
use crate::item;
use crate::journal::{Journal, Judged, Left, Line, Queued};
use crate::rule::{RuleConfig, checks, observed};
use crate::verdicts::check;

/// Verdicts of a line, at most: for each item, the whole line of its verdict is read.
const LINE: usize = 20;

/// A queue. Its calls wait for the disk.
pub struct Queue {
    node: Arc<str>,
    kept: Mutex<Kept>,
}

struct Kept {
    journal: Journal,
    book: Book,
}

/// What the sink wants of a queue.
pub struct Wanted<'a> {
    /// The rules, by name.
    pub rules: &'a BTreeMap<String, RuleConfig>,
    /// Most open answers.
    pub max_open: usize,
}

/// How many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Open answers.
    pub open: usize,
    /// Judged answers.
    pub judged: usize,
    /// Answers for which there was no room.
    pub left_out: u64,
}

/// The present, in seconds since 1970.
pub fn now() -> f64 {
    // Whole milliseconds are the same when they are read back.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0)
}

impl Kept {
    /// Reads what others have written.
    fn follow(&mut self) -> Result<(), ConnectorError> {
        let Self { journal, book } = self;
        journal.follow(|line| match line {
            Some((line, place)) => book.take(&line, place),
            None => *book = Book::default(),
        })
    }

    /// Writes a line, and takes it in.
    fn write(&mut self, line: &Line) -> Result<(), ConnectorError> {
        let place = self.journal.append(line)?;
        self.book.take(line, place);
        Ok(())
    }

    /// Runs a call while nobody else writes, after reading what others have written. What the call writes is on the disk
    /// when this returns; if it fails, nothing of it is.
    fn alone<T, E: From<ConnectorError>>(&mut self, call: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let _alone = self.journal.alone()?;
        self.follow()?;
        let before = self.journal.end();
        let done = call(self).and_then(|done| match self.journal.end() == before {
            true => Ok(done),
            false => self.journal.sync().map(|()| done).map_err(E::from),
        });
        if done.is_err() && self.journal.end() != before {
            self.journal.cut(before);
            self.book = Book::default();
            self.follow()?;
        }
        done
    }

    fn counts(&self) -> Counts {
        let (open, judged) = self.book.counts();
        Counts { open, judged, left_out: self.book.left_out }
    }

    /// The item of an entry, with its verdict.
    fn item(&mut self, Entry { place, verdict, .. }: &Entry) -> Result<ReviewItem, ConnectorError> {
        let wrong = || ConnectorError::Unreadable { reason: "the review queue has changed: read it again".to_owned() };
        let Line::Item(queued) = self.journal.line(*place)? else { return Err(wrong()) };
        let mut item = queued.item;
        if let Some((place, at, _)) = verdict {
            let Line::Judged(all) = self.journal.line(*place)? else { return Err(wrong()) };
            item.judgement = Some(all.into_iter().nth(*at).ok_or_else(wrong)?.judgement);
        }
        Ok(item)
    }
}

impl Wanted<'_> {
    /// What a record adds to a book, if anything.
    fn line(&self, book: &Book, record: &AnswerRecord, names: &BTreeSet<String>) -> Option<Line> {
        let (key, version) = (&record.key, item::version(record));
        let last = book.last(key);
        if record.withdrawn {
            return last.map(|_| Line::Gone { key: key.clone() });
        }
        // Another answer follows.
        if record.retracted || last.is_some_and(|last| version <= last.version) {
            return None;
        }
        let observed = observed(record, names);
        let taken = self.rules.iter().filter(|(_, rule)| rule.takes(&observed));
        let mut rules: Vec<Arc<str>> = taken.map(|(name, _)| name.as_str().into()).collect();
        if rules.is_empty() && last.is_none_or(|last| last.verdict.is_some()) {
            return None;
        }
        let says = item::says(record);
        if last.is_some_and(|last| *last.says == *says) {
            return None;
        }
        match last.filter(|last| last.verdict.is_none()) {
            // Who judges it sees the answer of now, and why the turn is in the queue.
            Some(open) => {
                rules.extend(open.rules.iter().filter(|rule| !rules.contains(rule)).cloned().collect::<Vec<_>>())
            }
            None if book.is_left(key, version) => return None,
            None if book.counts().0 >= self.max_open => {
                let (epoch, revision) = version;
                return Some(Line::Left(Left { key: key.clone(), epoch, revision, rules, at: now() }));
            }
            None => {}
        }
        Some(Line::Item(Box::new(Queued { key: key.clone(), says, item: item::item(record, rules, now()) })))
    }
}

impl Queue {
    /// Opens the queue of a node, or creates it.
    ///
    /// # Errors
    ///
    /// The journal cannot be read or written.
    pub fn open(node: &str, path: &Path) -> Result<Self, ConnectorError> {
        let queue = Self::of(node, Journal::open(path)?);
        queue.kept.lock().alone(|kept| kept.journal.begin())?;
        Ok(queue)
    }

    /// Opens the queue of a node to read it, if it exists.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    pub fn existing(node: &str, path: &Path) -> Result<Option<Self>, ConnectorError> {
        if !path.exists() {
            return Ok(None);
        }
        let queue = Self::of(node, Journal::existing(path)?);
        queue.kept.lock().follow()?;
        Ok(Some(queue))
    }

    fn of(node: &str, journal: Journal) -> Self {
        Self { node: node.into(), kept: Mutex::new(Kept { journal, book: Book::default() }) }
    }

    /// Takes answers. They are on the disk when this returns, if a rule takes them.
    ///
    /// # Errors
    ///
    /// The journal cannot be read or written; then it has none of them.
    pub fn take(&self, records: &[AnswerRecord], wanted: &Wanted<'_>) -> Result<Counts, ConnectorError> {
        let names = checks(wanted.rules.values());
        let mut kept = self.kept.lock();
        kept.follow()?;
        // Most answers concern nobody. Others write verdicts only, by which no answer comes.
        let is_quiet = |record: &AnswerRecord| wanted.line(&kept.book, record, &names).is_none();
        if records.iter().all(is_quiet) {
            return Ok(kept.counts());
        }
        kept.alone(|kept| {
            for record in records {
                if let Some(line) = wanted.line(&kept.book, record, &names) {
                    kept.write(&line)?;
                }
            }
            Ok(kept.counts())
        })
    }

    /// How many there are.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    pub fn counts(&self) -> Result<Counts, ConnectorError> {
        let mut kept = self.kept.lock();
        kept.follow()?;
        Ok(kept.counts())
    }

    /// Takes verdicts: all of them, or none if one cannot be taken. Those that an answer has or had already are left out, so
    /// that the same file can be given again, as after a kill. Returns how many are new.
    ///
    /// # Errors
    ///
    /// Verdicts that cannot be taken, by their places, or why the journal cannot be written.
    pub fn judge_all(&self, verdicts: &[Judged]) -> Result<usize, Vec<(usize, ReviewError)>> {
        let mut kept = self.kept.lock();
        let taken = kept.alone(|kept| {
            let (mut new, mut errors) = (Vec::new(), Vec::new());
            let mut seen = HashSet::new();
            // What is said twice counts where it is said last.
            for (at, judged) in verdicts.iter().enumerate().rev() {
                match kept.verdict(judged, |before, this| before.contains(this)) {
                    Ok(verdict) if seen.insert((&judged.id, said(&judged.judgement))) => new.extend(verdict),
                    Ok(_) => {}
                    Err(error) => errors.push((at, error)),
                }
            }
            new.reverse();
            errors.reverse();
            if !errors.is_empty() {
                return Err(Refused(errors));
            }
            for part in new.chunks(LINE) {
                kept.write(&Line::Judged(part.to_vec()))?;
            }
            Ok(new.len())
        });
        taken.map_err(|Refused(errors)| errors)
    }

    /// All that was judged last, the oldest turn first; of a turn, the last answer.
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    pub fn judged(&self) -> Result<Vec<ReviewItem>, ConnectorError> {
        let mut kept = self.kept.lock();
        kept.follow()?;
        let entries: Vec<Entry> = kept.book.last_judged().cloned().collect();
        entries.iter().map(|entry| kept.item(entry)).collect()
    }
}

/// Verdicts that are not taken.
struct Refused(Vec<(usize, ReviewError)>);

impl From<ConnectorError> for Refused {
    fn from(error: ConnectorError) -> Self {
        Self(vec![(0, error.into())])
    }
}

impl Kept {
    /// The answer with this id.
    fn known(&self, id: &str) -> Result<&Entry, ReviewError> {
        self.book.entry(id).ok_or_else(|| match self.book.last_of(id) {
            Some(last) => ReviewError::Replaced { now: last.id.clone() },
            None => ReviewError::Unknown(id.to_owned()),
        })
    }

    /// A verdict as it is kept; `None` if it is there already, by the hashes of the verdicts before and of this one.
    fn verdict(
        &self,
        judged: &Judged,
        is_known: impl Fn(&[[u8; 8]], &[u8; 8]) -> bool,
    ) -> Result<Option<Judged>, ReviewError> {
        let Judged { id, judgement } = judged;
        let entry = self.known(id)?;
        check(judgement).map_err(ReviewError::Invalid)?;
        if is_known(&entry.said, &said(judgement)) {
            return Ok(None);
        }
        let at = if judgement.at > 0.0 { judgement.at } else { now() };
        Ok(Some(Judged { id: id.clone(), judgement: Judgement { at, ..judgement.clone() } }))
    }
}

impl ReviewQueue for Queue {
    fn node(&self) -> &str {
        &self.node
    }

    fn list(&self, page: &ReviewPage) -> Result<ReviewList, ReviewError> {
        let mut kept = self.kept.lock();
        kept.follow()?;
        let (after, most) = (page.after.as_deref(), page.limit.saturating_add(1));
        let of_rule =
            |entry: &&Entry| page.rule.as_deref().is_none_or(|rule| entry.rules.iter().any(|of| **of == *rule));
        let entries: Option<Vec<Entry>> = match page.judged {
            true => kept.book.judged_after(after).map(|all| all.filter(of_rule).take(most).cloned().collect()),
            false => kept.book.open_after(after).map(|all| all.filter(of_rule).take(most).cloned().collect()),
        };
        let entries = entries.ok_or_else(|| ReviewError::Unknown(after.unwrap_or_default().to_owned()))?;
        let items = entries.iter().take(page.limit).map(|entry| kept.item(entry)).collect::<Result<_, _>>()?;
        let Counts { open, judged, left_out } = kept.counts();
        Ok(ReviewList { items, open, judged, left_out, has_more: entries.len() > page.limit })
    }

    fn item(&self, id: &str) -> Result<ReviewItem, ReviewError> {
        let mut kept = self.kept.lock();
        kept.follow()?;
        let entry = kept.known(id)?.clone();
        Ok(kept.item(&entry)?)
    }

    fn judge(&self, id: &str, judgement: &Judgement) -> Result<ReviewItem, ReviewError> {
        let mut kept = self.kept.lock();
        let judged = Judged { id: id.into(), judgement: judgement.clone() };
        kept.alone(|kept| {
            if let Some(judged) = kept.verdict(&judged, |before, this| before.last() == Some(this))? {
                kept.write(&Line::Judged(vec![judged]))?;
            }
            let entry = kept.known(id)?.clone();
            Ok(kept.item(&entry)?)
        })
    }
}

#[cfg(test)]
impl Queue {
    /// Has the next lines written to another file.
    pub(crate) fn break_journal(&self, path: Option<&Path>) {
        let journal = &mut self.kept.lock().journal;
        match path {
            Some(path) => journal.break_off(path),
            None => journal.mend(),
        }
    }
}
