//! `turnflow explain`: shows the plan.

use std::path::PathBuf;

use clap::Args;
use turnflow_engine::component::measured;
use turnflow_engine::run::default_state;

use super::{Outcome, PipelineArgs};

/// Show the plan: models, corpora, and one line per node with its effective settings and port types.
#[derive(Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The state directory whose runs have measured the recall of approximate indexes [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

pub(super) fn run(args: &ExplainArgs) -> Outcome {
    let plan = args.pipeline.described()?;
    let state = args.state.clone().unwrap_or_else(|| default_state(&plan.name));
    print!("{}", plan.explain_with(|node, settings| measured(&state, node, settings)));
    Ok(())
}
