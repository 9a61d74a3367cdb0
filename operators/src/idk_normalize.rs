//! One way of not knowing: Answers → Answers.
//!
//! ```ron
//! IdkNormalize(input: "answer", sentence: "I do not know.", min_support: Some(0.3))
//! ```
//!
//! Prefixes that models put before an answer are taken off; an answer that says in any of
//! the known ways that it does not know becomes the configured sentence, with the status
//! `idk`; so does an empty one, and one that its passages support less than `min_support`
//! (TechSSN, the normalisation after generation; RAGTUM answers the same way when no passage
//! is left).

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::component::{
    BuildError, Call, Check, InputPort, Models, Operator, OperatorConfig, OperatorError, OperatorKind,
};
use turnflow_engine::record::{Answer, PortType, Status, Value};
use turnflow_engine::spec::from_tree;

/// The table's entry.
pub const KIND: OperatorKind = OperatorKind {
    name: "IdkNormalize",
    inputs: &[InputPort::one(PortType::Answers)],
    output: PortType::Answers,
    summary: "prefixes taken off, and every way of not knowing brought to one sentence",
    parse: |tree, sources| Ok(Box::new(from_tree::<IdkNormalizeConfig>(tree, sources)?)),
};

/// Fields of `IdkNormalize`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdkNormalizeConfig {
    /// The node that gives answers.
    #[serde(rename = "input")]
    _input: String,
    /// What is said instead of an answer.
    #[serde(default = "default_sentence")]
    pub sentence: String,
    /// Taken off the front of an answer, letter case aside. Default: `Answer:` and its like.
    #[serde(default = "default_prefixes")]
    pub prefixes: Vec<String>,
    /// An answer that begins with one of these, or is little more than one, does not know.
    /// Letter case and punctuation aside.
    #[serde(default = "default_phrases")]
    pub phrases: Vec<String>,
    /// Least support (a cosine, −1 to 1) by the passages, where it is measured. Default: any.
    #[serde(default)]
    pub min_support: Option<f32>,
}

fn default_sentence() -> String {
    "I do not know: the documents do not say.".into()
}

fn default_prefixes() -> Vec<String> {
    ["answer:", "the answer is:", "response:", "agent:", "assistant:", "a:", "final answer:"].map(String::from).into()
}

fn default_phrases() -> Vec<String> {
    [
        "i do not know",
        "i don't know",
        "i am not sure",
        "i'm not sure",
        "i cannot answer",
        "i can't answer",
        "i am unable to answer",
        "i'm unable to answer",
        "i do not have enough information",
        "i don't have enough information",
        "i do not have specific information",
        "i don't have specific information",
        "there is not enough information",
        "there isn't enough information",
        "the context does not",
        "the passages do not",
        "the documents do not",
        "the provided context does not",
        "not mentioned in the",
        "no answer",
        "unanswerable",
        "idk",
        "unknown",
    ]
    .map(String::from)
    .into()
}

impl OperatorConfig for IdkNormalizeConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.sentence.trim().is_empty() {
            check.error("wrong-value", "sentence", "the sentence is empty");
        }
        if let Some(support) = self.min_support {
            check.range("min_support", support, -1.0, 1.0);
        }
    }

    fn explain(&self) -> String {
        let least = self.min_support.map_or("any".to_owned(), |support| support.to_string());
        let (prefixes, phrases) = (self.prefixes.len(), self.phrases.len());
        format!("sentence: {:?}, min_support: {least}, {prefixes} prefixes, {phrases} phrases", self.sentence)
    }

    fn build(&self, _: &Models) -> Result<Arc<dyn Operator>, BuildError> {
        let phrases = self.phrases.iter().map(|phrase| words(phrase)).filter(|phrase| !phrase.is_empty()).collect();
        Ok(Arc::new(IdkNormalize { config: self.clone(), phrases }))
    }
}

struct IdkNormalize {
    config: IdkNormalizeConfig,
    phrases: Vec<String>,
}

impl Operator for IdkNormalize {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move { Ok(Value::Answer(Arc::new(self.normalize(call.answer(0)?)))) }.boxed()
    }
}

impl IdkNormalize {
    fn normalize(&self, answer: &Answer) -> Answer {
        let text = strip(&answer.text, &self.config.prefixes);
        let unsupported = match (answer.support, self.config.min_support) {
            (Some(support), Some(least)) => support < least,
            _ => false,
        };
        if answer.status == Status::Idk || unsupported || text.is_empty() || self.gives_up(text) {
            return Answer { text: self.config.sentence.as_str().into(), status: Status::Idk, ..answer.clone() };
        }
        Answer { text: text.into(), ..answer.clone() }
    }

    /// An answer that starts by giving up and goes on to answer ("I do not have specific
    /// information on X. However, …") does answer.
    fn gives_up(&self, text: &str) -> bool {
        let said = words(text);
        let goes_on = ["however ", "but "].iter().any(|turn| said.contains(turn));
        self.phrases.iter().any(|phrase| {
            let begins =
                said == *phrase || said.strip_prefix(phrase.as_str()).is_some_and(|rest| rest.starts_with(' '));
            begins && !goes_on
        })
    }
}

/// The text without any of the prefixes, however many stand before it.
fn strip<'t>(text: &'t str, prefixes: &[String]) -> &'t str {
    let mut text = text.trim();
    loop {
        let shorter = prefixes.iter().find_map(|prefix| {
            let head = text.get(..prefix.len())?;
            (!prefix.is_empty() && head.eq_ignore_ascii_case(prefix)).then(|| text[prefix.len()..].trim_start())
        });
        match shorter {
            Some(shorter) => text = shorter,
            None => return text,
        }
    }
}

/// Lower-cased words joined by blanks, apostrophes kept and made one kind.
fn words(text: &str) -> String {
    let text = text.to_lowercase().replace('’', "'");
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '\'')).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_engine::record::Query;

    fn normalize(text: &str, support: Option<f32>) -> (String, Status) {
        let config = IdkNormalizeConfig {
            _input: String::new(),
            sentence: "IDK.".into(),
            prefixes: default_prefixes(),
            phrases: default_phrases(),
            min_support: Some(0.3),
        };
        let phrases = config.phrases.iter().map(|phrase| words(phrase)).collect();
        let query = Query::new("q");
        let answer = Answer {
            query,
            text: text.into(),
            status: Status::Answered,
            hits: vec![],
            checks: Default::default(),
            support,
        };
        let answer = IdkNormalize { config, phrases }.normalize(&answer);
        (answer.text.to_string(), answer.status)
    }

    #[test]
    fn ways_of_not_knowing_become_one() {
        for text in [
            "I don’t know.",
            "Answer: I do not know the price",
            "",
            "  IDK ",
            "Unanswerable.",
            "The passages do not say.",
        ] {
            assert_eq!(normalize(text, None), ("IDK.".into(), Status::Idk), "{text:?}");
        }
    }

    #[test]
    fn answers_stay_without_their_prefixes() {
        for (text, want) in [
            ("Answer: Paris.", "Paris."),
            ("ANSWER: Response:  Paris.", "Paris."),
            ("Unknowns are solved for.", "Unknowns are solved for."),
            ("I do not know all. However, it is blue.", "I do not know all. However, it is blue."),
            ("é", "é"),
        ] {
            assert_eq!(normalize(text, Some(0.9)), (want.into(), Status::Answered), "{text:?}");
        }
    }

    #[test]
    fn low_support_is_not_knowing() {
        assert_eq!(normalize("Paris.", Some(0.29)).1, Status::Idk);
        assert_eq!(normalize("Paris.", Some(0.3)).1, Status::Answered);
    }
}
