//! Renders diagnostics as text and as JSON.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};
use turnflow_engine::spec::{Diagnostic, Sources};

/// Renders diagnostics as text, with the source underlined; `color` is for terminals.
pub fn render(diagnostics: &[Diagnostic], sources: &Sources, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let one = |diagnostic: &Diagnostic| {
        let title = Level::ERROR.primary_title(diagnostic.message.as_str()).id(diagnostic.code);
        let mut group = match diagnostic.span {
            None => Group::with_title(title),
            Some(span) => {
                let source = sources.get(span.source);
                let label = (!diagnostic.label.is_empty()).then_some(diagnostic.label.as_str());
                let mark = AnnotationKind::Primary.span(span.start..span.end).label(label);
                let mut snippet = Snippet::source(&*source.text).path(source.name.as_str()).annotation(mark);
                let related = diagnostic.related.as_ref().filter(|(other, _)| other.source == span.source);
                if let Some((other, word)) = related {
                    snippet =
                        snippet.annotation(AnnotationKind::Context.span(other.start..other.end).label(word.as_str()));
                }
                title.element(snippet)
            }
        };
        for help in &diagnostic.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        renderer.render(&[group])
    };
    diagnostics.iter().map(one).collect::<Vec<_>>().join("\n\n")
}

/// Renders diagnostics as JSON: a list of objects with code, message, file, line and column (from
/// 1), byte range, label and help.
pub fn to_json(diagnostics: &[Diagnostic], sources: &Sources) -> Value {
    let one = |diagnostic: &Diagnostic| {
        let place = diagnostic.span.map(|span| {
            let (line, column) = sources.line_column(span);
            json!({"file": sources.get(span.source).name, "line": line, "column": column, "start": span.start, "end": span.end})
        });
        json!({
            "code": diagnostic.code,
            "message": diagnostic.message,
            "place": place,
            "label": diagnostic.label,
            "help": diagnostic.help,
        })
    };
    Value::Array(diagnostics.iter().map(one).collect())
}
