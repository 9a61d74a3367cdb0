//! Draws the numbers, or prints them.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};
use serde_json::Value;
use turnflow_engine::wording::count;

use super::numbers::{Node, Numbers};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().filter(|letter| !letter.is_control()).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn ms(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.2}"),
        Some(ms) if ms < 1000.0 => format!("{ms:.0}"),
        Some(ms) => format!("{:.1} s", ms / 1000.0),
    }
}

/// The lines above the tables.
fn summary(numbers: &Numbers) -> Vec<(String, Style)> {
    let status = numbers.status();
    let turns = &status["turns"];
    let rate = numbers.rate(|status| status["turns"]["answered"].as_f64());
    let is_loading = list(&status["corpora"]).any(|corpus| corpus["state"] == "loading");
    let state = match status["ready"] == true {
        true => "",
        false if is_loading => "  loading",
        false => "  reading the sources",
    };
    let standing = match turns["standing"].as_u64().unwrap_or_default() {
        0 => String::new(),
        standing => {
            format!("  standing {standing} ({} behind for {:.0} s)", turns["behind"], number(&turns["behind_s"]))
        }
    };
    let lines = [
        format!(
            "{}  epoch {}  up {:.0} s  {}{state}",
            numbers.name(),
            status["epoch"],
            number(&status["uptime_s"]),
            count(status["workers"].as_u64().unwrap_or_default(), "worker")
        ),
        format!(
            "turns: {rate:.1}/s  running {}  waiting {}  queued {}  answered {}  revised {}  dead letters {}{standing}",
            turns["running"],
            turns["waiting"],
            turns["queued"],
            turns["answered"],
            turns["revised"],
            turns["dead_letters"]
        ),
    ];
    let of_backup = &status["backup"];
    let backup = backup(of_backup, SystemTime::now());
    let problem = text_of(&of_backup["problem"]);
    let problem = (!problem.is_empty()).then(|| format!("the backup is not up to date: {problem}"));
    let away = list(&status["corpora"]).filter(|corpus| corpus["away_because"].is_string());
    let away = away.map(|corpus| format!("{}: {}", text_of(&corpus["name"]), text_of(&corpus["away_because"])));
    let away: Vec<String> = away.collect();
    let (bold, red) = (Style::new().add_modifier(Modifier::BOLD), Style::new().fg(Color::Red));
    let lines = lines.into_iter().zip([bold, Style::new()]);
    lines
        .chain(backup.map(|line| (line, Style::new())))
        .chain(problem.into_iter().chain(away).map(|line| (line, red)))
        .chain(alerts(status, SystemTime::now()).map(|(line, fires)| (line, if fires { red } else { Style::new() })))
        .collect()
}

/// A line for each rule that fires or is pending, and whether it fires.
fn alerts(status: &Value, now: SystemTime) -> impl Iterator<Item = (String, bool)> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    list(&status["alerts"]).filter(|alert| alert["state"] != "ok").map(move |alert| {
        let since = (now - number(&alert["since"])).max(0.0);
        let value = alert["value"].as_f64().map_or("no data".to_owned(), |value| format!("{value:.3}"));
        let (rule, state) = (text_of(&alert["rule"]), text_of(&alert["state"]));
        let line = format!(
            "alert: {rule}  {state} for {since:.0} s  {value} (threshold {})  {}",
            alert["threshold"],
            count(alert["n"].as_u64().unwrap_or_default(), "answer")
        );
        (line, state == "firing")
    })
}

/// The line about the backup, if there is one.
fn backup(status: &Value, now: SystemTime) -> Option<String> {
    let address = Some(text_of(&status["address"])).filter(|address| !address.is_empty())?;
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let complete = match status["complete_s"].as_u64() {
        Some(at) => format!("complete {} s ago", since.saturating_sub(at)),
        None => "not complete yet".to_owned(),
    };
    let megabytes = number(&status["bytes"]) / 1e6;
    Some(format!("backup: {complete}  copied {megabytes:.1} MB  failures {}  {address}", status["failures"]))
}

fn node_cells(node: &Node) -> [String; 8] {
    [
        node.id.clone(),
        node.kind.clone(),
        format!("{:.1}", node.rate),
        node.running.to_string(),
        ms(node.p50_ms),
        ms(node.p95_ms),
        node.calls.to_string(),
        node.failures.to_string(),
    ]
}

const NODES: [&str; 8] = ["node", "kind", "calls/s", "running", "p50 ms", "p95 ms", "calls", "failures"];
const CORPORA: [&str; 8] = ["corpus", "state", "documents", "passages", "epoch", "preparing", "embedded", "missing"];
const ENDS: [&str; 4] = ["source or sink", "waiting", "done", "problem"];

fn corpora(status: &Value) -> Vec<[String; 8]> {
    let row = |corpus: &Value| {
        let field = |name: &str| match &corpus[name] {
            Value::Null => "-".to_owned(),
            Value::String(_) => text_of(&corpus[name]),
            // Nothing is published yet.
            _ if name == "documents" && corpus["state"] == "loading" => format!("{} read", corpus["read"]),
            _ if name == "passages" && corpus["state"] == "loading" => format!("{} cut", corpus["cut"]),
            value => value.to_string(),
        };
        ["name", "state", "documents", "passages", "epoch", "preparing", "embedded", "missing"].map(field)
    };
    list(&status["corpora"]).map(row).collect()
}

fn ends(status: &Value) -> Vec<[String; 4]> {
    let source =
        |of: &Value| [text_of(&of["id"]), of["queued"].to_string(), "-".to_owned(), text_of(&of["away_because"])];
    let sink = |of: &Value| {
        [text_of(&of["id"]), of["pending"].to_string(), of["delivered"].to_string(), text_of(&of["fault"])]
    };
    list(&status["sources"]).map(source).chain(list(&status["sinks"]).map(sink)).collect()
}

/// Everything as text.
pub(super) fn text(numbers: &Numbers) -> String {
    let mut out: String = summary(numbers).into_iter().map(|(line, _)| line + "\n").collect();
    let mut table = |head: &[&str], rows: Vec<Vec<String>>| {
        if rows.is_empty() {
            return;
        }
        let width =
            |at: usize| rows.iter().map(|row| row[at].chars().count()).chain([head[at].len()]).max().unwrap_or(0);
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        out.push('\n');
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        for row in [head].iter().chain(&rows) {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            let _ = writeln!(out, "{}", cells.join("  ").trim_end());
        }
    };
    table(&NODES, numbers.nodes().iter().map(|node| node_cells(node).to_vec()).collect());
    table(&CORPORA, corpora(numbers.status()).iter().map(|row| row.to_vec()).collect());
    table(&ENDS, ends(numbers.status()).iter().map(|row| row.to_vec()).collect());
    out
}

fn head<'a, const N: usize>(cells: [&'a str; N]) -> Row<'a> {
    Row::new(cells).style(Style::new().add_modifier(Modifier::DIM))
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, numbers: &Numbers, problem: Option<&str>) {
    let (nodes, corpora, ends) = (numbers.nodes(), corpora(numbers.status()), ends(numbers.status()));
    let height = |rows: usize| Constraint::Length(u16::try_from(rows + 2).unwrap_or(u16::MAX));
    let lines = summary(numbers);
    let [top, of_nodes, of_corpora, of_ends, bottom] = Layout::vertical([
        Constraint::Length(u16::try_from(lines.len() + 1).unwrap_or(u16::MAX)),
        height(nodes.len()),
        height(corpora.len()),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let lines: Vec<Line<'_>> = lines.into_iter().map(|(line, style)| Line::styled(line, style)).collect();
    frame.render_widget(ratatui::text::Text::from(lines), top);
    let rows = nodes.iter().map(|node| {
        let style = if node.failures > 0 { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(node_cells(node)).style(style)
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Fill(2),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(9),
    ];
    frame.render_widget(Table::new(rows, widths).header(head(NODES)), of_nodes);
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(10),
    ];
    frame.render_widget(Table::new(corpora.into_iter().map(Row::new), widths).header(head(CORPORA)), of_corpora);
    let rows = ends.into_iter().map(|[id, waiting, done, problem]| {
        let style = if problem.is_empty() { Style::new() } else { Style::new().fg(Color::Red) };
        Row::new([Cell::from(id), Cell::from(waiting), Cell::from(done), Cell::from(problem)]).style(style)
    });
    let widths = [Constraint::Length(24), Constraint::Length(9), Constraint::Length(10), Constraint::Fill(1)];
    frame.render_widget(Table::new(rows, widths).header(head(ENDS)), of_ends);
    let told = match problem {
        Some(problem) => Span::styled(problem.to_owned(), Style::new().fg(Color::Red)),
        None => Span::styled("q quits", Style::new().add_modifier(Modifier::DIM)),
    };
    frame.render_widget(Line::from(told), bottom);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn alerts_that_are_not_well_have_a_line() {
        let alert = |state: &str, value: Value| json!({"rule": "declined", "state": state, "value": value, "threshold": 0.3, "n": 50, "since": 40.0});
        let all = [alert("ok", json!(0.1)), alert("pending", json!(0.42)), alert("firing", Value::Null)];
        let lines: Vec<_> = alerts(&json!({ "alerts": all }), UNIX_EPOCH + Duration::from_secs(100)).collect();
        let expected = [
            ("alert: declined  pending for 60 s  0.420 (threshold 0.3)  50 answers".to_owned(), false),
            ("alert: declined  firing for 60 s  no data (threshold 0.3)  50 answers".to_owned(), true),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_backup_has_a_line() {
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(backup(&Value::Null, now), None);
        let mut status = json!({"address": "s3://a/b", "complete_s": 93, "bytes": 2_500_000, "failures": 1});
        let line = backup(&status, now).unwrap();
        assert_eq!(line, "backup: complete 7 s ago  copied 2.5 MB  failures 1  s3://a/b");
        status["complete_s"] = Value::Null;
        assert!(backup(&status, now).unwrap().starts_with("backup: not complete yet"));
    }
}
