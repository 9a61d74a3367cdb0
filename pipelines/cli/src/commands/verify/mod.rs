//! `turnflow verify`: compares the indexes with a cold rebuild, and standing answers with those that the pipeline gives now.

mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;
use turnflow_engine::component::{Inventory, Models};
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::Plan;
use turnflow_engine::run::{Options, TurnSources};
use turnflow_engine::state::StateDirectory;

use self::standing::Compared;
use super::{Fault, FormatArgs, Outcome, PipelineArgs, WorkerArgs, start};
use turnflow_eval::verify::{
    IndexContents, IndexId, Report, Shadow, ask_all, definitions, index_contents, read_questions, retrievers,
    sample_questions, stored, verify,
};

/// Compare the indexes with a cold rebuild; exits with 1 if they differ.
///
/// Two things are compared with the rebuild: the stored indexes as is, and the contents that a
/// restart would serve from them. The rebuild reads the current documents and recomputes every
/// encoding. The stored indexes may be older than the documents, if these changed while nothing
/// was running; this is reported, but does not count as a difference. Encodings are equal if their cosine is
/// at least 0.9999 and no value differs by more than 0.001 (8-bit values: one step more). Scores are
/// equal if they differ by at most 0.001, or above 1 by at most a thousandth of the value. Everything
/// else must be exactly equal.
///
/// Standing turns of a live pipeline are answered again, a sample or --all of them, and the passages
/// of their answers are compared.
///
/// Without --repair, nothing is changed. No other process may use the state directory, and the
/// documents should not change during the comparison.
#[derive(Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The state directory.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Questions whose hits are compared: one per line, as text or as a JSON object with `text`.
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,
    /// Number of sentences to sample from each corpus as questions, if there is no --questions.
    #[arg(long, default_value_t = 20, conflicts_with = "questions")]
    sample: usize,
    /// Compare all standing answers, and not only as many as the sample has sentences.
    #[arg(long)]
    all: bool,
    /// Seed for sampling the sentences and the standing turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Remove the indexes that differ, rebuild them, and compare again.
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    workers: WorkerArgs,
}

pub(super) fn run(args: &VerifyArgs) -> Outcome {
    let plan = args.plan()?;
    if !args.state.join("format").is_file() {
        // Exit code 1 would mean a difference.
        let path = args.state.display();
        return Err(anyhow!("`{path}` is not a state directory: `turnflow index` or `turnflow run` creates one").into());
    }
    let given = args.questions.as_deref().map(read_questions).transpose().map_err(|error| Fault::Told(error.into()))?;
    let state = StateDirectory::open(&args.state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the search threads")?;

    let has = runtime.block_on(args.stored(&state, &plan))?;
    let contents: usize = has.values().flatten().map(|inventory| inventory.encodings.len()).sum();
    if contents > 0 {
        eprintln!("the cold rebuild computes about {contents} encodings; it reuses none from the state directory");
    }
    let published = args.published(None)?;
    let mut cold = published.contents;
    let questions: BTreeMap<Arc<str>, Vec<String>> = plan
        .corpora
        .iter()
        .map(|corpus| {
            let drawn = || sample_questions(&cold, &corpus.name, args.sample, args.seed);
            (corpus.name.clone(), given.clone().unwrap_or_else(drawn))
        })
        .collect();
    let ask = |models: &Models, published: &Arc<_>| -> Result<_, Fault> {
        let retrievers = retrievers(&plan, models)?;
        Ok(runtime.block_on(ask_all(&retrievers, &questions, published)))
    };
    cold.hits = ask(&published.models, &published.snapshot)?;
    drop((published.models, published.snapshot));

    let mut standing = None;
    let mut compared = |state: &StateDirectory, has: &BTreeMap<IndexId, Option<Inventory>>| -> Result<Report, Fault> {
        let shadow = Shadow::make(state)?;
        let live = args.published(Some(shadow.path().to_owned()))?;
        let mut served = live.contents;
        served.hits = ask(&live.models, &live.snapshot)?;
        drop((live.models, live.snapshot));
        standing = Some(standing::compare(args, shadow.path().to_owned())?);
        Ok(verify(has, &served, &cold))
    };
    let first = compared(&state, &has)?;
    drop(has);
    let differing = first.differing();
    if !args.repair || first.differences.is_empty() {
        let standing = standing.unwrap_or_default();
        args.tell(&first, None, &standing);
        return if first.differences.is_empty() && standing.is_equal() { Ok(()) } else { Err(Fault::Input) };
    }
    // The parts of other processes of a cluster would be taken over.
    let processes = state.processes_from(0);
    let directories = || processes.iter().map(|(_, process)| process).chain([&state]);
    for (corpus, key) in &differing {
        for path in directories().map(|directory| directory.index_path(corpus, key)).filter(|path| path.exists()) {
            std::fs::remove_dir_all(&path).with_context(|| format!("cannot remove `{}`", path.display()))?;
        }
    }
    drop(processes);
    // Release the lock: the engine acquires it itself.
    drop(state);
    args.published(Some(args.state.clone()))?;
    let state = StateDirectory::open(&args.state)?;
    let has = runtime.block_on(args.stored(&state, &plan))?;
    let second = compared(&state, &has)?;
    let standing = standing.unwrap_or_default();
    args.tell(&first, Some((&differing, &second)), &standing);
    if second.differences.is_empty() && standing.is_equal() { Ok(()) } else { Err(Fault::Input) }
}

/// The published contents of an engine, with the models to search them.
struct Live {
    contents: IndexContents,
    models: Models,
    snapshot: Arc<turnflow_engine::component::Snapshot>,
}

impl VerifyArgs {
    /// The plan of a run, with only the models of its indexes. Dead letters are counted, but not
    /// written.
    fn plan(&self) -> Result<Plan, Fault> {
        let mut plan = self.pipeline.plan()?.running();
        plan.dead_letters = None;
        let mut used: BTreeSet<String> = plan.corpora.iter().filter_map(|corpus| corpus.tokenizer.clone()).collect();
        for node in &plan.nodes {
            for config in node.operators().into_iter().filter(|config| config.corpus().is_some()) {
                used.extend(config.models().iter().map(|model| model.name.to_owned()));
            }
        }
        plan.models.retain(|name, _| used.contains(name));
        Ok(plan)
    }

    /// The stored contents. Loads the models for this, since an index depends on its model, and drops
    /// them afterwards.
    async fn stored(&self, state: &StateDirectory, plan: &Plan) -> Result<BTreeMap<IndexId, Option<Inventory>>, Fault> {
        let mut models = Models::new();
        for (name, model) in &plan.models {
            match turnflow_engine::component::load_alone(&*model.config, name) {
                Ok(model) => drop(models.insert(name.clone(), Arc::new(model))),
                Err(error) if model.optional => eprintln!("its indexes are not compared: optional {error}"),
                Err(error) => return Err(error.into()),
            }
        }
        let definitions = definitions(plan, &models)?;
        let mut all = stored(state, &definitions).await;
        for (_, process) in state.processes_from(0) {
            for (index, part) in stored(&process, &definitions).await {
                if let (Some(Some(whole)), Some(part)) = (all.get_mut(&index), part) {
                    whole.join(part);
                }
            }
        }
        Ok(all)
    }

    /// Starts the pipeline with a state directory, or cold, updates its corpora, and stops it.
    fn published(&self, state: Option<PathBuf>) -> Result<Live, Fault> {
        let options = Options {
            workers: self.workers.count(),
            state,
            components: Some(self.state.join("components")),
            corpora: Mode::Once,
            sources: TurnSources::None,
            sinks: false,
            answer: false,
            ..Options::default()
        };
        let engine = start(self.plan()?, options)?;
        let snapshot = engine.epochs().current();
        let models = engine.models().clone();
        let contents = index_contents(&snapshot, &definitions(&self.plan()?, &models)?)?;
        engine.join()?;
        Ok(Live { contents, models, snapshot })
    }

    fn tell(&self, first: &Report, repaired: Option<(&BTreeSet<IndexId>, &Report)>, standing: &Compared) {
        if self.format.is_json() {
            let mut told = first.to_json();
            told["standing"] = standing.to_json();
            if let Some((indexes, second)) = repaired {
                let indexes: Vec<_> =
                    indexes.iter().map(|(corpus, key)| json!({"corpus": corpus, "index": key})).collect();
                told["repaired"] = json!({"indexes": indexes, "after": second.to_json()});
            }
            println!("{told:#}");
            return;
        }
        print!("{}{}", first.to_text(), standing.to_text());
        match repaired {
            None if first.differences.is_empty() => {}
            None => println!(
                "\nNothing was changed. `--repair` removes the indexes that differ and rebuilds them. The next start \
                 rebuilds unreadable indexes anyway, but indexes that are readable and wrong are still served. If \
                 documents changed during the comparison, run it again."
            ),
            Some((indexes, second)) => {
                for (corpus, key) in indexes {
                    println!("repaired: {corpus}, {key} removed and rebuilt");
                }
                println!("\nCompared again:");
                print!("{}", second.to_text());
            }
        }
    }
}
