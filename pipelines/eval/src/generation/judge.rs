//! RB_llm: a language model rates a response against the reference and the passages.
//!
//! From MTRAG (Katsis et al. 2025, appendix F.1), based on RAD-Bench: one rating from 1 to 10 for
//! faithfulness, appropriateness and completeness. The value is a tenth of the rating, as in the
//! published code; with several judges, the median. The prompt is `prompts/rating.txt`.

use std::sync::Arc;

use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Finish, Generation, Generator, Prompt};
use turnflow_operators::reply::clean;
use turnflow_operators::template::{Filling, Template};

use super::Response;
use crate::tasks::{Speaker, Task, Utterance};

const RATING: &str = include_str!("../../../prompts/rating.txt");
const PLACES: &[&str] = &["response", "reference", "question", "conversation", "passages"];

/// Why a judge's value is missing. It is counted and reported, and not replaced by a default.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// The reply does not have the requested form.
    #[error("cannot parse the reply")]
    Unread,
    /// The model failed.
    #[error(transparent)]
    Failed(#[from] InferenceError),
    /// A built-in prompt is not a valid template: a bug in this program.
    #[error("built-in prompt: {0}")]
    Prompt(String),
}

/// Parses a built-in prompt.
pub(super) fn template(text: &str, places: &'static [&'static str]) -> Result<Template, Trouble> {
    Template::parse(text, places).map_err(|error| Trouble::Prompt(error.to_string()))
}

/// Asks a model with its configured sampling; returns the complete reply.
///
/// # Errors
///
/// The model failed, or its reply was cut off.
pub(super) async fn ask(judge: &Arc<dyn Generator>, prompt: Prompt) -> Result<Generation, Trouble> {
    let mut reply = judge.generate(prompt, judge.sampling().clone()).await?;
    reply.text = clean(&reply.text);
    // A reply that was cut off may lack its verdict.
    if reply.finish == Finish::Length { Err(Trouble::Unread) } else { Ok(reply) }
}

/// The passages for a prompt, numbered and quoted; passages that exceed the model's limit are cut.
pub(super) fn numbered(template: &Template, passages: &[String]) -> Filling {
    let one = |(at, passage): (usize, &String)| format!("[{}] {}\n", at + 1, template.quoted(passage.trim()));
    Filling::MayBeCut(passages.iter().enumerate().map(one).collect())
}

fn said(before: &[Utterance]) -> String {
    let line = |utterance: &Utterance| {
        let who = match utterance.speaker {
            Speaker::User => "User",
            Speaker::Agent => "Assistant",
        };
        format!("{who}: {}", utterance.text.trim())
    };
    match before {
        [] => "(none)".to_owned(),
        some => some.iter().map(line).collect::<Vec<_>>().join("\n"),
    }
}

/// One judge's rating of a response, from 0.1 to 1.
///
/// # Errors
///
/// The model failed, or its reply has no rating from 1 to 10.
pub async fn rate(
    judge: &Arc<dyn Generator>,
    task: &Task,
    reference: &str,
    response: &Response,
) -> Result<f64, Trouble> {
    let (question, before) = match task.input.split_last() {
        Some((last, before)) => (&*last.text, before),
        None => ("", &[][..]),
    };
    let template = template(RATING, PLACES)?;
    let prompt = template.fill(&[
        ("conversation", said(before).as_str().into()),
        ("question", template.question(question)),
        ("reference", (&*template.quoted(reference.trim())).into()),
        ("response", (&*template.quoted(response.text.trim())).into()),
        ("passages", numbered(&template, &response.passages)),
    ]);
    let rating = rating(&ask(judge, prompt).await?.text).ok_or(Trouble::Unread)?;
    Ok(rating / 10.0)
}

/// The last rating in a reply: `[[7]]`, or `Rating: 7`; from 1 to 10.
fn rating(reply: &str) -> Option<f64> {
    let number = |text: &str| {
        let text = text.trim_start_matches(['[', ' ', '*', ':']);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].trim_end_matches('.').parse::<f64>().ok()
    };
    let bracketed = reply.rfind("[[").and_then(|at| number(&reply[at..]));
    let lower = reply.to_ascii_lowercase();
    let named = || lower.rfind("rating:").and_then(|at| number(&reply[at + "rating:".len()..]));
    bracketed.or_else(named).filter(|rating| (1.0..=10.0).contains(rating))
}

/// The median; for an even number of values, the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratings_are_read_or_not() {
        for (reply, want) in [
            ("It is complete. Rating: [[7]]", Some(7.0)),
            ("Not [[3]] but\nRating: [[10]].", Some(10.0)),
            ("**Rating:** 8", Some(8.0)),
            ("**Rating: 8**", Some(8.0)),
            ("rating: 7.5", Some(7.5)),
            ("Rating: [[11]]", None),
            ("Rating: [[0]]", None),
            ("Rating: [[rating]]", None),
            ("7", None),
            ("", None),
        ] {
            assert_eq!(rating(reply), want, "{reply:?}");
        }
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![0.9, 0.1, 0.5]), Some(0.5));
        assert_eq!(median(vec![0.9, 0.1, 0.5, 0.3]), Some(0.4));
    }

    #[test]
    fn the_prompts_are_templates() {
        template(RATING, PLACES).expect("rating.txt");
    }
}
