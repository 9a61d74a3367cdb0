//! What the sink keeps: the rules at work, the journal and the file of alerts. A reload builds another sink of a node while
//! the former one still gets answers; both have the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use turnflow_engine::connector::{AlertStates, AlertStatus, ConnectorError};
use turnflow_engine::record::AnswerRecord;

use crate::config::Clock;
use crate::gap::Gaps;
use crate::journal::{Journal, Line};
use crate::observation::Observation;
use crate::outbox;
use crate::saved::{Change, Saved};
use crate::sink::AlertsConfig;
use crate::watch::Watch;

/// Seconds by which a clock may go back before it was wrong until then.
const WRONG: f64 = 60.0;
/// The file in the node's directory below the state.
const FILE: &str = "alerts.jsonl";

/// What is open in this process, by journal.
static OPEN: Mutex<BTreeMap<PathBuf, Weak<Mutex<Kept>>>> = Mutex::new(BTreeMap::new());

/// Says the present, in seconds since 1970.
pub(crate) type Now = Arc<dyn Fn() -> f64 + Send + Sync>;

/// The rules at work and what they keep.
pub(crate) struct Kept {
    node: Arc<str>,
    now: Now,
    /// Where the journal is; `None`: the run keeps nothing.
    path: Option<PathBuf>,
    journal: Option<Journal>,
    watch: Watch,
    gaps: Option<(PathBuf, Gaps)>,
    /// The configurations of the open sinks, each with a number; the last one counts.
    configs: Vec<(u64, Arc<AlertsConfig>)>,
    next: u64,
    /// There may be something in memory that could not be written.
    is_stale: bool,
    /// Whether it was said that something cannot be written or read.
    has_warned: bool,
}

/// A sink's part in it; it ends with the sink.
pub(crate) struct Member {
    pub kept: Arc<Mutex<Kept>>,
    number: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut kept = self.kept.lock();
        let last = kept.configs.last().map(|(number, _)| *number);
        kept.configs.retain(|(number, _)| *number != self.number);
        // A reload that failed: the former rules go on.
        if last == Some(self.number) {
            kept.set_rules();
        }
    }
}

impl Member {
    /// Opens what the sink of a node keeps, or joins the sink that has it open.
    pub fn open(
        node: &str,
        config: Arc<AlertsConfig>,
        directory: Option<PathBuf>,
        now: Now,
    ) -> Result<Self, ConnectorError> {
        let path = directory.map(|directory| directory.canonicalize().unwrap_or(directory).join(FILE));
        let mut open = OPEN.lock();
        let known = path.as_ref().and_then(|path| open.get(path)?.upgrade());
        let kept = match known {
            Some(kept) => kept,
            None => {
                let kept = Arc::new(Mutex::new(Kept::open(node, &config, path.clone(), now)?));
                open.retain(|_, kept| kept.strong_count() > 0);
                if let Some(path) = path {
                    open.insert(path, Arc::downgrade(&kept));
                }
                kept
            }
        };
        drop(open);
        let number = {
            let mut kept = kept.lock();
            kept.next += 1;
            let number = kept.next;
            kept.configs.push((number, config));
            kept.set_rules();
            number
        };
        Ok(Self { kept, number })
    }
}

impl Kept {
    fn open(node: &str, config: &AlertsConfig, path: Option<PathBuf>, now: Now) -> Result<Self, ConnectorError> {
        let saved = match path.as_deref().map(Journal::read).transpose()?.flatten() {
            Some(saved) => saved,
            None => {
                let file = &config.path.path;
                let found = outbox::recover(file, node);
                let io = |source| ConnectorError::Io { action: "read", path: file.display().to_string(), source };
                let (last, states) = found.map_err(io)?;
                Saved { made: last, told: last, states, ..Saved::default() }
            }
        };
        // A source that reads it once must find it.
        let path_of_file = config.path.path.display();
        if let Err(error) = outbox::append(&config.path.path, std::iter::empty()) {
            tracing::warn!("cannot write `{path_of_file}`: {error}; it is tried again");
        }
        let since = match config.time {
            Clock::Answered => now(),
            Clock::Asked => 0.0,
        };
        let journal = path.as_deref().map(|path| Journal::write(path, &saved)).transpose()?;
        Ok(Self {
            node: node.into(),
            now,
            path,
            journal,
            watch: Watch::new(node, saved, since),
            gaps: None,
            configs: Vec::new(),
            next: 0,
            is_stale: false,
            has_warned: false,
        })
    }

    fn config(&self) -> Option<Arc<AlertsConfig>> {
        self.configs.last().map(|(_, config)| config.clone())
    }

    fn set_rules(&mut self) {
        let Some(config) = self.config() else { return };
        self.watch.set_rules(&config.rules);
        let path = config.gaps.as_ref().map(|gaps| gaps.path.clone());
        if self.gaps.as_ref().map(|(path, _)| path) != path.as_ref() {
            self.gaps = path.map(|path| (path.clone(), Gaps::new(path)));
        }
        if config.time == Clock::Answered {
            self.watch.advance((self.now)());
        }
    }

    /// The present, in a run by the time of answers.
    fn present(&mut self) -> Result<f64, ConnectorError> {
        let now = (self.now)();
        let is_by_clock = self.config().is_some_and(|config| config.time == Clock::Answered);
        if is_by_clock && now + WRONG < self.watch.now() {
            tracing::warn!("the clock has gone back; alerts go on with the time that it says now");
            self.watch.put_back(now);
            let anew = self.path.as_deref().map(|path| Journal::write(path, &self.watch.saved)).transpose();
            self.is_stale |= anew.is_err();
            self.journal = anew?.or(self.journal.take());
        }
        Ok(now)
    }

    /// Reads the journal again, if there may be something in memory that could not be written.
    fn refresh(&mut self) -> Result<(), ConnectorError> {
        if !self.is_stale {
            return Ok(());
        }
        if let Some(path) = &self.path {
            let saved = Journal::read(path)?.unwrap_or_default();
            self.journal = Some(Journal::write(path, &saved)?);
            self.watch = Watch::new(&self.node, saved, self.watch.since());
            self.set_rules();
        }
        self.is_stale = false;
        Ok(())
    }

    /// Takes answers. They are on the disk when it returns, with what the rules made of them.
    pub fn take(&mut self, records: &[AnswerRecord]) -> Result<(), ConnectorError> {
        self.refresh()?;
        let Some(config) = self.config() else { return Ok(()) };
        let (present, checks) = (self.present()?, self.watch.checks());
        let (mut observations, mut changes) = (Vec::new(), Vec::new());
        for record in records {
            let Some(at) = self.time(record, &config, present) else { continue };
            let observation = Observation::of(record, at, &checks);
            if self.watch.knows(&observation) {
                continue;
            }
            // What was in the window before may have left it meanwhile.
            self.watch.advance(at);
            changes.append(&mut self.watch.evaluate());
            self.watch.note(observation.clone());
            changes.append(&mut self.watch.evaluate());
            observations.push(observation);
        }
        self.write(observations, changes)?;
        self.tell();
        Ok(())
    }

    /// When an answer counts; `None` if it is too old for every window.
    fn time(&self, record: &AnswerRecord, config: &AlertsConfig, present: f64) -> Option<f64> {
        let now = self.watch.now();
        if config.time == Clock::Answered {
            return Some(present.max(now));
        }
        let asked = record.timestamp.filter(|time| *time > 0.0);
        // A time in the future would make all others old.
        let asked = asked.unwrap_or(present).min(present);
        // Turns of other conversations may come late. Time does not go back for them.
        let is_new = record.revision == 0 && !record.retracted;
        (!is_new || asked > now - self.watch.longest()).then(|| asked.max(now))
    }

    /// Looks at the rules without an answer.
    pub fn tick(&mut self) -> Result<(), ConnectorError> {
        self.refresh()?;
        let Some(config) = self.config() else { return Ok(()) };
        if config.time == Clock::Answered {
            let now = self.present()?;
            self.watch.advance(now);
        }
        self.follow_gaps();
        let mut changes = Vec::new();
        if config.time == Clock::Answered || self.gaps.is_some() {
            changes = self.watch.evaluate();
        }
        // While a reload may still fail, the former rules may come back.
        if self.configs.len() == 1 {
            changes.append(&mut self.watch.clear_removed());
        }
        self.write(Vec::new(), changes)?;
        self.tell();
        Ok(())
    }

    fn follow_gaps(&mut self) {
        let Some((path, gaps)) = &mut self.gaps else { return };
        if let Err(error) = gaps.follow() {
            if !std::mem::replace(&mut self.has_warned, true) {
                let path = path.display();
                tracing::warn!(%error, "cannot read the journal of gaps `{path}`; it is tried again");
            }
            return;
        }
        for (rule, after) in self.watch.of_gaps() {
            self.watch.growth.insert(rule, gaps.growth(after));
        }
    }

    fn write(&mut self, observations: Vec<Observation>, changes: Vec<Change>) -> Result<(), ConnectorError> {
        if observations.is_empty() && changes.is_empty() {
            return Ok(());
        }
        let line = Line::Batch { now: self.watch.now(), observations, changes };
        self.append(&line)
    }

    fn append(&mut self, line: &Line) -> Result<(), ConnectorError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut written = journal.append(line);
        if written.is_ok() && journal.is_long() {
            let anew = self.path.as_deref().map(|path| Journal::write(path, &self.watch.saved)).transpose();
            match anew {
                Ok(anew) => self.journal = anew.or(self.journal.take()),
                Err(error) => written = Err(error),
            }
        }
        self.is_stale |= written.is_err();
        written
    }

    /// Writes the records that the file of alerts does not have. What cannot be written now is written later.
    fn tell(&mut self) {
        let Some(last) = self.watch.saved.outbox.back().map(|record| record.turn) else { return };
        let Some(config) = self.config() else { return };
        let path = &config.path.path;
        let told = outbox::append(path, self.watch.saved.outbox.iter())
            .map_err(|error| format!("cannot write `{}`: {error}", path.display()));
        if let Err(error) = told {
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!(error, "alerts cannot be written; it is tried again");
            }
            return;
        }
        self.has_warned = false;
        for record in self.watch.saved.outbox.drain(..) {
            tracing::info!(alert = record.alert, "{}", record.text);
        }
        self.watch.saved.told = last;
        // If this fails, the file is asked at the next start.
        let _ = self.append(&Line::Told { number: last });
    }
}

/// The states of the rules, for who asks.
pub(crate) struct States(pub Weak<Mutex<Kept>>);

impl AlertStates for States {
    fn alerts(&self) -> Vec<AlertStatus> {
        self.0.upgrade().map(|kept| kept.lock().watch.status()).unwrap_or_default()
    }
}

#[cfg(test)]
impl Kept {
    /// The rules at work.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Has the next lines written to another file.
    pub(crate) fn break_journal(&mut self, path: &std::path::Path) {
        self.journal.iter_mut().for_each(|journal| journal.break_off(path));
    }
}
