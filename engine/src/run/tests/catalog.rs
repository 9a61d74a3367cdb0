//! Components that panic on certain texts.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::component::*;
use crate::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, Stopped, TurnOutput, TurnSource};
use crate::document::{Chunk, Content, ContentHash, Document, Markup};
use crate::inference::{InferenceError, Tokenize};
use crate::record::{PortType, Value};
use crate::spec::from_tree;

/// The chunker panics on a document with this text.
pub(super) const BAD_FOR_CHUNKER: &str = "bad for the chunker";
/// The preparation panics on a passage with this text.
pub(super) const BAD_FOR_PREPARATION: &str = "bad for the preparation";
/// The index panics on a passage with this text.
pub(super) const BAD_FOR_INDEX: &str = "bad for the index";
/// The version of an index with this text panics always, outside the calls in which a passage can be found to be bad.
pub(super) const BAD_FOR_WRITER: &str = "bad for the writer";
/// The same, but only the first time.
pub(super) const BAD_ONCE_FOR_WRITER: &str = "bad once for the writer";
/// An index with this file cannot be opened.
pub(super) const UNREADABLE: &str = "kept/versions/unreadable";
/// Whether `OneByOne` sends more than its first document.
pub(super) static GOES_ON: AtomicBool = AtomicBool::new(false);
/// Whether it has panicked.
pub(super) static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

/// Slow texts are prepared only while this is open.
pub(super) static GATE: Semaphore = Semaphore::const_new(0);
/// The prefix of slow texts.
pub(super) const SLOW: &str = "slow";
/// Texts with this prefix are prepared only while `SERVER_IS_AWAY` is not set.
pub(super) const REMOTE: &str = "remote";
/// Whether the model's server is away.
pub(super) static SERVER_IS_AWAY: AtomicBool = AtomicBool::new(false);
/// Number of contents with slow texts that have reached the preparation.
pub(super) static ASKED: AtomicUsize = AtomicUsize::new(0);

pub(super) static CATALOG: LazyLock<Catalog> = LazyLock::new(|| Catalog {
    operators: vec![OperatorKind {
        name: "Find",
        inputs: const { &[InputPort::one(PortType::Turns)] },
        output: PortType::Hits,
        summary: "",
        fields: Find::fields,
        parse: |tree, sources| Ok(Box::new(from_tree::<Find>(tree, sources)?)),
    }],
    models: vec![],
    chunkers: vec![ChunkerKind::of::<Lines>("Lines", "")],
    corpus_sources: vec![
        CorpusSourceKind::of::<Listed>("Listed", ""),
        CorpusSourceKind::of::<Held>("Held", ""),
        CorpusSourceKind::of::<OneByOne>("OneByOne", ""),
        CorpusSourceKind::of::<Many>("Many", ""),
    ],
    turn_sources: vec![TurnSourceKind::of::<Spoken>("Spoken", "")],
    sinks: vec![],
    passages: Some(super::passages::open),
    reference: String::new(),
});

fn document(id: &str, text: &str) -> Document {
    Document { id: id.into(), title: "".into(), text: text.into(), markup: Markup::Plain, metadata: Default::default() }
}

/// The documents that the file lists; panics before the one that is called `panic`.
#[derive(Clone, Debug, Deserialize)]
struct Listed {
    documents: BTreeMap<String, String>,
}

impl Configured for Listed {}

impl CorpusSourceConfig for Listed {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl CorpusSource for Listed {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        for (id, text) in &self.documents {
            assert!(id != "panic", "as a fault in the source would");
            output.change(id.as_str(), Some(document(id, text)))?;
        }
        output.commit()?;
        Ok(output.ready()?)
    }
}

/// The documents that a JSON file lists. It is read when there is a file beside it, with `.go` after its name.
#[derive(Clone, Debug, Deserialize)]
struct Held {
    path: std::path::PathBuf,
}

impl Configured for Held {}

impl CorpusSourceConfig for Held {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl CorpusSource for Held {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        while !self.path.with_extension("json.go").exists() {
            if output.stop().wait(Duration::from_millis(2)) {
                return Err(Stopped.into());
            }
        }
        let documents: BTreeMap<String, String> =
            serde_json::from_slice(&std::fs::read(&self.path).unwrap_or_default()).unwrap_or_default();
        for (id, text) in &documents {
            let fields = serde_json::json!({"groups": ["staff"], "length": text.len()});
            let metadata = fields.as_object().map(|fields| crate::metadata::Metadata::of(fields).0).unwrap_or_default();
            output.change(id.as_str(), Some(Document { metadata, ..document(id, text) }))?;
        }
        output.commit()?;
        Ok(output.ready()?)
    }
}

/// One document per commit, called by its number. Ready after the first, and then waits for [`GOES_ON`].
#[derive(Clone, Debug, Deserialize)]
struct OneByOne {
    texts: Vec<String>,
}

impl Configured for OneByOne {}

impl CorpusSourceConfig for OneByOne {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl CorpusSource for OneByOne {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        for (n, text) in self.texts.iter().enumerate() {
            let id = n.to_string();
            output.change(id.as_str(), Some(document(&id, text)))?;
            output.commit()?;
            if n == 0 {
                output.ready()?;
                while !GOES_ON.load(Ordering::SeqCst) {
                    if output.stop().wait(Duration::from_millis(2)) {
                        return Err(Stopped.into());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Sends `first` documents in one commit, and then `then` documents in one commit each.
#[derive(Clone, Debug, Deserialize)]
struct Many {
    first: usize,
    then: usize,
}

impl Configured for Many {}

impl CorpusSourceConfig for Many {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl CorpusSource for Many {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        for n in 0..self.first {
            output.change(format!("first {n}"), Some(document(&format!("first {n}"), &format!("first {n}"))))?;
        }
        output.commit()?;
        output.ready()?;
        for n in 0..self.then {
            let id = format!("then {n}");
            output.change(id.as_str(), Some(document(&id, &format!("{SLOW} {n}"))))?;
            output.commit()?;
        }
        Ok(())
    }
}

/// A source that panics.
#[derive(Clone, Debug, Deserialize)]
struct Spoken {}

impl Configured for Spoken {}

impl TurnSourceConfig for Spoken {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn TurnSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl TurnSource for Spoken {
    fn run(self: Box<Self>, _: Mode, _: TurnOutput) -> Result<(), ConnectorError> {
        panic!("as a fault in the source would")
    }
}

/// One chunk per line.
#[derive(Clone, Debug, Deserialize)]
struct Lines {}

impl Configured for Lines {}

impl ChunkerConfig for Lines {
    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(self.clone())
    }
}

impl Chunker for Lines {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        assert!(!document.text.contains(BAD_FOR_CHUNKER), "as a fault in the chunker would");
        let lines = document.text.lines().enumerate();
        lines
            .map(|(n, line)| {
                Chunk::new(format!("{}#{n}", document.id).into(), document.id.clone(), "".into(), line.into())
            })
            .collect()
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Find {
    #[serde(rename = "input")]
    _input: String,
    corpus: CorpusRef,
}

impl Configured for Find {}

impl OperatorConfig for Find {
    fn asks_other_parts(&self) -> bool {
        true
    }
    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }
    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(Definition)])
    }
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Definition)))
    }
}

struct Definition;

impl Operator for Definition {
    fn call(self: Arc<Self>, _: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async { Ok(Value::Turn) }.boxed()
    }
}

impl IndexDefinition for Definition {
    fn key(&self) -> String {
        "find".to_owned()
    }
    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        let found = directory.map(|directory| directory.join(UNREADABLE)).filter(|path| path.exists());
        let opened = match found {
            Some(path) => Err(IndexError::Io { action: "read", path, source: std::io::ErrorKind::InvalidData.into() }),
            None => Ok(Box::new(TextIndex::default()) as Box<dyn Index>),
        };
        async { opened }.boxed()
    }
    fn backed_up(&self) -> Option<BackedUp> {
        Some(BackedUp { directory: "kept", versions: "kept/versions", is_temporary: |_| false })
    }
}

/// A reader: texts by passage.
pub(super) type Texts = BTreeMap<Arc<str>, Arc<str>>;

/// An index of texts; after a panic it may be incomplete, like any index.
#[derive(Default)]
struct TextIndex {
    texts: Texts,
    prepared: Arc<Preparation>,
}

#[derive(Default)]
struct Preparation {
    aside: Mutex<BTreeSet<ContentHash>>,
}

impl Prepare for Preparation {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        assert!(
            !contents.iter().any(|content| content.chunk.text.contains(BAD_FOR_PREPARATION)),
            "as a fault in the model would"
        );
        let is_remote = contents.iter().any(|content| content.chunk.text.starts_with(REMOTE));
        if is_remote && SERVER_IS_AWAY.load(Ordering::SeqCst) {
            let (url, reason) = ("http://model".to_owned(), "connection refused".to_owned());
            let away =
                InferenceError::Server { url, status: None, reason, transient: false, outage: true, after: None };
            return async { Err(away.into()) }.boxed();
        }
        let mut aside = self.aside.lock();
        contents.iter().for_each(|content| _ = aside.remove(&content.chunk.hash));
        drop(aside);
        let slow = contents.iter().filter(|content| content.chunk.text.starts_with(SLOW)).count();
        ASKED.fetch_add(slow, Ordering::SeqCst);
        async move {
            if slow > 0 {
                let closed = |_| InferenceError::Failed("the gate is gone".to_owned());
                drop(GATE.acquire().await.map_err(closed)?);
            }
            Ok(Prepared { embedded: contents.len() })
        }
        .boxed()
    }
    fn set_aside(&self, contents: &[Content]) {
        self.aside.lock().extend(contents.iter().map(|content| content.chunk.hash));
    }
}

impl Index for TextIndex {
    fn preparation(&self) -> Option<Arc<dyn Prepare>> {
        Some(self.prepared.clone())
    }
    fn version(&self) -> Option<u64> {
        let has = |bad: &str| self.texts.values().any(|text| **text == *bad);
        assert!(!has(BAD_FOR_WRITER), "as a fault in the index writer would");
        let panics = has(BAD_ONCE_FOR_WRITER) && !HAS_PANICKED.swap(true, Ordering::SeqCst);
        assert!(!panics, "as a fault in the index writer would, once");
        Some(1)
    }
    fn apply<'a>(&'a mut self, delta: &'a Delta) -> BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        async move {
            if delta.whole {
                self.texts.clear();
            }
            let aside = self.prepared.aside.lock().clone();
            for chunk in delta.removed.iter().filter(|chunk| !aside.contains(&chunk.hash)) {
                assert!(self.texts.remove(&chunk.id).is_some(), "{} was never there", chunk.id);
            }
            for chunk in delta.added.iter().filter(|chunk| !aside.contains(&chunk.hash)) {
                assert!(!chunk.text.contains(BAD_FOR_INDEX), "as a fault in the index would");
                self.texts.insert(chunk.id.clone(), chunk.text.to_string().into());
            }
            Ok(Arc::new(self.texts.clone()) as Arc<dyn Any + Send + Sync>)
        }
        .boxed()
    }
}
