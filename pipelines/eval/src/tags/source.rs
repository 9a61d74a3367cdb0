//! Reads documents: a corpus source for the documents of a tag, and a reader for any corpus source.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::Array;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use crossbeam_channel::bounded;
use futures::TryStreamExt;
use tokio::runtime::Handle;
use turnflow_engine::component::{Building, ComponentContext, Configured, CorpusSourceConfig, built};
use turnflow_engine::connector::{ConnectorError, CorpusEvent, CorpusOutput, CorpusSource, Mode, Stop};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::document::{Document, Markup};
use turnflow_tables::Table;

use super::TagError;

/// The documents of a tag.
#[derive(Debug, Clone)]
pub(super) struct Tagged {
    pub path: PathBuf,
    pub tag: String,
    pub version: u64,
}

impl Configured for Tagged {}

impl CorpusSourceConfig for Tagged {
    fn explain(&self) -> String {
        format!("tag: {:?}", self.tag)
    }

    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.clone())))
    }
}

impl CorpusSource for Tagged {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let path = self.path.to_string_lossy().into_owned();
        let failed = |source| ConnectorError::Io { action: "read the documents in", path: path.clone(), source };
        let lance = |error: turnflow_tables::Error| failed(std::io::Error::other(error));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().map_err(failed)?;
        runtime.block_on(async {
            let dataset = Table::open(&path).await.map_err(lance)?;
            let dataset = dataset.at(self.version).await.map_err(lance)?;
            let mut batches = dataset.scan(None).await.map_err(lance)?;
            while let Some(batch) = batches.try_next().await.map_err(lance)? {
                let documents = documents(&batch)
                    .ok_or_else(|| failed(std::io::Error::other("the dataset does not contain documents")))?;
                for document in documents {
                    output.change(document.id.clone(), Some(document))?;
                }
            }
            Ok::<(), ConnectorError>(())
        })?;
        output.commit()?;
        Ok(output.ready()?)
    }
}

fn documents(batch: &RecordBatch) -> Option<Vec<Document>> {
    let text = |name: &str| batch.column_by_name(name)?.as_string_opt::<i32>();
    let (ids, titles, markups) = (text("id")?, text("title")?, text("markup")?);
    let texts = batch.column_by_name("text")?.as_string_opt::<i64>()?;
    // Earlier versions of turnflow wrote none.
    let fields = text("metadata");
    let metadata = |at| {
        let written = fields.filter(|column| column.is_valid(at)).map(|column| column.value(at))?;
        serde_json::from_str(written).ok()
    };
    let document = |at| Document {
        id: ids.value(at).into(),
        title: titles.value(at).into(),
        text: texts.value(at).into(),
        markup: if markups.value(at) == "markdown" { Markup::Markdown } else { Markup::Plain },
        metadata: metadata(at).unwrap_or_default(),
    };
    Some((0..batch.num_rows()).map(document).collect())
}

/// Reads all current documents of a source, by id. Unreadable documents are logged and skipped.
///
/// # Errors
///
/// The source cannot be read.
pub fn read(
    corpus: &str,
    config: &dyn CorpusSourceConfig,
    runtime: &Handle,
) -> Result<BTreeMap<Arc<str>, Document>, TagError> {
    let failed = |source| TagError::Read { corpus: corpus.to_owned(), source };
    let context = ComponentContext::alone(corpus, runtime.clone());
    let source = runtime.block_on(config.build(&context)).map_err(failed)?;
    let (sender, events) = bounded(1024);
    let (_running, stop) = Stop::new();
    let output = CorpusOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), corpus.into(), stop);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || source.run(Mode::Once, output));
        let mut all = BTreeMap::new();
        for event in events {
            match event {
                CorpusEvent::Change(id, Some(document)) => drop(all.insert(id, document)),
                CorpusEvent::Change(id, None) => drop(all.remove(&id)),
                CorpusEvent::Commit | CorpusEvent::Ready | CorpusEvent::End => {}
            }
        }
        match reading.join() {
            Ok(read) => read.map(|()| all).map_err(failed),
            Err(_) => Err(failed(ConnectorError::Io {
                action: "read",
                path: corpus.to_owned(),
                source: std::io::Error::other("the source panicked"),
            })),
        }
    })
}
