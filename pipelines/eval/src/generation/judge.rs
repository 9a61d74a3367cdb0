//! RB_llm: a language model rates a response against the reference and the passages.
//!
//! From MTRAG (Katsis et al. 2025, appendix F.1), based on RAD-Bench: one rating from 1 to 10 for faithfulness,
//! appropriateness and completeness. The value is a tenth of the rating; with several judges, the median. The prompt is
//! `prompts/rating.txt`.
//!
//! Replies are read as the published code reads them: which form of a rating counts before another, and 0.5 for a reply
//! without a rating from 0 to 10. Such replies are counted and reported. A model that computes likelihoods
//! (`OnnxDecoder`) writes no reply: its rating is the mean of 1 to 10, weighted by how likely each is.

use std::sync::{Arc, LazyLock};

use regex::Regex;
use turnflow_engine::component::BuildError;
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Finish, Generation, Generator, Prompt};
use turnflow_operators::reply::clean;
use turnflow_operators::template::{Filling, Template};

use super::Response;
use super::prompts::Prompts;
use crate::tasks::{Speaker, Task, Utterance};

/// The ratings, of which a model that computes likelihoods gives the mean.
const RATINGS: [u32; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/// The value of a rating that cannot be read.
pub const UNREAD: f64 = 0.5;

/// Why a judge's value is missing, or is that of a reply that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// The reply does not have the requested form.
    #[error("cannot parse the reply")]
    Unread,
    /// The model failed.
    #[error(transparent)]
    Failed(#[from] InferenceError),
}

/// A prompt that a judge cannot use.
#[derive(Debug, thiserror::Error)]
#[error("the prompt of `{field}`: {source}")]
pub struct PromptError {
    /// The field of `prompts`.
    pub field: &'static str,
    /// What is wrong with it.
    pub source: BuildError,
}

/// Asks a model with its configured sampling for one of these labels; any reply will do if there are none.
///
/// # Errors
///
/// The model failed.
pub(super) async fn ask<S: ToString>(
    judge: &Arc<dyn Generator>,
    prompt: Prompt,
    labels: impl IntoIterator<Item = S>,
) -> Result<Generation, Trouble> {
    let mut reply = judge.generate(prompt, judge.sampling().clone().of_labels(labels)).await?;
    reply.text = clean(&reply.text);
    Ok(reply)
}

/// The same, for replies whose end counts.
///
/// # Errors
///
/// The model failed, or its reply was cut off.
pub(super) async fn ask_whole(judge: &Arc<dyn Generator>, prompt: Prompt) -> Result<String, Trouble> {
    let reply = ask(judge, prompt, [""; 0]).await?;
    if reply.finish == Finish::Length { Err(Trouble::Unread) } else { Ok(reply.text) }
}

/// The passages for a prompt, numbered and quoted; passages that exceed the model's limit are cut.
pub(super) fn numbered(template: &Template, passages: &[String]) -> Filling {
    let one = |(at, passage): (usize, &String)| format!("[{}] {}\n", at + 1, template.quoted(passage.trim()));
    Filling::MayBeCut(passages.iter().enumerate().map(one).collect())
}

/// Utterances with their speakers, one after the other.
fn said(template: &Template, utterances: &[Utterance]) -> String {
    let line = |utterance: &Utterance| {
        let who = match utterance.speaker {
            Speaker::User => "User",
            Speaker::Agent => "Assistant",
        };
        format!("{who}: {}", template.quoted(utterance.text.trim()))
    };
    utterances.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What a response answers: the question, or the whole conversation with the question as its end.
pub(super) fn inquiry(template: &Template, input: &[Utterance]) -> Filling {
    match input {
        [] => "".into(),
        [only] => template.question(&only.text),
        several => Filling::Fixed(said(template, several)),
    }
}

/// One judge's rating of a response, from 0 to 1.
///
/// # Errors
///
/// The model failed, or its reply has no rating from 0 to 10.
pub async fn rate(
    judge: &Arc<dyn Generator>,
    prompts: &Prompts,
    task: &Task,
    reference: &str,
    response: &Response,
) -> Result<f64, Trouble> {
    let (question, before) = match task.input.split_last() {
        Some((last, before)) => (&*last.text, before),
        None => ("", &[][..]),
    };
    let template = &prompts.rating;
    let before = if before.is_empty() { "(none)".to_owned() } else { said(template, before) };
    let prompt = template.fill(&[
        ("conversation", Filling::Fixed(before)),
        ("question", template.question(question)),
        ("reference", (&*template.quoted(reference.trim())).into()),
        ("response", (&*template.quoted(response.text.trim())).into()),
        ("passages", numbered(template, &response.passages)),
    ]);
    let reply = ask(judge, prompt, RATINGS.map(|rating| format!("Rating: [[{rating}]]"))).await?;
    let rating = reply.expected(RATINGS.map(f64::from)).or_else(|| rating(&reply.text)).ok_or(Trouble::Unread)?;
    Ok(rating / 10.0)
}

/// The forms of a rating; the first one that a reply has counts. The published code tries them the other way round, and
/// keeps the last.
static FORMS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let forms = [
        r"(?i)([-+]?[0-9]*\.?[0-9]+) out of 10",
        r"(?i)rating: \[\[([-+]?[0-9]*\.?[0-9]+)",
        r"(?i)\[rating\]\n([0-9]+)",
        r"(?i)score: ([0-9]*\.?[0-9]+)",
        r"(?i)overall rating: ([0-9]*\.?[0-9]+)",
        r"\[([0-9]+)\]",
        r"(?i)rating: ([0-9]+)",
    ];
    forms.iter().filter_map(|form| Regex::new(form).ok()).collect()
});

/// The rating in a reply, such as `Rating: [[7]]`. An example of one is skipped to the end of its line, and so is
/// Markdown's emphasis; the latter is the only difference from the published code.
fn rating(reply: &str) -> Option<f64> {
    let without_example = |line: &str| match line.to_ascii_lowercase().find("for example:") {
        Some(at) => line[..at].to_owned(),
        None => line.to_owned(),
    };
    let text = reply.split('\n').map(without_example).collect::<Vec<_>>().join("\n").replace('*', "");
    let found = FORMS.iter().find_map(|form| form.captures(&text));
    let rating: f64 = found?.get(1)?.as_str().parse().ok()?;
    (rating > 0.0 && rating <= 10.0).then_some(rating)
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

    /// The values are those of the published function, which cannot read the first reply with emphasis.
    #[test]
    fn ratings_are_read_or_not() {
        for (reply, want) in [
            ("It is complete. Rating: [[7]]", Some(7.0)),
            ("Not [[3]] but\nRating: [[10]].", Some(10.0)),
            ("**Rating:** 8", Some(8.0)),
            ("**Rating: 8**", Some(8.0)),
            ("rating: 7.5", Some(7.0)),
            ("Rating: [[7.5]]", Some(7.5)),
            ("Rating: [[7/10]]", Some(7.0)),
            ("I give it 6 out of 10. Rating: [[9]]", Some(6.0)),
            ("Overall Rating: 8.5", Some(8.5)),
            ("Score: 8.6/10, as in [2]", Some(8.6)),
            ("Passage [2] says so. Rating: 9", Some(2.0)),
            ("[Rating]\n7", Some(7.0)),
            ("For example: Rating: [[5]]\nRating: [[8]]", Some(8.0)),
            ("Rating: [[11]]", None),
            ("Rating: [[0]]", None),
            ("Rating: [[rating]]", None),
            ("7", None),
            ("", None),
        ] {
            assert_eq!(rating(reply), want, "{reply:?}");
        }
        assert_eq!(FORMS.len(), 7);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![0.9, 0.1, 0.5]), Some(0.5));
        assert_eq!(median(vec![0.9, 0.1, 0.5, 0.3]), Some(0.4));
    }
}
