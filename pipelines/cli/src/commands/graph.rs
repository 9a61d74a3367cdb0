//! `turnflow graph`: draws the pipeline.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Outcome, PipelineArgs, write};
use crate::graph;

/// Draw the pipeline as SVG, or as text for Graphviz or Mermaid.
#[derive(Args)]
pub struct GraphArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// The output format.
    #[arg(long, default_value = "svg")]
    format: Format,
    /// Write to a file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Svg,
    Dot,
    Mermaid,
}

pub(super) fn run(args: &GraphArgs) -> Outcome {
    let plan = args.pipeline.described()?;
    let text = match args.format {
        Format::Svg => graph::svg(&plan),
        Format::Dot => graph::dot(&plan),
        Format::Mermaid => graph::mermaid(&plan),
    };
    match &args.output {
        Some(path) => write(path, &text)?,
        None => print!("{text}"),
    }
    Ok(())
}
