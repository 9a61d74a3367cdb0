//! How far long work is: bars on a terminal, and elsewhere a line a minute on standard error.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use turnflow_engine::publish::CorpusProgress;
use turnflow_engine::run::{Engine, RunError};
use turnflow_engine::wording::count;

const TICK: Duration = Duration::from_millis(100);
/// How often a line is printed where there is no terminal.
const MINUTE: Duration = Duration::from_secs(60);

/// A bar of this length; hidden if standard error is not a terminal.
pub(super) fn bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), target());
    styled(&bar, what);
    bar
}

/// Standard error, if it is a terminal.
fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

fn styled(bar: &ProgressBar, what: &str) {
    let style = ProgressStyle::with_template("{msg:24} {bar:32} {pos}/{len} {per_sec} {eta}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
}

/// Prints a line a minute, from the first minute on, if standard error is not a terminal.
pub(super) struct Minutes {
    begun: Instant,
    /// When the next line is due.
    next: Duration,
    is_shown: bool,
}

impl Minutes {
    pub fn new() -> Self {
        Self { begun: Instant::now(), next: MINUTE, is_shown: !std::io::stderr().is_terminal() }
    }

    /// Prints a line, if one is due.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.is_shown && self.is_due(self.begun.elapsed()) {
            eprintln!("{}", line());
        }
    }

    fn is_due(&mut self, since: Duration) -> bool {
        let is_due = since >= self.next;
        if is_due {
            // Lines that were missed are not printed later.
            self.next = MINUTE * (since.as_secs() / MINUTE.as_secs() + 1) as u32;
        }
        is_due
    }
}

/// A corpus that is indexed.
struct Corpus {
    name: Arc<str>,
    progress: Arc<CorpusProgress>,
    bar: ProgressBar,
    /// Whether the bar shows how many passages are embedded, and not only what was read.
    has_length: bool,
}

impl Corpus {
    /// What was read, and what a model has computed.
    fn told(&self) -> String {
        let get = CorpusProgress::get;
        let (documents, cut) = (get(&self.progress.documents) as usize, get(&self.progress.cut) as usize);
        let read = format!("{} read, {}", count(documents, "document"), count(cut, "passage"));
        match (get(&self.progress.prepared), get(&self.progress.prepare)) {
            (_, 0) => read,
            (prepared, all) => format!("{read}, {prepared} of {all} embedded"),
        }
    }

    fn draw(&mut self) {
        let all = CorpusProgress::get(&self.progress.prepare);
        if all == 0 {
            self.bar.set_message(format!("indexing {}: {}", self.name, self.told()));
            return;
        }
        if !std::mem::replace(&mut self.has_length, true) {
            styled(&self.bar, &format!("indexing {}", self.name));
        }
        self.bar.set_length(all);
        self.bar.set_position(CorpusProgress::get(&self.progress.prepared));
    }
}

/// Shows how far the corpora of engines are.
pub(super) struct Indexing {
    corpora: Vec<Corpus>,
    minutes: Minutes,
}

impl Indexing {
    pub fn of<'a>(engines: impl Iterator<Item = &'a Engine>) -> Self {
        let group = indicatif::MultiProgress::with_draw_target(target());
        // Add all bars first: a bar that is drawn before it is in the group leaves a stray line.
        let corpora = engines.flat_map(Engine::corpora).map(|(name, progress, _)| {
            let bar = group.add(ProgressBar::new(0));
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            Corpus { name, progress, bar, has_length: false }
        });
        Self { corpora: corpora.collect(), minutes: Minutes::new() }
    }

    /// Shows what has come since.
    pub fn draw(&mut self) {
        self.corpora.iter_mut().for_each(Corpus::draw);
        let Self { corpora, minutes } = self;
        minutes.tell(|| {
            let told: Vec<String> =
                corpora.iter().map(|corpus| format!("{}: {}", corpus.name, corpus.told())).collect();
            format!("indexing {}", told.join("; "))
        });
    }

    /// Removes the bars.
    pub fn end(self) {
        self.corpora.iter().for_each(|corpus| corpus.bar.finish_and_clear());
    }
}

/// Waits until every corpus is published, and shows the progress of each. Returns false if `is_stopped` comes first.
pub(super) fn wait_ready(engine: &Engine, is_stopped: impl Fn() -> bool) -> Result<bool, RunError> {
    wait(engine, Engine::wait_ready_for, is_stopped)
}

/// The same until callers are answered.
pub(super) fn wait_serving(engine: &Engine) -> Result<bool, RunError> {
    wait(engine, Engine::wait_serving_for, || false)
}

fn wait(
    engine: &Engine,
    until: impl Fn(&Engine, Duration) -> Result<bool, RunError>,
    is_stopped: impl Fn() -> bool,
) -> Result<bool, RunError> {
    let mut indexing = Indexing::of(std::iter::once(engine));
    let is_ready = loop {
        indexing.draw();
        let is_ready = until(engine, TICK)?;
        if is_ready || is_stopped() {
            break is_ready;
        }
    };
    indexing.end();
    Ok(is_ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_once_a_minute_and_not_in_the_first() {
        let mut minutes = Minutes::new();
        let mut due = |seconds| minutes.is_due(Duration::from_secs(seconds));
        assert_eq!([due(0), due(59), due(60), due(61), due(119), due(120)], [false, false, true, false, false, true]);
        // After a long call, one line comes, and not one for each minute.
        assert_eq!([due(500), due(501), due(539), due(540)], [true, false, false, true]);
    }
}
