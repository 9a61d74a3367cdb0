//! `turnflow-stress scale`: retrieval at growing sizes, beside other libraries on the same passages and questions. Rounds
//! alternate between the libraries, and every figure is the median of the rounds.

mod growth;
mod vectors;
mod weights;
mod words;

use std::collections::HashMap;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::inference::Vector;
use turnflow_engine::plan::{Plan, plan};
use turnflow_engine::record::{TurnRecord, Value};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load_str;
use turnflow_engine::turns::Observer;
use turnflow_eval::memory::resident;

use growth::Grown;
pub(crate) use growth::{Random, grow, texts, write};
use vectors::{Given, NumPy, Rates};
use weights::Weights;
use words::Peer;

/// How `Dense` searches first.
const EXACT: &str = "Exact";
/// Turns that are asked at the same time when throughput is measured.
const AT_ONCE: usize = 64;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Retrieval {
    /// `Bm25`, beside tantivy.
    Bm25,
    /// Exact `Dense`, beside NumPy.
    Dense,
    /// Both, fused.
    Hybrid,
    /// `Sparse`, alone.
    Sparse,
}

#[derive(Args)]
pub(crate) struct ScaleArgs {
    /// Working directory, which must be empty or absent. It is left as it is afterwards.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Passages to start from: JSON Lines with `text`.
    #[arg(long, value_name = "FILE")]
    corpus: PathBuf,
    /// Questions: JSON Lines with `text`.
    #[arg(long, value_name = "FILE")]
    queries: PathBuf,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bm25")]
    retrieval: Vec<Retrieval>,
    /// Numbers of passages.
    #[arg(long, value_delimiter = ',', default_value = "13000,100000,1000000")]
    passages: Vec<usize>,
    /// Numbers of passages to find.
    #[arg(long, value_delimiter = ',', default_value = "10,100")]
    top: Vec<usize>,
    /// Number of questions, from the first on.
    #[arg(long, default_value_t = 500)]
    questions: usize,
    /// Number of rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// File of the vectors of the passages to start from and of the questions. It is written if it does not exist.
    #[arg(long, value_name = "FILE")]
    vectors: Option<PathBuf>,
    /// Directory of an ONNX encoder (`model.onnx`, `tokenizer.json`) for these vectors.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// How `Dense` searches, besides exactly, such as `Ivf(from: 1000, recall: 0.98)`.
    #[arg(long, value_name = "RON")]
    index: Option<String>,
    /// A Python with NumPy, to compare `Dense` with.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
}

/// A pipeline that searches for this many passages.
fn pipeline(retrieval: Retrieval, top: usize, index: &str) -> String {
    let bm25 = format!(r#"Bm25(input: "query", corpus: "docs", top: {top})"#);
    let dense = format!(r#"Dense(input: "query", corpus: "docs", model: "known", top: {top}, index: {index})"#);
    let nodes = match retrieval {
        Retrieval::Bm25 => format!(r#""found": {bm25}"#),
        Retrieval::Dense => format!(r#""found": {dense}"#),
        Retrieval::Hybrid => {
            format!(r#""words": {bm25}, "vectors": {dense}, "found": Rrf(inputs: ["words", "vectors"], top: {top})"#)
        }
        Retrieval::Sparse => format!(r#""found": Sparse(input: "query", corpus: "docs", model: "known", top: {top})"#),
    };
    let models = if retrieval == Retrieval::Bm25 { "" } else { r#"models: { "known": Known() },"# };
    format!(
        r#"Pipeline(
    {models}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "passages.jsonl", watch: false), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        {nodes},
        "answer": ExtractiveAnswer(input: "found", passages: 1),
    }},
)"#
    )
}

/// A run of the pipeline, and what its retriever found last for each question.
struct Run {
    engine: Engine,
    dir: PathBuf,
    retrieval: Retrieval,
    found: Arc<Mutex<HashMap<String, Vec<String>>>>,
    asked: u64,
}

/// Time for some questions.
#[derive(Clone, Copy)]
struct Took {
    /// Of the whole turns.
    turns: Duration,
    /// In the retriever, summed over its calls.
    retriever: Duration,
}

impl Run {
    fn start(dir: &Path, retrieval: Retrieval) -> anyhow::Result<Self> {
        let found = Arc::<Mutex<HashMap<String, Vec<String>>>>::default();
        let seen = found.clone();
        let observer: Observer = Arc::new(move |node, item| {
            if node == "found"
                && let Value::Hits(hits) = &item.value
            {
                let ids = hits.hits.iter().map(|hit| hit.chunk.document.to_string()).collect();
                seen.lock().unwrap_or_else(PoisonError::into_inner).insert(item.turn.record().text.to_string(), ids);
            }
        });
        let options = Options {
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            corpora: Mode::Once,
            sources: TurnSources::None,
            sinks: false,
            observer: Some(observer),
            ..Options::default()
        };
        let engine = Engine::start(Self::plan(dir, retrieval, 10, EXACT)?, options)?;
        engine.wait_ready()?;
        Ok(Self { engine, dir: dir.to_owned(), retrieval, found, asked: 0 })
    }

    fn plan(dir: &Path, retrieval: Retrieval, top: usize, index: &str) -> anyhow::Result<Plan> {
        let mut catalog = turnflow::catalog();
        catalog.models.push(vectors::KIND);
        let planned = plan(load_str("scale", dir, &pipeline(retrieval, top, index), &[]), &catalog);
        planned.plan.ok_or_else(|| anyhow::anyhow!("the pipeline is invalid: {:#?}", planned.diagnostics))
    }

    fn search_for(&self, top: usize, index: &str) -> anyhow::Result<()> {
        self.engine.reload(Self::plan(&self.dir, self.retrieval, top, index)?, &|| false)?;
        Ok(())
    }

    /// Asks questions until an approximate index is made; returns how many seconds that took.
    fn wait_for_index(&mut self, questions: &[String]) -> anyhow::Result<f64> {
        let begun = Instant::now();
        self.answer(questions, AT_ONCE)?;
        let is_made = || -> anyhow::Result<bool> {
            for task in std::fs::read_dir("/proc/self/task")? {
                if std::fs::read_to_string(task?.path().join("comm")).is_ok_and(|name| name.trim() == "ivf") {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        while !is_made()? {
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// What was found for each question, in their order.
    fn found(&self, questions: &[String]) -> Vec<Vec<String>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        questions.iter().map(|question| found.get(question).cloned().unwrap_or_default()).collect()
    }

    fn retriever(&self) -> f64 {
        let nodes = self.engine.status().nodes;
        nodes.iter().find(|node| *node.id == *"found").map_or(0.0, |node| node.calls.durations.sum_s)
    }

    /// Answers the questions, up to `at_once` at the same time.
    fn answer(&mut self, questions: &[String], at_once: usize) -> anyhow::Result<Took> {
        let (begun, retriever) = (Instant::now(), self.retriever());
        for part in questions.chunks(at_once) {
            let before = self.engine.delivered();
            for question in part {
                self.asked += 1;
                let turn = serde_json::json!({
                    "conversation_id": self.asked.to_string(), "turn": 1, "speaker": "user", "text": question,
                });
                let record = TurnRecord::parse(turn.to_string().as_bytes())?;
                let turn = SourcedTurn { record, position: "scale".into(), history: None, place: None };
                anyhow::ensure!(self.engine.submit(turn), "the run has ended");
            }
            while self.engine.delivered() - before < part.len() {
                std::thread::park_timeout(Duration::from_micros(20));
            }
        }
        let turns = begun.elapsed();
        Ok(Took { turns, retriever: Duration::from_secs_f64((self.retriever() - retriever).max(0.0)) })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Runs one measurement of each kind a round; returns the medians.
fn rounds<const N: usize>(count: usize, mut one: impl FnMut() -> anyhow::Result<[f64; N]>) -> anyhow::Result<[f64; N]> {
    let measured = (0..count).map(|_| one()).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(std::array::from_fn(|at| median(measured.iter().map(|round| round[at]).collect())))
}

pub(crate) fn run(args: &ScaleArgs) -> anyhow::Result<()> {
    let given = texts(&args.corpus)?;
    let mut questions = texts(&args.queries)?;
    questions.truncate(args.questions);
    anyhow::ensure!(!given.is_empty() && !questions.is_empty(), "there are no passages or no questions");
    std::fs::create_dir_all(&args.dir)?;
    anyhow::ensure!(std::fs::read_dir(&args.dir)?.next().is_none(), "`{}` is not empty", args.dir.display());
    let (mut vectors, mut weights) = (None, None);
    if args.retrieval.iter().any(|kind| *kind != Retrieval::Bm25) {
        let Some(file) = &args.vectors else {
            anyhow::bail!("--vectors is required for `dense`, `hybrid` and `sparse`")
        };
        match args.retrieval[..] {
            [Retrieval::Sparse] => weights = Some(Weights::open(file, args.model.as_deref(), &given, &questions)?),
            _ => vectors = Some(Given::open(file, args.model.as_deref(), &given, &questions)?),
        }
    }
    for passages in &args.passages {
        let dir = args.dir.join(passages.to_string());
        std::fs::create_dir_all(&dir)?;
        let dir = dir.canonicalize()?;
        write(&dir.join("passages.jsonl"), grow(&given, *passages))?;
        let size = Size { args, dir, given: &given, questions: &questions, passages: *passages };
        for retrieval in &args.retrieval {
            if let Some(vectors) = &vectors {
                size.know(vectors);
            }
            match (retrieval, &vectors) {
                (Retrieval::Bm25, _) => size.words()?,
                (Retrieval::Sparse, _) => {
                    let Some(weights) = &weights else {
                        anyhow::bail!("measure `sparse` alone: its file has other vectors")
                    };
                    size.sparse(weights)?;
                }
                (Retrieval::Dense, Some(vectors)) => size.vectors(vectors)?,
                _ => size.hybrid()?,
            }
        }
    }
    Ok(())
}

/// A number of passages.
struct Size<'a> {
    args: &'a ScaleArgs,
    dir: PathBuf,
    given: &'a [String],
    questions: &'a [String],
    passages: usize,
}

impl Size<'_> {
    /// Makes the vectors of the passages and questions known.
    fn know(&self, vectors: &Given) {
        let passages: Vec<_> = grow(self.given, self.passages)
            .enumerate()
            .map(|(number, passage)| {
                let vector = vectors.grown(number, &passage);
                (passage.text, vector)
            })
            .collect();
        let questions = self.questions.iter().zip(self.given.len()..);
        let questions = questions.map(|(text, number)| (text.as_str(), vectors.of(number).into()));
        let passages = passages.iter().map(|(text, vector)| (text.as_str(), vector.clone()));
        vectors::know(passages.chain(questions));
    }

    /// Starts a pipeline; returns how many seconds indexing took.
    fn start(&self, retrieval: Retrieval) -> anyhow::Result<(Run, f64)> {
        let (before, begun) = (resident()?.now, Instant::now());
        let run = Run::start(&self.dir, retrieval)?;
        let took = begun.elapsed().as_secs_f64();
        println!(
            "{} passages, {retrieval:?}: indexed in {took:.2} s, {:.0} bytes resident a passage",
            self.passages,
            (resident()?.now - before) * 1e6 / self.passages as f64
        );
        Ok((run, took))
    }

    /// Questions per second: one by one, in the retriever alone, and many at once.
    fn rates(&self, run: &mut Run) -> anyhow::Result<[f64; 3]> {
        let each = self.questions.len() as f64;
        let alone = run.answer(self.questions, 1)?;
        let loaded = run.answer(self.questions, AT_ONCE)?;
        Ok([alone.turns, alone.retriever, loaded.turns].map(|took| each / took.as_secs_f64()))
    }

    fn words(&self) -> anyhow::Result<()> {
        let texts: Vec<String> = grow(self.given, self.passages).map(|Grown { text, .. }| text).collect();
        let peer = Peer::index(&self.dir.join("tantivy"), texts.iter().map(String::as_str))?;
        drop(texts);
        let (mut run, took) = self.start(Retrieval::Bm25)?;
        let theirs = peer.indexing.as_secs_f64();
        println!("  tantivy indexes in {theirs:.2} s: turnflow takes {:.2} times as long", took / theirs);
        for top in &self.args.top {
            run.search_for(*top, EXACT)?;
            run.answer(self.questions, AT_ONCE)?;
            let each = self.questions.len() as f64;
            let [alone, retriever, loaded, theirs, theirs_loaded] = rounds(self.args.rounds, || {
                let theirs = peer.search(self.questions, *top)?;
                let [alone, retriever, loaded] = self.rates(&mut run)?;
                let theirs_loaded = peer.search_on_all_cores(self.questions, *top)?;
                let [theirs, theirs_loaded] = [theirs, theirs_loaded].map(|took| each / took.as_secs_f64());
                Ok([alone, retriever, loaded, theirs, theirs_loaded])
            })?;
            let shared = self.shared(&run, &peer, *top)?;
            println!(
                "  top {top}: questions/s one by one {alone:.0}, the retriever alone {retriever:.0}, tantivy {theirs:.0} \
                 ({:.2} and {:.2} times); {AT_ONCE} at once {loaded:.0}, tantivy on all cores {theirs_loaded:.0} ({:.2} \
                 times); {:.1} % of the passages are the same",
                alone / theirs,
                retriever / theirs,
                loaded / theirs_loaded,
                100.0 * shared
            );
        }
        Ok(())
    }

    /// Share of the passages that tantivy finds too.
    fn shared(&self, run: &Run, peer: &Peer, top: usize) -> anyhow::Result<f64> {
        let found = run.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut shared = 0;
        for question in self.questions {
            let best = peer.best(question, top)?;
            shared += found.get(question).map_or(0, |ids| ids.iter().filter(|id| best.contains(id)).count());
        }
        Ok(shared as f64 / (self.questions.len() * top) as f64)
    }

    fn vectors(&self, vectors: &Given) -> anyhow::Result<()> {
        let (mut run, _) = self.start(Retrieval::Dense)?;
        let mut numpy = match &self.args.python {
            Some(python) => Some(self.numpy(python, vectors)?),
            None => None,
        };
        for top in &self.args.top {
            run.search_for(*top, EXACT)?;
            run.answer(self.questions, AT_ONCE)?;
            let none = Rates { one_by_one: f64::NAN, tiled: f64::NAN, tiled_and_selected: f64::NAN };
            let [alone, retriever, loaded, one, tiled, selected] = rounds(self.args.rounds, || {
                let rates = numpy.as_mut().map_or(Ok(none), |numpy| numpy.measure(*top))?;
                let [alone, retriever, loaded] = self.rates(&mut run)?;
                Ok([alone, retriever, loaded, rates.one_by_one, rates.tiled, rates.tiled_and_selected])
            })?;
            println!(
                "  top {top}: questions/s one by one {alone:.0}, the retriever alone {retriever:.0}, NumPy {one:.0} ({:.2} and \
                 {:.2} times); {AT_ONCE} at once {loaded:.0}, NumPy's product of 64 {tiled:.0} ({:.2} times), with selection \
                 {selected:.0} ({:.2} times)",
                alone / one,
                retriever / one,
                loaded / tiled,
                loaded / selected
            );
            if let Some(index) = &self.args.index {
                self.approximate(&mut run, *top, index, [retriever, loaded])?;
            }
        }
        Ok(())
    }

    /// An approximate index beside the exact search, whose rates are given.
    fn approximate(&self, run: &mut Run, top: usize, index: &str, exact: [f64; 2]) -> anyhow::Result<()> {
        let best = run.found(self.questions);
        run.search_for(top, index)?;
        let made = run.wait_for_index(self.questions)?;
        run.answer(self.questions, AT_ONCE)?;
        let found = run.found(self.questions);
        let shared: usize =
            best.iter().zip(&found).map(|(best, found)| best.iter().filter(|id| found.contains(id)).count()).sum();
        let all: usize = best.iter().map(Vec::len).sum();
        let [alone, retriever, loaded] = rounds(self.args.rounds, || self.rates(run))?;
        println!(
            "    {index}: made in {made:.1} s; questions/s one by one {alone:.0}, the retriever alone {retriever:.0} ({:.1} times \
             the exact search); {AT_ONCE} at once {loaded:.0} ({:.1} times); recall@{top} {:.4}",
            retriever / exact[0],
            loaded / exact[1],
            shared as f64 / all as f64
        );
        Ok(())
    }

    fn numpy(&self, python: &Path, vectors: &Given) -> anyhow::Result<NumPy> {
        let write = |name: &str, rows: &mut dyn Iterator<Item = Vector>| -> anyhow::Result<PathBuf> {
            let path = self.dir.join(name);
            let mut file = BufWriter::new(std::fs::File::create(&path)?);
            for row in rows {
                for value in row.iter() {
                    file.write_all(&value.to_le_bytes())?;
                }
            }
            file.flush()?;
            Ok(path)
        };
        let passages = grow(self.given, self.passages).enumerate();
        let passages = write("vectors.f32", &mut passages.map(|(number, passage)| vectors.grown(number, &passage)))?;
        let from = self.given.len();
        let questions = (from..from + self.questions.len()).map(|number| vectors.of(number).into());
        let questions = write("questions.f32", &mut { questions })?;
        NumPy::start(python, &passages, &questions, vectors.dimension)
    }

    fn sparse(&self, weights: &Weights) -> anyhow::Result<()> {
        let passages: Vec<_> = grow(self.given, self.passages)
            .enumerate()
            .map(|(number, passage)| {
                let terms = weights.grown(number, &passage);
                (passage.text, terms)
            })
            .collect();
        let questions = self.questions.iter().zip(self.given.len()..);
        let questions = questions.map(|(text, number)| (text.as_str(), weights.of(number).clone()));
        vectors::know_terms(passages.iter().map(|(text, terms)| (text.as_str(), terms.clone())).chain(questions));
        drop(passages);
        let (mut run, _) = self.start(Retrieval::Sparse)?;
        for top in &self.args.top {
            run.search_for(*top, EXACT)?;
            run.answer(self.questions, AT_ONCE)?;
            let [alone, retriever, loaded] = rounds(self.args.rounds, || self.rates(&mut run))?;
            println!(
                "  top {top}: questions/s one by one {alone:.0}, the retriever alone {retriever:.0}; {AT_ONCE} at once {loaded:.0}"
            );
        }
        Ok(())
    }

    fn hybrid(&self) -> anyhow::Result<()> {
        let (mut run, _) = self.start(Retrieval::Hybrid)?;
        for top in &self.args.top {
            run.search_for(*top, self.args.index.as_deref().unwrap_or(EXACT))?;
            run.wait_for_index(self.questions)?;
            let [alone, _, loaded] = rounds(self.args.rounds, || self.rates(&mut run))?;
            println!(
                "  top {top}: {:.2} ms for a question alone (mean); {AT_ONCE} at once, {loaded:.0} questions/s",
                1000.0 / alone
            );
        }
        Ok(())
    }
}
