//! RL_F: the share of an answer's statements that the passages support.
//!
//! This is the faithfulness of RAGAS (Es et al. 2024), which MTRAG (section 6.3.2) uses unchanged: a
//! language model splits the answer into statements, then decides for each whether it follows from
//! the passages. As in the published scripts, the question of the first step is the whole conversation.
//! The prompts are `prompts/statements.txt` and `prompts/verdicts.txt`. Replies may be JSON, as RAGAS
//! asks for. A reply that cannot be read gives no value, as there. Cost: two calls per answer.

use std::sync::Arc;

use serde_json::Value as Json;
use turnflow_engine::language::Generator;
use turnflow_operators::reply::lines;

use super::Response;
use super::judge::{Trouble, ask_whole, inquiry, numbered};
use super::prompts::Prompts;
use crate::tasks::Utterance;

/// The share of statements that the passages support, from 0 to 1.
///
/// # Errors
///
/// The model failed, found no statement, or did not return a verdict on each statement.
pub async fn faithfulness(
    judge: &Arc<dyn Generator>,
    prompts: &Prompts,
    input: &[Utterance],
    response: &Response,
) -> Result<f64, Trouble> {
    let asked = &prompts.statements;
    let said = asked.quoted(response.text.trim());
    let prompt = asked.fill(&[("question", inquiry(asked, input)), ("response", (&*said).into())]);
    let statements = statements(&ask_whole(judge, prompt).await?);
    if statements.is_empty() {
        return Err(Trouble::Unread);
    }
    let listed: Vec<String> =
        statements.iter().enumerate().map(|(at, statement)| format!("{}. {statement}", at + 1)).collect();
    let asked = &prompts.verdicts;
    let passages = numbered(asked, &response.passages);
    let prompt = asked.fill(&[("passages", passages), ("statements", listed.join("\n").as_str().into())]);
    let verdicts = verdicts(&ask_whole(judge, prompt).await?, statements.len()).ok_or(Trouble::Unread)?;
    Ok(verdicts.iter().filter(|supported| **supported).count() as f64 / verdicts.len() as f64)
}

/// The first JSON in a reply that has one of these names, or is a list with which the reply begins.
fn json(reply: &str, names: &[&str]) -> Option<Json> {
    let is_first =
        |at: usize| reply[..at].trim_matches(|c: char| c == '`' || c.is_whitespace()).replace("json", "").is_empty();
    let named = |text: &str| names.iter().any(|name| text.contains(&format!("\"{name}\":")));
    reply.match_indices(['{', '[']).find_map(|(at, _)| {
        let value: Json = serde_json::Deserializer::from_str(&reply[at..]).into_iter().next()?.ok()?;
        let is_list = value.as_array().is_some_and(|list| is_first(at) && list.iter().any(|one| !one.is_number()));
        (is_list || named(&value.to_string())).then_some(value)
    })
}

/// The names of statements in the JSON that RAGAS asks for, newer and older.
const NAMES: [&str; 2] = ["statements", "simpler_statements"];

/// The statements of a reply: its lines, or the texts of its JSON.
fn statements(reply: &str) -> Vec<String> {
    let Some(json) = json(reply, &NAMES) else { return lines(reply).into_iter().map(str::to_owned).collect() };
    let mut found = Vec::new();
    collect(&json, "", &mut found);
    found
}

/// Collects the texts of lists that are called `statements` or `simpler_statements`, and of a list without a name.
fn collect(json: &Json, name: &str, found: &mut Vec<String>) {
    match json {
        Json::Object(object) => object.iter().for_each(|(name, value)| collect(value, name, found)),
        Json::Array(list) => list.iter().for_each(|value| match value {
            Json::String(text) if name.is_empty() || NAMES.contains(&name) => {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                found.extend((!text.is_empty()).then_some(text));
            }
            other => collect(other, name, found),
        }),
        _ => {}
    }
}

/// The verdict on each statement; `None` if a statement has no verdict or contradictory ones.
fn verdicts(reply: &str, statements: usize) -> Option<Vec<bool>> {
    if let Some(json) = json(reply, &["verdict"]) {
        let list = json.as_array().or_else(|| json.as_object()?.values().find_map(Json::as_array))?;
        let read: Vec<bool> = list.iter().map(|one| verdict(one.get("verdict")?)).collect::<Option<_>>()?;
        return (read.len() == statements).then_some(read);
    }
    let mut found: Vec<Option<bool>> = vec![None; statements];
    for line in reply.lines() {
        let line = line.trim_start_matches(['-', '*', ' ', '[']);
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(number) = line[..digits].parse::<usize>() else { continue };
        let mut words = line[digits..].split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        let verdict = match words.next()?.to_lowercase().as_str() {
            "yes" => true,
            "no" => false,
            _ => return None,
        };
        let place = found.get_mut(number.checked_sub(1)?)?;
        if place.replace(verdict).is_some_and(|before| before != verdict) {
            return None;
        }
    }
    found.into_iter().collect()
}

/// A verdict of JSON: 1 or 0, true or false, or as text, also yes or no.
fn verdict(json: &Json) -> Option<bool> {
    let text = match json {
        Json::String(text) => text.trim().to_lowercase(),
        other => other.to_string(),
    };
    match text.as_str() {
        "1" | "true" | "yes" => Some(true),
        "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_for_all_statements_or_not_at_all() {
        for (reply, statements, want) in [
            ("1: yes\n2: no\n3: Yes.", 3, Some(vec![true, false, true])),
            ("Verdicts:\n- [2] no\n- [1] yes, it is", 2, Some(vec![true, false])),
            ("1: yes", 2, None),
            ("1: yes\n2: maybe", 2, None),
            ("1: yes\n1: no", 1, None),
            ("1: yes\n2: no", 1, None),
            ("0: yes", 1, None),
            ("all of them", 1, None),
            (
                r#"```json
                {"statements": [{"statement": "a", "reason": "", "verdict": 1}, {"verdict": "0"}]}```"#,
                2,
                Some(vec![true, false]),
            ),
            (r#"Here: [{"verdict": "Yes"}]"#, 1, Some(vec![true])),
            (r#"[{"verdict": 1}]"#, 2, None),
            (r#"[{"statement": "a"}]"#, 1, None),
            (r#"{"verdict": 1}"#, 1, None),
            ("1: yes, see {\"a\": [1]}", 1, Some(vec![true])),
        ] {
            assert_eq!(verdicts(reply, statements), want, "{reply:?}");
        }
    }

    #[test]
    fn statements_are_lines_or_json() {
        for (reply, want) in [
            ("1. It is blue [1].\n2. It leaves.", vec!["It is blue [1].", "It leaves."]),
            (r#"{"statements": ["It is blue.", "It\nleaves.", " "]}"#, vec!["It is blue.", "It leaves."]),
            (
                r#"{"sentences": [{"sentence_index": 0, "simpler_statements": ["a", "b"]}, {"simpler_statements": ["c"]}]}"#,
                vec!["a", "b", "c"],
            ),
            ("```json\n[\"a\", \"b\"]\n```", vec!["a", "b"]),
            (r#"1. The list is ["x", "y"]."#, vec![r#"The list is ["x", "y"]."#]),
            (r#"{"statements": []}"#, vec![]),
        ] {
            assert_eq!(statements(reply), want, "{reply:?}");
        }
    }
}
