//! Keeps the passages that a language model finds relevant: Hits → Hits.
//!
//! ```ron
//! LlmFilter(input: "ranked", model: "llm", scale: Likert, keep_at_least: 2)
//! ```
//!
//! With `Likert` the model rates each passage from 1 (unrelated) to 5 (the answer itself), one call for each passage,
//! and passages rated at least `keep_at_least` stay (RAGTUM, section 4.3 and appendix A.2, where it is 2). With `Ids`
//! the model sees all passages at once and names the relevant ones. If it names none, `random` passages are drawn
//! (FusionRAG, section 2.3, where these are 2; by section 4.3, 254 of its 446 questions had no answer because the
//! filter kept nothing). The draw uses a hash of the seed, the conversation, the turn and the passage, so a run can be
//! repeated.
//!
//! A model that computes likelihoods (`OnnxDecoder`) is not asked to write a rating: the rating is the mean of 1 to 5,
//! weighted by how likely each is as its reply. Such a rating can always be read.
//!
//! Order and scores do not change. If a rating cannot be parsed or a call fails, the passage stays, because a relevant
//! passage that is dropped cannot be recovered. A reply of `Ids` that names neither numbers nor "none" keeps all
//! passages. Both add a warning. Prompt placeholders: `{question}` and `{passage}`, or `{question}` and `{passages}`.
//! Cost: one model call for each passage (`Likert`) or turn (`Ids`).

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use turnflow_engine::component::{
    BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator, OperatorConfig,
    OperatorError, OperatorKind, ScoreUse, built_at_once, config,
};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Generator, SamplingFields};
use turnflow_engine::record::{Hit, Hits, PortType, Turn, Value};
use turnflow_engine::spec::FilePath;

use crate::models::generator;
use crate::passages::{Length, numbered};
use crate::reply::{clean, number, numbers};
use crate::template::{Filling, Template};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<LlmFilterConfig>(
    "LlmFilter",
    &[InputPort::one(PortType::Hits)],
    PortType::Hits,
    "the passages that a language model judges relevant",
);

/// The ratings of `Likert`.
const RATINGS: [u32; 5] = [1, 2, 3, 4, 5];

/// What the model is asked to return.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// A rating from 1 to 5 for each passage.
    #[default]
    Likert,
    /// The numbers of the relevant passages, in one reply.
    Ids,
}

impl Scale {
    fn prompt(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Scale::Likert => (include_str!("../prompts/filter_likert.txt"), &["passage", "question"]),
            Scale::Ids => (include_str!("../prompts/filter_ids.txt"), &["passages", "question"]),
        }
    }
}

/// Fields of `LlmFilter`.
#[config]
pub struct LlmFilterConfig {
    /// Input node that produces hits.
    _input: String,
    /// The language model that judges passages.
    pub model: String,
    /// What the model is asked to return: `Likert` or `Ids`. Default `Likert`.
    #[field(default)]
    pub scale: Scale,
    /// Minimum rating of a kept passage, 1 to 5; for `Likert`.
    #[field(default = 2, range = 1..=5)]
    pub keep_at_least: u64,
    /// Number of passages to draw if the model names none; for `Ids`.
    #[field(default = 2, range = 0..=1000)]
    pub random: usize,
    /// Seed of the draw; for `Ids`.
    #[field(default)]
    pub seed: u64,
    /// Number of passages to judge, best first; the rest are dropped.
    #[field(default = 10, range = 1..=1000)]
    pub passages: usize,
    /// Maximum length of each passage in the prompt, in characters. Default: limited only by the model's context.
    #[field(range = 1..=1_000_000)]
    pub characters: Option<usize>,
    /// Maximum number of concurrent model calls for a turn; for `Likert`.
    #[field(default = 4, range = 1..=1000)]
    pub concurrency: usize,
    /// Prompt file. Default: the built-in prompt of the scale.
    pub prompt: Option<FilePath>,
    /// Sampling settings. Omitted fields use the model's own settings.
    #[field(default)]
    pub sampling: SamplingFields,
}

impl OperatorConfig for LlmFilterConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        check.sampling("sampling", &self.sampling);
        Template::check(self.prompt.as_ref(), "prompt", self.scale.prompt().1, check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Generate }]
    }

    fn explain(&self) -> String {
        let Self { model, passages, .. } = self;
        let how = match self.scale {
            Scale::Likert => {
                format!("Likert, keep_at_least: {}, concurrency: {}", self.keep_at_least, self.concurrency)
            }
            Scale::Ids => format!("Ids, random: {}, seed: {}", self.random, self.seed),
        };
        let characters = self.characters.map_or("all".to_owned(), |most| most.to_string());
        let prompt = self.prompt.as_ref().map_or("built-in", |file| &file.written);
        format!("model: {model:?}, scale: {how}, passages: {passages}, characters: {characters}, prompt: {prompt}")
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let generator = generator(models, &self.model, "LlmFilter")?;
            let (built_in, places) = self.scale.prompt();
            let template = Template::load(self.prompt.as_ref(), built_in, places)?;
            let length = self.characters.map_or(Length::Whole, Length::Characters);
            Ok(Arc::new(LlmFilter { config: self.clone(), generator, template, length }))
        })
    }
}

struct LlmFilter {
    config: LlmFilterConfig,
    generator: Arc<dyn Generator>,
    template: Template,
    length: Length,
}

impl Operator for LlmFilter {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let list = call.hits(0)?;
            let hits = &list.hits[..list.hits.len().min(self.config.passages)];
            let kept = match self.config.scale {
                _ if hits.is_empty() => Vec::new(),
                Scale::Likert => self.rated(&call, list.query.question(), hits).await,
                Scale::Ids => self.named(&call, list.query.question(), hits).await?,
            };
            Ok(Value::Hits(Arc::new(Hits { query: list.query.clone(), hits: kept })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(self.config.passages)
    }
}

impl LlmFilter {
    async fn rated(&self, call: &Call, question: &str, hits: &[Hit]) -> Vec<Hit> {
        // Each future owns its data, so that it borrows nothing that the stream moves.
        let asked = hits.iter().map(|hit| {
            let prompt = self.length.cut(&hit.chunk.text).map(|text| {
                let passage = Filling::MayBeCut(vec![self.template.quoted(text).into_owned()]);
                self.template.fill(&[("question", self.template.question(question)), ("passage", passage)])
            });
            let (generator, sampling) = (self.generator.clone(), self.config.sampling.over(self.generator.sampling()));
            let sampling = sampling.of_labels(RATINGS.map(|rating| format!("Score: {rating}")));
            async move {
                let reply = generator.generate(prompt?, sampling).await?;
                Ok::<_, InferenceError>(reply.expected(RATINGS.map(f64::from)).or_else(|| rating(&reply.text)))
            }
            .boxed()
        });
        let replies: Vec<_> =
            futures::stream::iter(asked.collect::<Vec<_>>()).buffered(self.config.concurrency).collect().await;
        let keep = |(hit, rating): (&Hit, Result<Option<f64>, InferenceError>)| {
            let reason = match rating {
                Ok(Some(rating)) => return (rating >= self.config.keep_at_least as f64).then(|| hit.clone()),
                Ok(None) => "its rating could not be parsed".to_owned(),
                Err(error) => format!("it was not rated ({error})"),
            };
            call.warnings.add(format!("passage `{}` was kept: {reason}", hit.chunk.id));
            Some(hit.clone())
        };
        hits.iter().zip(replies).filter_map(keep).collect()
    }

    async fn named(&self, call: &Call, question: &str, hits: &[Hit]) -> Result<Vec<Hit>, OperatorError> {
        let passages = Filling::MayBeCut(numbered(hits, &self.length, &self.template, &[])?);
        let prompt = self.template.fill(&[("question", self.template.question(question)), ("passages", passages)]);
        let sampling = self.config.sampling.over(self.generator.sampling());
        let (reply, given, seen) = match self.generator.generate(prompt, sampling).await {
            Ok(generation) => {
                let given = hits.len().saturating_sub(generation.left_out);
                (generation.text, given, hits.len().saturating_sub(generation.cut))
            }
            Err(error) => {
                call.warnings.add(format!("all passages were kept: they were not judged ({error})"));
                return Ok(hits.to_vec());
            }
        };
        Ok(match ids(&reply, given) {
            Some(ids) if !ids.is_empty() => {
                // The model has not judged passages that it did not see in full.
                if seen < hits.len() {
                    call.warnings
                        .add(format!("the last {} passages were kept: they exceeded the context", hits.len() - seen));
                }
                let unseen = (seen..hits.len()).filter(|at| !ids.contains(at)).collect::<Vec<_>>();
                ids.iter().chain(&unseen).map(|&at| hits[at].clone()).collect()
            }
            Some(_) => {
                let drawn = draw(hits, self.config.random, self.config.seed, &call.turn);
                call.warnings.add(format!("no passage was judged relevant; {} were drawn at random", drawn.len()));
                drawn
            }
            None => {
                call.warnings.add("all passages were kept: the reply names no existing passage");
                hits.to_vec()
            }
        })
    }
}

/// The rating in a reply: the number after "score", or else the first number, if it is 1 to 5.
fn rating(reply: &str) -> Option<f64> {
    let reply = clean(reply).to_lowercase();
    let after = reply.find("score").map_or(reply.as_str(), |at| &reply[at..]);
    number(after).filter(|rating| (1..=5).contains(rating)).map(|rating| rating as f64)
}

/// Indices of the passages that a reply names, ascending. Empty if the reply says that there are none; `None` if it
/// cannot be parsed.
fn ids(reply: &str, passages: usize) -> Option<Vec<usize>> {
    let reply = clean(reply).to_lowercase();
    let named = numbers(&reply);
    let mut ids: Vec<usize> =
        named.iter().filter_map(|&id| usize::try_from(id).ok()).filter(|id| (1..=passages).contains(id)).collect();
    ids.sort_unstable();
    ids.dedup();
    let says_none = reply.split(|c: char| !c.is_alphanumeric()).any(|word| word == "none" || word == "no")
        || matches!(reply.as_str(), "[]" | "0" | "");
    match (ids.is_empty(), says_none) {
        (false, _) => Some(ids.into_iter().map(|id| id - 1).collect()),
        (true, true) => Some(Vec::new()),
        (true, false) => None,
    }
}

/// Draws `most` passages pseudo-randomly and keeps their order.
fn draw(hits: &[Hit], most: usize, seed: u64, turn: &Turn) -> Vec<Hit> {
    let lot = |hit: &Hit| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(&turn.turn.to_le_bytes());
        for text in [&turn.conversation_id, &hit.chunk.id] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        *hasher.finalize().as_bytes()
    };
    let mut lots: Vec<([u8; 32], usize)> = hits.iter().enumerate().map(|(at, hit)| (lot(hit), at)).collect();
    lots.sort_unstable();
    let mut drawn: Vec<usize> = lots.into_iter().take(most).map(|(_, at)| at).collect();
    drawn.sort_unstable();
    drawn.into_iter().map(|at| hits[at].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_generator::{Scripted, call, hits, operator};
    use crate::test_turn::turn;
    use turnflow_engine::language::Generation;

    fn run(config: &str, model: &Arc<Scripted>, number: u32) -> (Vec<String>, Vec<String>) {
        let operator = operator::<LlmFilterConfig>(config, &model.models());
        let turn = Turn { turn: number, ..turn(&[], "q") };
        let (Value::Hits(kept), warnings) = call(&operator, turn, hits("q", &["red", "green", "blue", "white"])) else {
            panic!()
        };
        (kept.hits.iter().map(|hit| hit.chunk.id.to_string()).collect(), warnings)
    }

    const LIKERT: &str = r#"(input: "hits", model: "llm", passages: 3)"#;
    const IDS: &str = r#"(input: "hits", model: "llm", scale: Ids)"#;

    #[test]
    fn passages_below_the_rating_go() {
        let model = Scripted::new(|prompt| {
            Ok(if prompt.contains("green") { "Score: 1\nOther topic." } else { "score: 2, of 5" }.to_owned())
        });
        assert_eq!(run(LIKERT, &model, 1), (vec!["p1".into(), "p3".into()], vec![]));
        assert_eq!(model.calls(), 3);
    }

    #[test]
    fn a_rating_may_be_the_mean_of_its_likelihoods() {
        let reply = |labels: &[f32]| Generation { labels: labels.to_vec(), ..Generation::default() };
        let rated = |labels: &[f32]| reply(labels).expected(RATINGS.map(f64::from));
        assert_eq!(rated(&[0.5, 0.0, 0.0, 0.0, 0.5]), Some(3.0));
        assert_eq!(rated(&[]), None);
        let model = Scripted::says("Score: 5");
        run(LIKERT, &model, 1);
        assert_eq!(model.asked.lock()[0].1.labels[4], "Score: 5");
    }

    #[test]
    fn what_cannot_be_read_is_kept_with_a_note() {
        let model = Scripted::new(|prompt| match () {
            () if prompt.contains("red") => Err(InferenceError::Failed("x".into())),
            () if prompt.contains("green") => Ok("Very relevant!".into()),
            () => Ok("1".into()),
        });
        let (kept, warnings) = run(LIKERT, &model, 1);
        assert_eq!(kept, ["p1", "p2"]);
        assert_eq!(
            warnings,
            [
                "passage `p1` was kept: it was not rated (inference failed: x)",
                "passage `p2` was kept: its rating could not be parsed",
            ]
        );
    }

    #[test]
    fn the_passages_that_are_named_stay() {
        assert_eq!(run(IDS, &Scripted::says("[3], [1] and 9"), 1), (vec!["p1".into(), "p3".into()], vec![]));
        let (kept, warnings) = run(IDS, &Scripted::says("I like them."), 1);
        assert_eq!((kept.len(), warnings.len()), (4, 1));
        let (kept, warnings) = run(IDS, &Scripted::fails(), 1);
        assert_eq!((kept.len(), warnings.len()), (4, 1));
    }

    #[test]
    fn where_none_is_named_some_are_drawn_and_the_draw_is_repeatable() {
        let model = Scripted::says("None");
        let (first, warnings) = run(IDS, &model, 1);
        assert_eq!((first.len(), &*warnings[0]), (2, "no passage was judged relevant; 2 were drawn at random"));
        assert_eq!(run(IDS, &model, 1).0, first);
        let others: Vec<_> = (2..20).map(|turn| run(IDS, &model, turn).0).collect();
        assert!(others.iter().any(|other| *other != first), "turns draw differently");
        assert_eq!(run(r#"(input: "hits", model: "llm", scale: Ids, random: 0)"#, &model, 1).0, Vec::<String>::new());
    }
}
