//! The page around the sections.

use super::escape::Text;
use super::{Report, sections};

/// The style of pages.
pub(crate) const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5c6675; --paper: #fff; --line: #d9dee6; --a: #2f6fb0; --b: #d8852b; --good: #2e8b57; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b4; --paper: #14181e; --line: #323a46; --a: #6aa7e6; --b: #e6a354; --good: #5dc48a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1.5rem; max-width: 72rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
.note, .kind, .count { color: var(--soft); font-size: .88em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.trace td { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85em; }
.sure { color: var(--good); font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: 1.2rem; }
figure { margin: 0; overflow-x: auto; } figcaption { font-weight: 600; margin-bottom: .2rem; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .count { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); } .interval { stroke: var(--ink); stroke-width: 1.5; } .diagonal { stroke: var(--soft); stroke-dasharray: 4 4; }
.run0 { fill: var(--a); } .run1 { fill: var(--b); } .line0, .line1 { fill: none; stroke-width: 2; } .line0 { stroke: var(--a); } .line1 { stroke: var(--b); }
.swatch { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; } .a { background: var(--a); margin-left: 0; } .b { background: var(--b); }
details { border: 1px solid var(--line); border-radius: 6px; padding: .4rem .8rem; margin: .4rem 0; } summary { cursor: pointer; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: 9rem 1fr; gap: .2rem 1rem; } dt { color: var(--soft); } dd { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.key { font-weight: 600; color: var(--ink); } ol { padding-left: 1.4rem; } li { overflow-wrap: anywhere; } .relevant code { color: var(--good); font-weight: 600; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } section { overflow-x: auto; } }
";

/// The name of a run next to another one; with its hash if both have the same pipeline name.
pub(super) fn name(report: &Report, other: &Report) -> String {
    if report.title == other.title {
        format!("{} {}", report.title, report.pipeline.get(..8).unwrap_or_default())
    } else {
        report.title.clone()
    }
}

/// The whole page.
pub(super) fn page(report: &Report, beside: Option<&Report>) -> String {
    let seconds = report.figures.get("seconds").and_then(serde_json::Value::as_f64);
    let took = seconds.map_or(String::new(), |seconds| format!(", {seconds:.1} s"));
    let scored = if report.hits.is_empty() { String::new() } else { format!(", hits of {}", Text(&report.hits)) };
    let file = if report.tasks_file.is_empty() { String::new() } else { format!(" of {}", Text(&report.tasks_file)) };
    let legend = beside.map_or(String::new(), |other| {
        format!(
            "<p><span class=\"swatch a\"></span>{}<span class=\"swatch b\"></span>{}</p>",
            Text(&name(report, other)),
            Text(&name(other, report))
        )
    });
    let body = [
        sections::summary(report, beside),
        sections::nodes(report),
        sections::abstention(report),
        sections::plots(report, beside),
        sections::worst(report, beside),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body>\
         <h1>{title}</h1><p class=\"note\">{tasks} tasks{file}{scored}{took}; pipeline <code>{hash}</code></p>{legend}{body}\
         </body></html>\n",
        title = Text(if report.title.is_empty() { "turnflow" } else { &report.title }),
        tasks = report.tasks.len(),
        hash = Text(report.pipeline.get(..16).unwrap_or(&report.pipeline)),
        body = body.concat(),
    )
}
