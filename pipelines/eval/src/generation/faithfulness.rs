//! RL_F: the share of an answer's statements that the passages support.
//!
//! This is the faithfulness of RAGAS (Es et al. 2024), which MTRAG (section 6.3.2) uses unchanged: a
//! language model splits the answer into statements, then decides for each whether it follows from
//! the passages. The prompts are `prompts/statements.txt` and `prompts/verdicts.txt`. Cost: two calls
//! per answer.

use std::sync::Arc;

use turnflow_engine::language::Generator;
use turnflow_operators::reply::lines;

use super::Response;
use super::judge::{Trouble, ask, numbered, template};

const STATEMENTS: &str = include_str!("../../../prompts/statements.txt");
const STATEMENT_PLACES: &[&str] = &["response", "question"];
const VERDICTS: &str = include_str!("../../../prompts/verdicts.txt");
const VERDICT_PLACES: &[&str] = &["statements", "passages"];

/// The share of statements that the passages support, from 0 to 1.
///
/// # Errors
///
/// The model failed, found no statement, or did not return a verdict on each statement.
pub async fn faithfulness(judge: &Arc<dyn Generator>, question: &str, response: &Response) -> Result<f64, Trouble> {
    let asked = template(STATEMENTS, STATEMENT_PLACES)?;
    let said = asked.quoted(response.text.trim());
    let prompt = asked.fill(&[("question", asked.question(question)), ("response", (&*said).into())]);
    let reply = ask(judge, prompt).await?;
    let statements = lines(&reply.text);
    if statements.is_empty() {
        return Err(Trouble::Unread);
    }
    let listed: Vec<String> =
        statements.iter().enumerate().map(|(at, statement)| format!("{}. {statement}", at + 1)).collect();
    let asked = template(VERDICTS, VERDICT_PLACES)?;
    let passages = numbered(&asked, &response.passages);
    let prompt = asked.fill(&[("passages", passages), ("statements", listed.join("\n").as_str().into())]);
    let verdicts = verdicts(&ask(judge, prompt).await?.text, statements.len()).ok_or(Trouble::Unread)?;
    Ok(verdicts.iter().filter(|supported| **supported).count() as f64 / verdicts.len() as f64)
}

/// The verdict on each statement; `None` if a statement has no verdict or contradictory ones.
fn verdicts(reply: &str, statements: usize) -> Option<Vec<bool>> {
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
        ] {
            assert_eq!(verdicts(reply, statements), want, "{reply:?}");
        }
    }

    #[test]
    fn the_prompts_are_templates() {
        template(STATEMENTS, STATEMENT_PLACES).expect("statements.txt");
        template(VERDICTS, VERDICT_PLACES).expect("verdicts.txt");
    }
}
