//! The agent's loop: steps until the model finishes or a bound is reached, and then the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, json};
use turnflow_engine::component::{Call, Operator, OperatorError};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Generation, Generator, Prompt, Sampling, SamplingFields};
use turnflow_engine::record::{Answer, Query, Status, Value};

use super::action::{self, Action, Step};
use super::search::Search;
use super::transcript::Transcript;
use crate::citations;
use crate::generate::{EVIDENCE, LABELS, named_evidence, says_idk, span};
use crate::passages::{Length, conversation};
use crate::prompting::Builder;
use crate::reply::{clean, strip};
use crate::self_check::problems;
use crate::template::Template;

/// After this many steps in a row without a valid or new action, the model is not asked for further steps.
const IDLE: usize = 3;

/// The settings of the loop, as in [`super::AgentConfig`].
pub(super) struct Settings {
    pub steps: usize,
    pub tokens: u64,
    pub time: Duration,
    pub passages: usize,
    pub show: Length,
    pub read: Length,
    pub search_first: bool,
    pub check: bool,
    pub words: Option<usize>,
    pub sampling: SamplingFields,
}

/// A built agent.
pub(super) struct Agent {
    pub generator: Arc<dyn Generator>,
    pub template: Template,
    pub search: Search,
    pub builder: Builder,
    pub settings: Settings,
}

/// How a turn ended.
enum End {
    /// The model finished with this answer.
    Finished(String),
    /// A bound was reached, as this sentence says.
    Bound(String),
}

impl Operator for Agent {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            // The first search may be long, and nothing before the first await runs off the worker.
            tokio::task::yield_now().await;
            let query = call.query(0)?.clone();
            let mut transcript = Transcript::new(self.opening(&call, &query));
            let begun = Instant::now();
            if self.settings.search_first {
                for part in query.searches() {
                    let thought = "The question asks this.".to_owned();
                    let shown: Vec<&str> = part.split_whitespace().take(action::WORDS).collect();
                    let action = Action::Search(shown.join(" "));
                    let step = Step { thought, action: Ok(action.clone()) };
                    self.searched(&call, &mut transcript, &step, &action, part).await?;
                }
            }
            let end = self.work(&call, &query, &mut transcript, begun).await?;
            self.answer(&call, query, transcript, end).await
        }
        .boxed()
    }
}

impl Agent {
    /// The instruction, the question and the plan.
    fn opening(&self, call: &Call, query: &Query) -> Prompt {
        let lines = conversation(&call.turn, self.builder.history, self.builder.history_characters);
        let history =
            if lines.is_empty() { String::new() } else { format!("Conversation so far:\n{}", lines.join("\n")) };
        let parts: Vec<String> = query.parts.iter().map(|part| format!("- {}", self.template.quoted(part))).collect();
        let plan = if parts.is_empty() { String::new() } else { format!("Plan:\n{}", parts.join("\n")) };
        self.template.fill(&[
            ("question", self.template.question(query.question())),
            ("plan", plan.as_str().into()),
            ("history", history.as_str().into()),
            ("steps", self.settings.steps.to_string().as_str().into()),
            ("idk", self.builder.idk.as_str().into()),
        ])
    }

    /// Lets the model work until it finishes or a bound is reached.
    async fn work(
        &self,
        call: &Call,
        query: &Query,
        transcript: &mut Transcript,
        begun: Instant,
    ) -> Result<End, OperatorError> {
        let Settings { steps, tokens: most, time, .. } = &self.settings;
        let mut sampling = self.settings.sampling.over(self.generator.sampling());
        // A model that goes on would make up the observation.
        sampling.stop.push("\nObservation".to_owned());
        let (mut generated, mut idle) = (0_u64, 0);
        for number in 1..=*steps {
            if idle == IDLE {
                return Ok(End::Bound(format!("{IDLE} steps in a row without a valid or new action")));
            }
            if begun.elapsed() >= *time {
                return Ok(End::Bound(format!("no answer within {} seconds", time.as_secs_f32())));
            }
            let Some(left) = most.checked_sub(generated).filter(|left| *left > 0) else {
                return Ok(End::Bound(format!("no answer within {most} tokens")));
            };
            let mut sampling = sampling.clone();
            sampling.max_tokens = sampling.max_tokens.min(usize::try_from(left).unwrap_or(usize::MAX));
            let Some(reply) = self.generate(transcript, sampling).await? else {
                return Ok(End::Bound("the steps are too long for the model's context".to_owned()));
            };
            generated += if reply.tokens > 0 { reply.tokens } else { self.generator.count(&reply.text) as u64 };
            let step = action::read(&reply.text);
            let action = match &step.action {
                Ok(action) => action.clone(),
                Err(note) => {
                    transcript.malformed(&step, note);
                    idle += 1;
                    continue;
                }
            };
            if let Some(earlier) = transcript.same(&action)
                && !matches!(action, Action::Finish(_))
            {
                let note = format!("step {earlier} did the same, and its observation is above; do something else");
                transcript.told(&step, &action, &note);
                idle += 1;
                continue;
            }
            idle = 0;
            match &action {
                Action::Search(words) => self.searched(call, transcript, &step, &action, words).await?,
                Action::Lookup(words) => transcript.looked_up(&step, words, &self.template),
                Action::Read(number) => {
                    if let Err(note) = transcript.read(&step, *number, &self.settings.read, &self.template) {
                        transcript.told(&step, &action, &note);
                    }
                }
                Action::Finish(answer) => match self.refuses(query, answer, transcript) {
                    // The last step's answer stands: operators after this one can check it.
                    Some(note) if number < *steps => transcript.told(&step, &action, &note),
                    _ => {
                        transcript.told(&step, &action, "finished");
                        return Ok(End::Finished(answer.clone()));
                    }
                },
            }
        }
        Ok(End::Bound(format!("no answer within {steps} steps")))
    }

    /// The model's reply to the steps so far; `None` if they do not fit its context.
    async fn generate(&self, transcript: &Transcript, sampling: Sampling) -> Result<Option<Generation>, OperatorError> {
        for all in [false, true] {
            match self.generator.generate(transcript.prompt(all), sampling.clone()).await {
                Ok(generation) => return Ok(Some(generation)),
                Err(InferenceError::TooLong { .. }) => {}
                // A reply without an action, which the model is told.
                Err(InferenceError::NoText(_)) => return Ok(Some(Generation::default())),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Searches for a text and records the passages.
    async fn searched(
        &self,
        call: &Call,
        transcript: &mut Transcript,
        step: &Step,
        action: &Action,
        text: &str,
    ) -> Result<(), OperatorError> {
        let hits = self.search.run(call, text).await?;
        let shown = &hits.hits[..hits.hits.len().min(self.settings.passages)];
        transcript.searched(step, action, shown, &self.settings.show, &self.template);
        Ok(())
    }

    /// Why an answer is returned to the model; `None` if it stands.
    fn refuses(&self, query: &Query, answer: &str, transcript: &Transcript) -> Option<String> {
        if !self.settings.check || says_idk(answer, &self.builder.idk) {
            return None;
        }
        if transcript.found.is_empty() {
            return Some("no passage was found yet; search first".to_owned());
        }
        let passages: Vec<&str> = transcript.found.iter().map(|hit| &*hit.chunk.text).collect();
        let problems = problems(query.question(), answer, &passages);
        (!problems.is_empty()).then(|| {
            format!(
                "the answer failed a check: {}; search further, or finish with another answer",
                problems.join(", and ")
            )
        })
    }

    /// The answer of the model, or one from the passages found so far.
    async fn answer(
        &self,
        call: &Call,
        query: Query,
        transcript: Transcript,
        end: End,
    ) -> Result<Value, OperatorError> {
        let Transcript { done, found: hits, .. } = transcript;
        let (text, how) = match end {
            End::Finished(answer) => (answer, "finished".to_owned()),
            End::Bound(bound) if hits.is_empty() => (self.builder.idk.clone(), bound),
            End::Bound(bound) => {
                call.warnings.add(format!("{bound}; the answer is from the passages found"));
                let prompt = self.builder.prompt(&call.turn, query.question(), &hits)?;
                let sampling = self.generator.sampling().clone();
                (last_answer(&self.generator.generate(prompt, sampling).await?.text, &self.builder.idk), bound)
            }
        };
        let text = clean(&text);
        let named = named_evidence(&text);
        let mut text = strip(&text, LABELS);
        if let Some(most) = self.settings.words {
            text = span(text, most);
        }
        let cited = citations::check(text, hits.len());
        for number in &cited.removed {
            call.warnings.add(format!("removed citation [{number}]: no such passage"));
        }
        let text = cited.text.trim();
        let status = if says_idk(text, &self.builder.idk) { Status::Idk } else { Status::Answered };
        let text = if text.is_empty() { self.builder.idk.as_str() } else { text };
        let mut checks = Map::new();
        let named = self.settings.words.and(named);
        checks.extend(named.map(|evidence| (EVIDENCE.to_owned(), evidence.into())));
        if !cited.passages.is_empty() {
            checks.insert("citations".into(), json!(cited.passages));
        }
        checks.insert("agent".into(), json!({ "plan": query.parts, "steps": done, "end": how }));
        Ok(Value::Answer(Arc::new(Answer { query, text: text.into(), status, hits, support: None, checks })))
    }
}

/// The answer in the reply after the last step. The model may write a step again: an answer in it counts, any other
/// action or a thought alone does not.
fn last_answer(reply: &str, idk: &str) -> String {
    let is_thought = reply.trim_start().to_lowercase().starts_with("thought");
    match action::read(reply).action {
        Ok(Action::Finish(answer)) => answer,
        Ok(_) => idk.to_owned(),
        Err(_) if is_thought => idk.to_owned(),
        Err(_) => reply.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_after_the_last_one_is_no_answer() {
        for (reply, answer) in [
            ("0.75", "0.75"),
            ("Thought: it is there\nAction: finish[0.75]", "0.75"),
            ("finish[0.75]", "0.75"),
            ("Thought: I go on\nAction: search[words]", "idk"),
            ("Action: search[words]", "idk"),
            ("Thought: it was cut", "idk"),
        ] {
            assert_eq!(last_answer(reply, "idk"), answer, "{reply}");
        }
    }
}
