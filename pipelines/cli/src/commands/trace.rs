//! Formats the values of nodes for traces.

use turnflow_connectors::stdout::plain;
use turnflow_engine::record::{Hit, Status, Value};

/// Maximum number of hits per node in a trace.
const TRACED_HITS: usize = 5;

/// A node's value in a few lines.
pub(super) fn describe(value: &Value) -> String {
    plain(&described(value))
}

fn described(value: &Value) -> String {
    match value {
        Value::Turn => "the turn".into(),
        Value::Query(query) => {
            let parts: String = query.parts.iter().map(|part| format!("\n    \"{part}\"")).collect();
            format!("query \"{}\"{parts}", query.text)
        }
        Value::Prompt(prompt) => format!("prompt\n{}", prompt.prompt.plain()),
        Value::Hits(hits) => {
            let line = |hit: &Hit| format!("\n    {:>9.4}  {}", hit.score, hit.chunk.id);
            let lines: String = hits.hits.iter().take(TRACED_HITS).map(line).collect();
            let more = hits.hits.len().saturating_sub(TRACED_HITS);
            let more = if more > 0 { format!("\n    and {more} more") } else { String::new() };
            let count = hits.hits.len();
            format!("{count} {}{lines}{more}", if count == 1 { "hit" } else { "hits" })
        }
        Value::Answer(answer) => {
            let support = answer.support.map_or(String::new(), |support| format!(", support {support:.3}"));
            let status = match answer.status {
                Status::Answered => "answered",
                Status::Idk => "idk",
                Status::Failed => "failed",
            };
            format!("{status}{support}: {}", answer.text)
        }
        Value::Failed(failure) => format!("failed at `{}`: {}", failure.node, failure.reason),
    }
}
