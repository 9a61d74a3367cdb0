//! The passages that the chunker of a corpus makes of a document.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use serde_json::{Value as Json, json};
use turnflow_engine::component::{Chunker, load_alone};
use turnflow_engine::corpus::passages;
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::plan::{Plan, PlannedCorpus, plan};
use turnflow_engine::schema::Schema;
use turnflow_engine::spec::{Override, load_str};

use super::super::{Fault, PipelineArgs, catalog, say_what_fetches, told};

/// Which chunker makes passages.
#[derive(Args)]
pub(super) struct PassageArgs {
    /// Print the passages that a chunker makes of each file, too: by default, `Headings()`.
    #[arg(long)]
    passages: bool,
    /// The chunker, as in --chunk 'Headings(max_words: 200)'. With --pipeline, it may use the models of that pipeline.
    /// Implies --passages.
    #[arg(long, value_name = "RON")]
    chunk: Option<String>,
    /// The pipeline file whose chunker makes the passages. Implies --passages.
    #[arg(long, value_name = "FILE")]
    pipeline: Option<PathBuf>,
    /// The corpus of this pipeline, if it has several.
    #[arg(long, value_name = "NAME", requires = "pipeline")]
    corpus: Option<String>,
}

/// A pipeline with nothing but a corpus.
const ALONE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Documents(), chunk: Headings()) },
    nodes: { "turns": Stdin() },
)"#;

/// Makes passages of documents.
pub(super) struct Passages {
    chunker: Arc<dyn Chunker>,
    schema: Arc<Schema>,
}

impl Passages {
    /// `None` if no passages are wanted.
    pub fn of(args: &PassageArgs) -> Result<Option<Self>, Fault> {
        let plan = match (&args.pipeline, &args.chunk) {
            (Some(file), _) => of_pipeline(file, args)?,
            (None, None) if !args.passages => return Ok(None),
            (None, chunk) => alone(chunk.as_deref())?,
        };
        let corpus = corpus(&plan, args.corpus.as_deref())?;
        let tokenizer = match &corpus.tokenizer {
            None => None,
            Some(name) => {
                let model = plan.models.get(name).ok_or_else(|| anyhow!("there is no model `{name}`"))?;
                load_alone(&*model.config, name)?.tokenizer
            }
        };
        Ok(Some(Self { chunker: corpus.chunker.build(tokenizer), schema: corpus.schema.clone() }))
    }

    /// The passages of a document.
    pub fn make(&self, document: &Document) -> Result<Vec<Chunk>, String> {
        passages(document, &*self.chunker, &self.schema).map_err(|error| error.to_string())
    }
}

/// A chunker without a pipeline.
fn alone(chunk: Option<&str>) -> Result<Plan, Fault> {
    let set = chunk.map(|chunk| chunker_of("docs", chunk));
    let mut planned = plan(load_str("a pipeline of one corpus", Path::new(""), ALONE, set.as_slice()), catalog());
    say_what_fetches(&mut planned.diagnostics);
    for diagnostic in planned.diagnostics.iter_mut().filter(|diagnostic| diagnostic.code == "unknown-model") {
        diagnostic.help = vec!["name a pipeline that has the model, with `--pipeline FILE`".to_owned()];
    }
    match planned.plan {
        Some(plan) => Ok(plan),
        None => Err(told(&planned.diagnostics, &planned.sources)),
    }
}

/// The chunker of a pipeline, or another one that uses its models.
fn of_pipeline(file: &Path, args: &PassageArgs) -> Result<Plan, Fault> {
    let pipeline = |set| PipelineArgs { file: file.to_owned(), set }.described();
    let plan = pipeline(Vec::new())?;
    match &args.chunk {
        None => Ok(plan),
        Some(chunk) => pipeline(vec![chunker_of(&corpus(&plan, args.corpus.as_deref())?.name, chunk)]),
    }
}

fn chunker_of(corpus: &str, chunk: &str) -> Override {
    Override { path: format!("corpora.{corpus}.chunk"), value: chunk.to_owned() }
}

/// The corpus of this name, or the only one.
fn corpus<'p>(plan: &'p Plan, name: Option<&str>) -> Result<&'p PlannedCorpus, Fault> {
    let names = || plan.corpora.iter().map(|corpus| format!("`{}`", corpus.name)).collect::<Vec<_>>().join(", ");
    let found = match (name, &*plan.corpora) {
        (Some(name), corpora) => corpora.iter().find(|corpus| *corpus.name == *name),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    found.ok_or_else(|| {
        Fault::Told(match name {
            _ if plan.corpora.is_empty() => anyhow!("the pipeline has no corpus"),
            Some(name) => anyhow!("unknown corpus `{name}`; the pipeline has {}", names()),
            None => anyhow!("the pipeline has several corpora; name one with `--corpus`: {}", names()),
        })
    })
}

/// A passage as an object.
pub(super) fn to_json(passage: &Chunk) -> Json {
    let Chunk { id, title, text, metadata, .. } = passage;
    json!({"id": id, "title": title, "text": &**text, "metadata": metadata.to_json()})
}

/// A passage as Markdown, under a mark with its id, its page and its title.
pub(super) fn to_markdown(passage: &Chunk) -> String {
    let page = passage.metadata.values("page").first().map(|page| format!(", page {page}")).unwrap_or_default();
    let title = match &*passage.title {
        "" => String::new(),
        title => format!(", title: {}", title.split_whitespace().collect::<Vec<_>>().join(" ").replace("--", "- -")),
    };
    format!("<!-- passage {}{page}{title} -->\n{}\n", passage.id.replace("--", "- -"), passage.text)
}
