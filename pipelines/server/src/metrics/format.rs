//! The two text formats of metrics: OpenMetrics 1.0, and that of Prometheus (0.0.4), which is what is asked for without a
//! word. They differ in the names of counters, in what is escaped, and in the last line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::http::{HeaderMap, HeaderValue, header};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Prometheus,
    /// With the version that the caller reads.
    OpenMetrics(&'static str),
}

impl Format {
    /// The format that the header `Accept` asks for.
    pub fn wanted(headers: &HeaderMap) -> Self {
        let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let ranges: Vec<Range> = accept.flat_map(|value| value.split(',')).filter_map(Range::read).collect();
        let best = |takes: &dyn Fn(&Range) -> bool| {
            ranges.iter().filter(|range| takes(range)).map(|range| range.quality).fold(0.0_f32, f32::max)
        };
        let plain = best(&|range| range.kind == "text/plain" && matches!(range.version.as_str(), "" | "0.0.4"));
        let open = |version: &str| {
            best(&|range| range.kind == "application/openmetrics-text" && range.version.as_str() == version)
        };
        let (new, old) = (open("1.0.0").max(open("")), open("0.0.1"));
        match new.max(old) {
            none if none <= 0.0 || none < plain => Self::Prometheus,
            _ if new >= old => Self::OpenMetrics("1.0.0"),
            _ => Self::OpenMetrics("0.0.1"),
        }
    }

    /// The type of the text.
    pub fn mime(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics("0.0.1") => "application/openmetrics-text; version=0.0.1; charset=utf-8",
            Self::OpenMetrics(_) => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        })
    }
}

/// A part of the header `Accept`.
struct Range {
    kind: String,
    version: String,
    quality: f32,
}

impl Range {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next().filter(|kind| !kind.is_empty())?.to_ascii_lowercase();
        let mut range = Self { kind, version: String::new(), quality: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => range.quality = value.parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0),
                "version" => value.clone_into(&mut range.version),
                _ => {}
            }
        }
        Some(range)
    }
}

/// The samples of a name, and what describes them.
#[derive(Default)]
pub(super) struct Family {
    described: Vec<String>,
    samples: Vec<String>,
}

/// Families by name, as OpenMetrics names them.
#[derive(Default)]
pub(super) struct Families(BTreeMap<String, Family>);

impl Families {
    /// Adds an OpenMetrics text. Its samples get the label `pipeline`, if one is given; a family is described once.
    pub fn add(&mut self, pipeline: Option<&str>, text: &str) {
        let mut current = String::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(described) = line.strip_prefix("# ") {
                current = described.split(' ').nth(1).unwrap_or_default().to_owned();
                let family = self.0.entry(current.clone()).or_default();
                if !family.described.iter().any(|known| known == line) {
                    family.described.push(line.to_owned());
                }
                continue;
            }
            let sample = match pipeline {
                Some(pipeline) => labelled(line, pipeline),
                None => line.to_owned(),
            };
            self.0.entry(current.clone()).or_default().samples.push(sample);
        }
    }

    /// All of them as text.
    pub fn written(&self, format: Format) -> String {
        let mut out = String::new();
        for (name, family) in &self.0 {
            let is_counter = family.described.iter().any(|line| *line == format!("# TYPE {name} counter"));
            for line in &family.described {
                let _ = match format {
                    Format::OpenMetrics(_) => writeln!(out, "{line}"),
                    Format::Prometheus => out.write_str(&described(line, name, is_counter)),
                };
            }
            for line in &family.samples {
                let _ = writeln!(out, "{line}");
            }
        }
        if format != Format::Prometheus {
            out.push_str("# EOF\n");
        }
        out
    }
}

/// A line about a family for Prometheus: the name is that of the samples, units are unknown, and only backslashes and line
/// breaks are escaped in a text.
fn described(line: &str, name: &str, is_counter: bool) -> String {
    let total = if is_counter { format!("{name}_total") } else { name.to_owned() };
    match line.strip_prefix("# HELP ").and_then(|rest| rest.strip_prefix(name)) {
        Some(help) => format!("# HELP {total}{}\n", help.replace("\\\"", "\"")),
        None if line.starts_with("# TYPE ") => line.replacen(name, &total, 1) + "\n",
        None => String::new(),
    }
}

/// The value of a label.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A sample with the label `pipeline`.
fn labelled(line: &str, pipeline: &str) -> String {
    let pipeline = escaped(pipeline);
    let end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    match rest.strip_prefix('{') {
        Some(labels) if labels.starts_with('}') => format!("{name}{{pipeline=\"{pipeline}\"{labels}"),
        Some(labels) => format!("{name}{{pipeline=\"{pipeline}\",{labels}"),
        None => format!("{name}{{pipeline=\"{pipeline}\"}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_pipelines_are_joined() {
        let text = |value| format!("# HELP a A \"b\".\n# TYPE a counter\na_total{{component=\"x\"}} {value}\n# EOF\n");
        let own = "# HELP b B.\n# TYPE b gauge\n# UNIT b seconds\nb 7\n# EOF\n".to_owned();
        let mut families = Families::default();
        families.add(Some("p"), &text(1).replace("\"b\".", "\\\"b\\\"."));
        families.add(Some("q\""), &text(2).replace("\"b\".", "\\\"b\\\"."));
        families.add(None, &own);
        let samples = "a_total{pipeline=\"p\",component=\"x\"} 1\na_total{pipeline=\"q\\\"\",component=\"x\"} 2\n";
        assert_eq!(
            families.written(Format::OpenMetrics("1.0.0")),
            format!(
                "# HELP a A \\\"b\\\".\n# TYPE a counter\n{samples}# HELP b B.\n# TYPE b gauge\n# UNIT b seconds\nb 7\n# EOF\n"
            )
        );
        assert_eq!(
            families.written(Format::Prometheus),
            format!("# HELP a_total A \"b\".\n# TYPE a_total counter\n{samples}# HELP b B.\n# TYPE b gauge\nb 7\n")
        );
        assert_eq!(labelled("a 1", "p"), "a{pipeline=\"p\"} 1");
        assert_eq!(labelled("a{} 1", "p"), "a{pipeline=\"p\"} 1");
    }

    #[test]
    fn a_caller_gets_the_format_that_it_asks_for() {
        let of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            Format::wanted(&headers)
        };
        assert_eq!(Format::wanted(&HeaderMap::new()), Format::Prometheus);
        let (new, old) = (Format::OpenMetrics("1.0.0"), Format::OpenMetrics("0.0.1"));
        // As Prometheus 2 asks, and Prometheus 3.
        let two = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let three = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            ("*/*", Format::Prometheus),
            ("text/plain", Format::Prometheus),
            ("text/html,*/*;q=0.8", Format::Prometheus),
            ("application/openmetrics-text", new),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", new),
            ("application/openmetrics-text; version=0.0.1", old),
            ("application/openmetrics-text; version=2.0.0", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("application/openmetrics-text;q=0.3, text/plain;q=0.5", Format::Prometheus),
            ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.6", new),
            ("application/openmetrics-text;q=x", Format::Prometheus),
            (two, new),
            (three, new),
        ] {
            assert_eq!(of(accept), format, "{accept}");
        }
    }
}
