//! A language model for operator tests: a function from prompts to replies.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use turnflow_engine::component::{Call, Model, Models, Operator, OperatorConfig, Warnings};
use turnflow_engine::document::Chunk;
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Finish, Generation, Generator, Prompt, Sampling, Spoken, TextStream};
use turnflow_engine::record::{Answer, Hit, Hits, Query, Status, Turn, Value};

type Reply = dyn Fn(&str) -> Result<String, InferenceError> + Send + Sync;

/// Replies with a function, and records its prompts.
pub(crate) struct Scripted {
    reply: Box<Reply>,
    sampling: Sampling,
    /// Number of passages that it says did not fit.
    pub left_out: usize,
    /// The prompts, each with its sampling settings.
    pub asked: Mutex<Vec<(Prompt, Sampling)>>,
}

impl Scripted {
    /// A model that replies with this function.
    pub fn new(reply: impl Fn(&str) -> Result<String, InferenceError> + Send + Sync + 'static) -> Arc<Self> {
        let sampling = Sampling::default();
        Arc::new(Self { reply: Box::new(reply), sampling, left_out: 0, asked: Mutex::default() })
    }

    /// A model that always gives this reply.
    pub fn says(reply: &str) -> Arc<Self> {
        let reply = reply.to_owned();
        Self::new(move |_| Ok(reply.clone()))
    }

    /// A model that always fails.
    pub fn fails() -> Arc<Self> {
        Self::new(|_| Err(InferenceError::Failed("out of order".into())))
    }

    /// Number of calls.
    pub fn calls(&self) -> usize {
        self.asked.lock().len()
    }

    /// The models of a pipeline in which this model is `llm`.
    pub fn models(self: &Arc<Self>) -> Models {
        let spoken = Spoken::new(self.clone());
        let model = Model { name: "llm".into(), generator: Some(Arc::new(spoken)), ..Model::default() };
        Models::from([("llm".to_owned(), Arc::new(model))])
    }
}

impl Generator for Scripted {
    fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    fn generate_streamed(
        &self,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let finish = if sampling.max_tokens == 1 { Finish::Length } else { Finish::Stop };
        let reply = (self.reply)(&prompt.plain());
        self.asked.lock().push((prompt, sampling));
        let left_out = self.left_out;
        let whole = move |text: String| {
            stream.send(&text);
            Generation { text, finish, cut: left_out, left_out, ..Generation::default() }
        };
        async move { reply.map(whole) }.boxed()
    }

    fn count(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }
}

/// Builds an operator from its configuration in RON, without the name.
pub(crate) fn operator<C: OperatorConfig + serde::de::DeserializeOwned>(
    config: &str,
    models: &Models,
) -> Arc<dyn Operator> {
    let config: C = turnflow_engine::spec::from_str(config).unwrap();
    turnflow_engine::component::build_alone(&config, "test", models).unwrap()
}

/// Calls an operator, and returns its value and its warnings.
pub(crate) fn call(operator: &Arc<dyn Operator>, turn: Turn, input: Value) -> (Value, Vec<String>) {
    let warnings = Warnings::default();
    let call = Call {
        turn: Arc::new(turn),
        inputs: vec![input],
        snapshot: Arc::default(),
        warnings: warnings.clone(),
        stream: Default::default(),
        weights: None,
        format: None,
        watch: Default::default(),
    };
    let value = run(operator.clone().call(call)).unwrap();
    (value, warnings.take())
}

/// Blocks on a future.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A ranked list of passages with the ids `p1`, `p2`, ….
pub(crate) fn hits(query: &str, texts: &[&str]) -> Value {
    let hit = |(at, text): (usize, &&str)| {
        let id: Arc<str> = format!("p{}", at + 1).into();
        Hit { chunk: Arc::new(Chunk::new(id.clone(), id, "".into(), (*text).into())), score: 1.0 / (at + 1) as f32 }
    };
    Value::Hits(Arc::new(Hits { query: Query::new(query), hits: texts.iter().enumerate().map(hit).collect() }))
}

/// An answer with passages.
pub(crate) fn answer(query: &str, text: &str, passages: &[&str]) -> Value {
    let Value::Hits(list) = hits(query, passages) else { unreachable!() };
    let Hits { query, hits } = Hits::clone(&list);
    let answer =
        Answer { query, text: text.into(), status: Status::Answered, hits, support: None, checks: Default::default() };
    Value::Answer(Arc::new(answer))
}
