//! Plots as SVG, in the colours of the page.

use std::fmt::Write as _;

use super::escape::Text;
use super::series::{Bar, Bin};

const HEIGHT: f64 = 220.0;
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 46.0;
const TOP: f64 = 12.0;

/// The distance from the top for a value from 0 to 1.
fn y(value: f64) -> f64 {
    TOP + (1.0 - value.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM)
}

fn axes(out: &mut String, width: f64, title: &str) {
    let _ = write!(
        out,
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {width:.0} {HEIGHT:.0}\" width=\"{width:.0}\" \
         role=\"img\" aria-label=\"{title}\">",
        title = Text(title)
    );
    for step in 0..=5 {
        let value = f64::from(step) / 5.0;
        let at = y(value);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{x:.0}\" y=\"{base:.1}\" text-anchor=\"end\">{value:.1}</text>",
            right = width - 8.0,
            x = LEFT - 6.0,
            base = at + 4.0,
        );
    }
}

/// Bars with confidence intervals; a second run has a second colour.
pub(super) fn bars(title: &str, first: &[Bar], second: Option<&[Bar]>) -> String {
    let mut labels: Vec<&str> = first.iter().chain(second.unwrap_or_default()).map(|bar| bar.label.as_str()).collect();
    labels.sort_unstable();
    labels.dedup();
    let runs: Vec<&[Bar]> = [Some(first), second].into_iter().flatten().collect();
    let slot = if labels.len() > 6 { 58.0 } else { 92.0 };
    let width = LEFT + 16.0 + slot * labels.len().max(1) as f64;
    let bar_width = (slot - 20.0) / runs.len() as f64;
    let mut out = String::new();
    axes(&mut out, width, title);
    for (place, label) in labels.iter().enumerate() {
        let left = LEFT + 10.0 + slot * place as f64;
        let mut tasks = 0;
        for (run, bars) in runs.iter().enumerate() {
            let Some(bar) = bars.iter().find(|bar| bar.label == *label) else { continue };
            tasks = tasks.max(bar.tasks);
            let x = left + 2.0 + bar_width * run as f64;
            let (top, base) = (y(bar.interval.mean), y(0.0));
            let middle = x + bar_width / 2.0 - 1.0;
            let _ = write!(
                out,
                "<rect class=\"run{run}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{w:.1}\" height=\"{h:.1}\">\
                 <title>{label}: {mean:.4} ({low:.3} to {high:.3}), {n} tasks</title></rect>\
                 <line class=\"interval\" x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\"/>",
                w = bar_width - 2.0,
                h = (base - top).max(0.5),
                label = Text(label),
                mean = bar.interval.mean,
                low = bar.interval.low,
                high = bar.interval.high,
                n = bar.tasks,
                y1 = y(bar.interval.low),
                y2 = y(bar.interval.high),
            );
        }
        let middle = left + (slot - 20.0) / 2.0;
        let _ = write!(
            out,
            "<text x=\"{middle:.1}\" y=\"{line:.1}\" text-anchor=\"middle\">{label}</text>\
             <text class=\"count\" x=\"{middle:.1}\" y=\"{next:.1}\" text-anchor=\"middle\">{tasks}</text>",
            line = HEIGHT - BOTTOM + 18.0,
            next = HEIGHT - BOTTOM + 33.0,
            label = Text(label),
        );
    }
    out + "</svg></figure>"
}

/// A reliability diagram: the share of answerable tasks by score. On the diagonal, scores are calibrated
/// probabilities.
pub(super) fn reliability(score: &str, first: &[Bin], second: Option<&[Bin]>) -> String {
    let width = 420.0;
    let x = |value: f64| LEFT + value.clamp(0.0, 1.0) * (width - LEFT - 12.0);
    let mut out = String::new();
    axes(&mut out, width, "Reliability: the share of answerable tasks, by score");
    let _ = write!(
        out,
        "<line class=\"diagonal\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        x(0.0),
        y(0.0),
        x(1.0),
        y(1.0)
    );
    for (run, bins) in [Some(first), second].into_iter().flatten().enumerate() {
        let points: Vec<String> =
            bins.iter().map(|bin| format!("{:.1},{:.1}", x(bin.score), y(bin.answerable))).collect();
        let _ = write!(out, "<polyline class=\"line{run}\" points=\"{}\"/>", points.join(" "));
        for bin in bins {
            let _ = write!(
                out,
                "<circle class=\"run{run}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{:.3}: {:.3} of {} tasks</title></circle>",
                x(bin.score),
                y(bin.answerable),
                bin.score,
                bin.answerable,
                bin.tasks
            );
        }
    }
    for step in 0..=5 {
        let value = f64::from(step) / 5.0;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.1}</text>",
            x(value),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = write!(
        out,
        "<text class=\"count\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        x(0.5),
        HEIGHT - BOTTOM + 36.0,
        Text(score)
    );
    out + "</svg></figure>"
}
