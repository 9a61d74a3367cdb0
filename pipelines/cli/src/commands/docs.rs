//! `turnflow docs`: prints the reference of all components.

use std::io::IsTerminal;

use anyhow::anyhow;
use clap::Args;
use turnflow_engine::component::fields::Fields;
use turnflow_engine::component::reference::tables;
use turnflow_engine::spec::did_you_mean;

use super::{Fault, Outcome, catalog};

/// Print the reference of an operator, model, chunker, source or sink; without a name, list them all.
#[derive(Args)]
pub struct DocsArgs {
    /// The name of a component, such as `Bm25`.
    name: Option<String>,
    /// Print the whole reference.
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

pub(super) fn run(args: &DocsArgs) -> Outcome {
    match &args.name {
        None if args.all => print!("{}", catalog().reference),
        None => list(),
        Some(name) => {
            let found: Vec<&str> = sections().filter(|(title, _)| title == name).map(|(_, text)| text).collect();
            if let Some((name, summary, fields)) = kinds().find(|(kind, ..)| found.is_empty() && kind == name) {
                // A custom program added this kind.
                print!("{name}: {summary}\n\n{}", tables(fields()));
                return Ok(());
            }
            if found.is_empty() {
                let near = did_you_mean(name, sections().map(|(title, _)| title));
                let near =
                    near.map_or("`turnflow docs` lists them all".to_owned(), |near| format!("did you mean `{near}`?"));
                return Err(Fault::Told(anyhow!("unknown component `{name}`; {near}")));
            }
            print!("{}", found.join("\n"));
        }
    }
    Ok(())
}

/// Titles and texts of the reference's sections.
fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let groups = catalog().reference.split("\n## ").flat_map(|group| group.split("\n### ").skip(1));
    groups.filter_map(|text| Some((text.split_once('\n')?.0, text)))
}

/// A kind's name, summary and fields.
type Kind = (&'static str, &'static str, fn() -> &'static Fields);

/// All kinds.
fn kinds() -> impl Iterator<Item = Kind> {
    let catalog = catalog();
    let nodes = catalog.operators.iter().map(|kind| (kind.name, kind.summary, kind.fields));
    let nodes = nodes.chain(catalog.turn_sources.iter().map(|kind| (kind.name, kind.summary, kind.fields)));
    let nodes = nodes.chain(catalog.sinks.iter().map(|kind| (kind.name, kind.summary, kind.fields)));
    let others = catalog.models.iter().map(|kind| (kind.name, kind.summary, kind.fields));
    let others = others.chain(catalog.chunkers.iter().map(|kind| (kind.name, kind.summary, kind.fields)));
    nodes.chain(others).chain(catalog.corpus_sources.iter().map(|kind| (kind.name, kind.summary, kind.fields)))
}

fn list() {
    let group = |title: &str, kinds: Vec<(&str, &str)>| {
        let bold = if std::io::stdout().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        println!("{}{title}{}", bold.0, bold.1);
        for (name, summary) in kinds {
            println!("  {name:20} {summary}");
        }
        println!();
    };
    group("Operators", catalog().operators.iter().map(|kind| (kind.name, kind.summary)).collect());
    group("Models", catalog().models.iter().map(|kind| (kind.name, kind.summary)).collect());
    group("Chunkers", catalog().chunkers.iter().map(|kind| (kind.name, kind.summary)).collect());
    group("Sources of corpora", catalog().corpus_sources.iter().map(|kind| (kind.name, kind.summary)).collect());
    group("Sources of turns", catalog().turn_sources.iter().map(|kind| (kind.name, kind.summary)).collect());
    group("Sinks", catalog().sinks.iter().map(|kind| (kind.name, kind.summary)).collect());
    println!("`turnflow docs NAME` prints fields, types, defaults and an example.");
}
