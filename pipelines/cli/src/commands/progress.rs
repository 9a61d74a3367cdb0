//! Progress bars, on terminals only.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use turnflow_engine::publish::CorpusProgress;
use turnflow_engine::run::{Engine, RunError};

const TICK: Duration = Duration::from_millis(100);

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
    let corpora = engine.corpora();
    let group = indicatif::MultiProgress::with_draw_target(target());
    // Add all bars first: a bar that is drawn before it is in the group leaves a stray line.
    let added = |(name, ..): &(Arc<str>, _, _)| {
        let bar = group.add(ProgressBar::new(0));
        styled(&bar, &format!("indexing {name}"));
        bar
    };
    let bars: Vec<ProgressBar> = corpora.iter().map(added).collect();
    let is_ready = loop {
        for (bar, (_, progress, _)) in bars.iter().zip(&corpora) {
            bar.set_length(CorpusProgress::get(&progress.prepare));
            bar.set_position(CorpusProgress::get(&progress.prepared));
        }
        let is_ready = until(engine, TICK)?;
        if is_ready || is_stopped() {
            break is_ready;
        }
    };
    bars.iter().for_each(ProgressBar::finish_and_clear);
    Ok(is_ready)
}
