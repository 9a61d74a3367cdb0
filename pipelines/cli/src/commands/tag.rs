//! `turnflow tag`: stores the current documents of the corpora under a name.

use anyhow::anyhow;
use clap::Args;
use serde_json::json;
use turnflow_engine::run::default_state;
use turnflow_engine::wording::count;

use super::{Fault, FormatArgs, Outcome, PipelineArgs, check_state};
use turnflow_eval::tags::{TagError, Tags, hold, read};

/// Store the current documents of the corpora under a name, for `turnflow replay`.
///
/// The tag is stored in the state directory; each version stores only the differences from the previous
/// one. Without a name, the tags are listed. A run may use the state directory at the same time.
#[derive(Args)]
pub struct TagArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The name of the tag, of letters, digits, `-`, `_` and `.`.
    #[arg(value_name = "TAG")]
    name: Option<String>,
    /// Remove the tag, and the documents that only this tag contains. The documents of the newest version
    /// are kept as long as any tag exists.
    #[arg(long, requires = "name")]
    remove: bool,
    /// The state directory [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<std::path::PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

/// Classifies an error: invalid input, or a failed store.
fn fault(error: TagError) -> Fault {
    match error {
        TagError::Unknown { .. } | TagError::Taken { .. } | TagError::Name(_) => Fault::Told(error.into()),
        TagError::Store { .. } | TagError::Read { .. } | TagError::Busy(_) => Fault::Run(error.into()),
    }
}

pub(super) fn run(args: &TagArgs) -> Outcome {
    let plan = args.pipeline.plan()?;
    let state = args.state.clone().unwrap_or_else(|| default_state(&plan.name));
    if plan.corpora.is_empty() {
        return Err(Fault::Told(anyhow!("the pipeline has no corpus")));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let tags: Vec<Tags> = plan.corpora.iter().map(|corpus| Tags::of(&state, &corpus.name)).collect();
    let Some(name) = &args.name else {
        args.state.as_deref().filter(|state| !state.is_dir()).map_or(Ok(()), check_state)?;
        let mut any = false;
        for (corpus, tags) in plan.corpora.iter().zip(&tags) {
            for tag in runtime.block_on(tags.list()).map_err(fault)? {
                any = true;
                let (corpus, name, version, made) = (&*corpus.name, &tag.name, tag.version, &tag.made);
                match args.format.is_json() {
                    true => println!("{}", json!({"corpus": corpus, "tag": name, "version": version, "made": made})),
                    false => println!("{corpus}: {name}, made {made}, version {version}"),
                }
            }
        }
        if !any {
            eprintln!("no tags");
        }
        return Ok(());
    };
    let _held = hold(&state).map_err(fault)?;
    if args.remove {
        let removed: Vec<_> = tags.iter().map(|tags| runtime.block_on(tags.remove(name))).collect();
        // A corpus may be newer than the tag.
        let had = removed.iter().any(Result::is_ok);
        let mut failed = removed.into_iter().filter_map(Result::err);
        let failed = failed.find(|error| !(had && matches!(error, TagError::Unknown { .. })));
        return failed.map_or(Ok(()), |error| Err(fault(error)));
    }
    // Check everything that may fail before the first tag is stored.
    tags.iter().try_for_each(|tags| runtime.block_on(tags.is_free(name))).map_err(fault)?;
    let all = plan.corpora.iter().map(|corpus| read(&corpus.name, &*corpus.source, runtime.handle()));
    let all: Vec<_> = all.collect();
    for ((corpus, tags), documents) in
        plan.corpora.iter().zip(&tags).zip(all.into_iter().collect::<Result<Vec<_>, _>>().map_err(fault)?)
    {
        let kept = runtime.block_on(tags.keep(name, &documents)).map_err(fault)?;
        let (corpus, documents) = (&*corpus.name, kept.documents);
        let (written, gone) = (kept.written, kept.gone);
        match args.format.is_json() {
            true => println!(
                "{}",
                json!({"corpus": corpus, "tag": name, "documents": documents, "written": written, "gone": gone})
            ),
            false => {
                println!("{corpus}: {}, {written} of them new or changed, {gone} deleted", count(documents, "document"))
            }
        }
    }
    Ok(())
}
