//! `turnflow explain`: shows the plan.

use clap::Args;

use super::{Outcome, PipelineArgs};

/// Show the plan: models, corpora, and one line per node with its effective settings and port types.
#[derive(Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
}

pub(super) fn run(args: &ExplainArgs) -> Outcome {
    print!("{}", args.pipeline.described()?.explain());
    Ok(())
}
