//! `turnflow dead-letters`: lists and retries records that could not be processed.

mod file;
mod retry;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use turnflow_engine::dead_letter::DeadLetter;
use turnflow_engine::plan::Plan;
use turnflow_engine::wording::count;

use self::file::LetterFile;
use super::{EngineArgs, FormatArgs, Outcome, PipelineArgs, check_state};

/// List dead letters by source and reason, or retry those of turn sources.
#[derive(Args)]
pub struct DeadLettersArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Retry the records of turn sources with the current pipeline. Answered records are removed
    /// from the file; the others remain, with their new reason. A turn sees what was said before it in its
    /// conversation, and what it says gets its place there.
    #[arg(long)]
    retry: bool,
    /// Include only letters whose reason contains this text.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Include only letters of this corpus or source node.
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

impl DeadLettersArgs {
    fn wants(&self, letter: &DeadLetter) -> bool {
        self.source.as_ref().is_none_or(|source| *source == letter.source)
            && self.reason.as_ref().is_none_or(|reason| letter.reason.contains(reason))
    }

    /// The path of the pipeline's dead letters.
    fn path(&self, plan: &Plan) -> PathBuf {
        match (&plan.dead_letters, self.engine.options(plan).state) {
            (Some(given), _) => given.path.clone(),
            (None, state) => state.unwrap_or_default().join("dead-letters.jsonl"),
        }
    }
}

pub(super) fn run(args: &DeadLettersArgs) -> Outcome {
    // A mistyped directory has no dead letters.
    args.engine.state.as_deref().filter(|state| !state.is_dir()).map_or(Ok(()), check_state)?;
    if args.retry { retry::run(args) } else { list(args) }
}

/// Letters with the same source and reason.
struct Group {
    count: u64,
    /// The position of the first one.
    position: String,
}

fn list(args: &DeadLettersArgs) -> Outcome {
    let path = args.path(&args.pipeline.described()?);
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    let mut unreadable = 0_u64;
    LetterFile::at(&path).each(|_, letter| match letter {
        Some(letter) if args.wants(&letter) => {
            let group = groups.entry((letter.source, letter.reason));
            group.or_insert(Group { count: 0, position: letter.position }).count += 1;
        }
        Some(_) => {}
        None => unreadable += 1,
    })?;
    if unreadable > 0 {
        eprintln!("{} in `{}`: not dead letters", count(unreadable, "line"), path.display());
    }
    if args.format.is_json() {
        for ((source, reason), Group { count, position }) in &groups {
            println!("{}", json!({ "source": source, "reason": reason, "count": count, "position": position }));
        }
        return Ok(());
    }
    if groups.is_empty() {
        println!("no dead letters");
    }
    let mut last = None;
    for ((source, reason), group) in &groups {
        if last != Some(source) {
            let all: u64 = groups.iter().filter(|((of, _), _)| of == source).map(|(_, group)| group.count).sum();
            println!("{source}: {}", count(all, "dead letter"));
            last = Some(source);
        }
        let reason: Vec<&str> = reason.split_whitespace().collect();
        println!("{:>6}  {}  {}", group.count, group.position, reason.join(" "));
    }
    Ok(())
}
