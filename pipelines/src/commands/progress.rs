//! Progress on a terminal; nothing in a pipe.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use turnflow_engine::publish::CorpusProgress;
use turnflow_engine::run::{Engine, RunError};

const TICK: Duration = Duration::from_millis(100);

/// A bar for so many of something; hidden when standard error is no terminal.
pub(super) fn bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{msg:24} {bar:32} {pos}/{len} {per_sec} {eta}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

/// Waits until every corpus is published, and shows how far each is.
pub(super) fn wait_ready(engine: &Engine) -> Result<(), RunError> {
    let corpora = engine.corpora();
    let bars: Vec<ProgressBar> = corpora.iter().map(|(name, ..)| bar(0, &format!("indexing {name}"))).collect();
    let group = indicatif::MultiProgress::with_draw_target(if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    });
    let bars: Vec<ProgressBar> = bars.into_iter().map(|bar| group.add(bar)).collect();
    loop {
        for (bar, (_, progress, _)) in bars.iter().zip(&corpora) {
            bar.set_length(CorpusProgress::get(&progress.prepare));
            bar.set_position(CorpusProgress::get(&progress.prepared));
        }
        if engine.wait_ready_for(TICK)? {
            break;
        }
    }
    bars.iter().for_each(ProgressBar::finish_and_clear);
    Ok(())
}
