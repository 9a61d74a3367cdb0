//! `turnflow explain`: the plan as it would run.

use clap::Args;

use super::{Outcome, PipelineArgs};

/// Show the plan: models, corpora, and one line a node with its effective settings and port types.
#[derive(Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
}

pub(super) fn run(args: &ExplainArgs) -> Outcome {
    print!("{}", args.pipeline.described()?.explain());
    Ok(())
}
