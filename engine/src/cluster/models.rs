//! The models of all processes serve the turns.
//!
//! What takes long in a turn is the calls of its models, so each call goes to the process that has the least to do, as far
//! as the caller knows: every answer says what else its process is doing. A model's output does not depend on where it is
//! computed, if the processes run on equal hardware.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::peers::{AnswerParts, Peers};
use super::wire::{Bytes, Topic, decode, encode};
use crate::activity::{Activity, NodeActivity, Timed};
use crate::cache::InferenceCache;
use crate::component::Model;
use crate::inference::{
    Embedder, InferenceError, PairScorer, Priority, Role, SparseEmbedder, SparseVector, TokenEmbedder, TokenVectors,
    Vector,
};
use crate::language::{Generation, Generator, Likelihood, Prompt, Sampling, TextStream};

/// Pairs that are scored in one call. More are divided, so that several processes score them at the same time.
const PAIRS: usize = 32;
/// What a call costs besides its texts, in bytes of text.
const CALL: usize = 256;
/// What a generation costs besides its prompt, in bytes of text: it runs the model for every token that it makes.
const GENERATION: usize = 16 << 10;

/// How long a process whose model has failed is left alone.
const ALONE: Duration = Duration::from_secs(10);
/// How long it counts what a process has said about the rest of its work.
const FRESH: Duration = Duration::from_secs(1);

/// The call of a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum ModelCall {
    Embed(Vec<String>, Role),
    EmbedTokens(Vec<String>, Role),
    EmbedSparse(Vec<String>, Role),
    ScorePairs(String, Vec<String>),
    /// The sampling is as JSON: it leaves out what is not set, which the wire's own form cannot.
    Generate(Prompt, String),
    Likelihood(Vec<String>, String),
}

impl ModelCall {
    fn generate(prompt: &Prompt, sampling: &Sampling) -> Self {
        Self::Generate(prompt.clone(), serde_json::to_string(sampling).unwrap_or_default())
    }

    /// What it costs, in bytes of text.
    fn cost(&self) -> usize {
        let all = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        CALL + match self {
            Self::Embed(texts, _) | Self::EmbedTokens(texts, _) | Self::EmbedSparse(texts, _) => all(texts),
            Self::ScorePairs(first, seconds) => all(seconds) + seconds.len() * first.len(),
            Self::Generate(prompt, _) => {
                let parts = prompt.messages.iter().flat_map(|message| &message.parts);
                GENERATION + parts.map(|part| part.text.len()).sum::<usize>()
            }
            Self::Likelihood(contexts, text) => all(contexts) + contexts.len() * text.len(),
        }
    }
}

/// A question to another process.
#[derive(Serialize, Deserialize)]
struct ModelQuestion {
    model: String,
    /// The other process must have the same model.
    fingerprint: String,
    call: ModelCall,
    /// Whether somebody reads the text while it is generated.
    is_streamed: bool,
}

/// The models of all processes.
pub(crate) struct SharedModels {
    peers: Arc<Peers>,
    /// The cost of this process's calls that each process, this one too, has not answered.
    running: Vec<AtomicUsize>,
    /// The cost of each other process's calls that this process has not answered.
    received: Vec<AtomicUsize>,
    /// What each process last said: the cost of the calls of all others that it has not answered, and when it said so.
    told: Vec<Mutex<Option<(usize, Instant)>>>,
    /// The processes whose last call has failed, and until when they are left alone.
    failing: Mutex<HashMap<usize, Instant>>,
    /// Records the calls to each process.
    activity: Vec<Arc<NodeActivity>>,
    /// This process's own models, for the calls of the others. Two may be equal: those of a reload and of the plan before.
    own: RwLock<Vec<Weak<Model>>>,
}

/// What the calls to a process's models are called in metrics and in the status.
pub(crate) fn models_of(process: usize) -> Arc<str> {
    format!("models of process {process}").into()
}

impl SharedModels {
    pub fn new(peers: Arc<Peers>, activity: &Activity) -> Arc<Self> {
        let processes = 0..peers.shape.processes;
        let zeros = || processes.clone().map(|_| AtomicUsize::new(0)).collect();
        let (running, received) = (zeros(), zeros());
        let told = processes.clone().map(|_| Mutex::default()).collect();
        let activity = processes.map(|process| activity.node(&models_of(process))).collect();
        Arc::new(Self { peers, running, received, told, failing: Mutex::default(), activity, own: RwLock::default() })
    }

    /// A model whose calls for turns are made by all processes. The others may call this process's own, as long as the
    /// result is there.
    pub fn share(self: &Arc<Self>, model: Model, cache: &Arc<InferenceCache>) -> Model {
        let own = Arc::new(model.clone().remembering(cache));
        let mut all = self.own.write();
        all.retain(|own| own.strong_count() > 0);
        all.push(Arc::downgrade(&own));
        model.shared_by(self, own)
    }

    /// Answers a call of another process, and says what else this process has to do.
    pub async fn answer(self: Arc<Self>, question: Bytes, parts: AnswerParts) -> Result<Bytes, String> {
        let question: ModelQuestion = decode(&question)?;
        let Some(asker) = parts.asker() else { return Ok(Bytes::default()) };
        let _running = Running::begin(&self, Of::Received(asker), question.call.cost());
        let answer = self.computed(question, parts).await?;
        encode(&(self.cost_besides(asker), answer))
    }

    /// The cost of what this process has to do, besides the calls of this other one.
    fn cost_besides(&self, asker: usize) -> usize {
        let received = self.received.iter().enumerate().filter(|(process, _)| *process != asker);
        let received: usize = received.map(|(_, cost)| cost.load(Ordering::Relaxed)).sum();
        received + self.running[self.peers.shape.process].load(Ordering::Relaxed)
    }

    async fn computed(&self, question: ModelQuestion, parts: AnswerParts) -> Result<Bytes, String> {
        let ModelQuestion { model, fingerprint, call, is_streamed } = question;
        let is_it = |own: &Arc<Model>| own.name == model && own.fingerprint == fingerprint;
        let own = self.own.read().iter().rev().filter_map(Weak::upgrade).find(is_it);
        let own = own.ok_or_else(|| format!("it has no such model `{model}`"))?;
        let lacks = || format!("its model `{model}` cannot do that");
        let priority = Priority::Turn;
        match call {
            ModelCall::Embed(texts, role) => {
                encode(&own.embedder.as_ref().ok_or_else(lacks)?.embed(texts, role, priority).await)
            }
            ModelCall::EmbedTokens(texts, role) => {
                encode(&own.token_embedder.as_ref().ok_or_else(lacks)?.embed_tokens(texts, role, priority).await)
            }
            ModelCall::EmbedSparse(texts, role) => {
                encode(&own.sparse.as_ref().ok_or_else(lacks)?.embed_sparse(texts, role, priority).await)
            }
            ModelCall::ScorePairs(first, seconds) => {
                encode(&own.pairs.as_ref().ok_or_else(lacks)?.score(first, seconds, priority).await)
            }
            ModelCall::Generate(prompt, sampling) => {
                let stream = match is_streamed {
                    true => TextStream::new(move |piece| parts.send(Bytes(piece.as_bytes().to_vec()))),
                    false => TextStream::default(),
                };
                let sampling = serde_json::from_str(&sampling).map_err(|error| error.to_string())?;
                let generator = own.generator.as_ref().ok_or_else(lacks)?;
                encode(&generator.generate_streamed(prompt, sampling, stream).await)
            }
            ModelCall::Likelihood(contexts, text) => {
                encode(&own.likelihood.as_ref().ok_or_else(lacks)?.log_likelihood(contexts, text, priority).await)
            }
        }
    }

    /// The process that has the least to do. This process, if it has no more than the others.
    fn idlest(&self) -> usize {
        let own = self.peers.shape.process;
        let cost = |process: usize| {
            let others = match process == own {
                true => self.received.iter().map(|cost| cost.load(Ordering::Relaxed)).sum(),
                false => self.told[process].lock().filter(|(_, at)| at.elapsed() < FRESH).map_or(0, |(cost, _)| cost),
            };
            others + self.running[process].load(Ordering::Relaxed)
        };
        let failing = self.failing.lock();
        let is_failing = |process: &usize| failing.get(process).is_some_and(|until| Instant::now() < *until);
        let processes = (0..self.running.len()).filter(|process| *process == own || !is_failing(process));
        processes.min_by_key(|process| (cost(*process), *process != own)).unwrap_or(own)
    }
}

/// Whose call it is.
#[derive(Clone, Copy)]
enum Of {
    /// This process's, which this process or another one answers.
    Asked(usize),
    /// Another process's, which this process answers.
    Received(usize),
}

/// A call that is not answered, for [`SharedModels::idlest`].
struct Running {
    shared: Arc<SharedModels>,
    of: Of,
    cost: usize,
}

impl Running {
    fn begin(shared: &Arc<SharedModels>, of: Of, cost: usize) -> Self {
        shared.counted(of).fetch_add(cost, Ordering::Relaxed);
        Self { shared: shared.clone(), of, cost }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.counted(self.of).fetch_sub(self.cost, Ordering::Relaxed);
    }
}

impl SharedModels {
    fn counted(&self, of: Of) -> &AtomicUsize {
        match of {
            Of::Asked(process) => &self.running[process],
            Of::Received(process) => &self.received[process],
        }
    }
}

/// A model whose calls go to all processes.
struct Shared<M: ?Sized> {
    by: Sharing,
    inner: Arc<M>,
}

#[derive(Clone)]
struct Sharing {
    shared: Arc<SharedModels>,
    model: String,
    fingerprint: String,
    /// What the other processes call.
    _own: Arc<Model>,
}

impl Sharing {
    /// Has the idlest process make a call. `here` makes it in this process.
    async fn call<T, F>(
        self,
        call: ModelCall,
        stream: TextStream,
        here: impl FnOnce() -> F,
    ) -> Result<T, InferenceError>
    where
        T: for<'de> Deserialize<'de>,
        F: Future<Output = Result<T, InferenceError>>,
    {
        let (own, cost) = (self.shared.peers.shape.process, call.cost());
        let process = self.shared.idlest();
        let running = Running::begin(&self.shared, Of::Asked(process), cost);
        if process == own {
            return here().await;
        }
        let Sharing { shared, model, fingerprint, .. } = self;
        let is_streamed = stream.is_wanted();
        let question = encode(&ModelQuestion { model: model.clone(), fingerprint, call, is_streamed });
        let Ok(question) = question else {
            return here().await;
        };
        let timed = Timed::begin(shared.activity[process].clone());
        let (sender, mut parts) = mpsc::unbounded_channel();
        let waiting = shared.peers.begin(process, Topic::Models, question, sender);
        // The parts end with the answer.
        while let Some(Bytes(part)) = parts.recv().await {
            stream.send(&String::from_utf8_lossy(&part));
        }
        let answer = waiting.answer().await.and_then(|answer| {
            let (cost, answer): (usize, Bytes) = decode(&answer)?;
            *shared.told[process].lock() = Some((cost, Instant::now()));
            decode::<Result<T, InferenceError>>(&answer)
        });
        let reason = match answer {
            // What is wrong with the input is wrong everywhere.
            Ok(
                answer @ (Ok(_)
                | Err(InferenceError::TooLong { .. } | InferenceError::NoText(_) | InferenceError::Form(_))),
            ) => return answer,
            Ok(Err(error)) => error.to_string(),
            Err(reason) => reason,
        };
        timed.fails();
        tracing::warn!(process, model, %reason, "another process cannot call its model; this one does");
        shared.failing.lock().insert(process, Instant::now() + ALONE);
        drop(running);
        // This process has the model too.
        let _running = Running::begin(&shared, Of::Asked(own), cost);
        stream.restart();
        here().await
    }
}

impl Model {
    /// Has its calls for turns made by all processes. The others call `own`.
    fn shared_by(mut self, shared: &Arc<SharedModels>, own: Arc<Model>) -> Self {
        let (model, fingerprint) = (self.name.clone(), self.fingerprint.clone());
        let by = Sharing { shared: shared.clone(), model, fingerprint, _own: own };
        self.embedder = self.embedder.map(|inner| Arc::new(Shared { by: by.clone(), inner }) as _);
        self.token_embedder = self.token_embedder.map(|inner| Arc::new(Shared { by: by.clone(), inner }) as _);
        self.sparse = self.sparse.map(|inner| Arc::new(Shared { by: by.clone(), inner }) as _);
        self.pairs = self.pairs.map(|inner| Arc::new(Shared { by: by.clone(), inner }) as _);
        self.generator = self.generator.map(|inner| Arc::new(Shared { by: by.clone(), inner }) as _);
        self.likelihood = self.likelihood.map(|inner| Arc::new(Shared { by: by.clone(), inner }) as _);
        self
    }
}

impl Embedder for Shared<dyn Embedder> {
    fn dimension(&self) -> usize {
        self.inner.dimension()
    }

    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        if priority == Priority::Corpus {
            return inner.embed(texts, role, priority);
        }
        let call = ModelCall::Embed(texts.clone(), role);
        by.call(call, TextStream::default(), move || inner.embed(texts, role, priority)).boxed()
    }
}

impl TokenEmbedder for Shared<dyn TokenEmbedder> {
    fn dimension(&self) -> usize {
        self.inner.dimension()
    }

    fn embed_tokens(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        if priority == Priority::Corpus {
            return inner.embed_tokens(texts, role, priority);
        }
        let call = ModelCall::EmbedTokens(texts.clone(), role);
        by.call(call, TextStream::default(), move || inner.embed_tokens(texts, role, priority)).boxed()
    }
}

impl SparseEmbedder for Shared<dyn SparseEmbedder> {
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        if priority == Priority::Corpus {
            return inner.embed_sparse(texts, role, priority);
        }
        let call = ModelCall::EmbedSparse(texts.clone(), role);
        by.call(call, TextStream::default(), move || inner.embed_sparse(texts, role, priority)).boxed()
    }
}

impl PairScorer for Shared<dyn PairScorer> {
    fn classes(&self) -> usize {
        self.inner.classes()
    }

    fn score(
        &self,
        first: String,
        seconds: Vec<String>,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
        let calls = seconds.chunks(PAIRS).map(|seconds| {
            let (by, inner) = (self.by.clone(), self.inner.clone());
            let (first, seconds) = (first.clone(), seconds.to_vec());
            let call = ModelCall::ScorePairs(first.clone(), seconds.clone());
            by.call(call, TextStream::default(), move || inner.score(first, seconds, priority))
        });
        futures::future::try_join_all(calls.collect::<Vec<_>>()).map(|scores| Ok(scores?.concat())).boxed()
    }
}

impl Likelihood for Shared<dyn Likelihood> {
    fn log_likelihood(
        &self,
        contexts: Vec<String>,
        text: String,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        let calls = contexts.chunks(PAIRS).map(|contexts| {
            let (by, inner) = (self.by.clone(), self.inner.clone());
            let (contexts, text) = (contexts.to_vec(), text.clone());
            let call = ModelCall::Likelihood(contexts.clone(), text.clone());
            by.call(call, TextStream::default(), move || inner.log_likelihood(contexts, text, priority))
        });
        futures::future::try_join_all(calls.collect::<Vec<_>>()).map(|scores| Ok(scores?.concat())).boxed()
    }
}

impl Generator for Shared<dyn Generator> {
    fn sampling(&self) -> &Sampling {
        self.inner.sampling()
    }

    fn generate_streamed(
        &self,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        let call = ModelCall::generate(&prompt, &sampling);
        by.call(call, stream.clone(), move || inner.generate_streamed(prompt, sampling, stream)).boxed()
    }

    fn count(&self, text: &str) -> usize {
        self.inner.count(text)
    }

    fn check_form(&self, form: &Json) -> Result<(), InferenceError> {
        self.inner.check_form(form)
    }

    fn unmarked_thoughts(&self) -> Option<bool> {
        self.inner.unmarked_thoughts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Shape;
    use crate::metrics::Metrics;

    #[test]
    fn a_generation_arrives_as_it_was_asked_for() {
        let form = serde_json::json!({ "type": "json_schema", "json_schema": { "schema": { "minimum": 0.1 } } });
        for format in [None, Some(form)] {
            let sampling = Sampling { temperature: 0.7, seed: u64::MAX, format, ..Sampling::default() };
            let call = ModelCall::generate(&Prompt { messages: Vec::new() }, &sampling);
            let (model, fingerprint) = ("llm".to_owned(), "f".to_owned());
            let question = ModelQuestion { model, fingerprint, call, is_streamed: true };
            let arrived: ModelQuestion = decode(&encode(&question).unwrap()).unwrap();
            let ModelCall::Generate(_, text) = arrived.call else { panic!("{:?}", arrived.call) };
            assert_eq!((serde_json::from_str::<Sampling>(&text).unwrap(), arrived.is_streamed), (sampling, true));
        }
    }

    #[test]
    fn a_call_goes_to_the_process_that_has_the_least_to_do() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let peers = Peers::new(Shape { process: 1, processes: 3, workers: 1 }, runtime.handle().clone());
        let shared = SharedModels::new(peers, &Activity::new(Metrics::default()));
        assert_eq!(shared.idlest(), 1, "this one, if all are idle");
        let received = Running::begin(&shared, Of::Received(0), 100);
        assert_eq!(shared.idlest(), 0, "the calls of others count");
        *shared.told[0].lock() = Some((90, Instant::now()));
        assert_eq!(shared.idlest(), 2, "so does what a process says that it does for others");
        let asked = Running::begin(&shared, Of::Asked(2), 95);
        assert_eq!(shared.idlest(), 0);
        // What it is told leaves out the calls of the process that is told.
        assert_eq!((shared.cost_besides(0), shared.cost_besides(2)), (0, 100));
        let _own = Running::begin(&shared, Of::Asked(1), 7);
        assert_eq!(shared.cost_besides(0), 7);
        drop((received, asked));
        assert_eq!(shared.idlest(), 2);
        let Some(long_ago) = Instant::now().checked_sub(FRESH * 2) else { return };
        *shared.told[0].lock() = Some((90, long_ago));
        shared.failing.lock().insert(2, Instant::now() + ALONE);
        assert_eq!(shared.idlest(), 0, "what a process said long ago does not count");
    }
}
