//! `turnflow map`: the turns that a log in another form gives.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use clap::Args;
use turnflow_connectors::mapped::MapConfig;
use turnflow_connectors::readers::columnar;
use turnflow_engine::spec::{from_tree, load};
use turnflow_engine::wording::count;
use turnflow_records::presets::{PRESETS, preset};
use turnflow_records::{Mapped, Mapping, map_files, recognise};

use super::{Fault, Outcome};

/// Refused records that are told one by one.
const TOLD: usize = 20;

/// Print the turns of a log that another program has written, as JSON Lines.
///
/// A preset knows a form; `--list` lists them, and without one, the command says which fit. What was left out and why is on
/// standard error. A preset is a jq program: `--show` prints it, to be copied and changed, and `--jq` uses the copy.
#[derive(Args)]
pub struct MapArgs {
    /// Files, or folders of files.
    #[arg(required_unless_present_any = ["list", "show"])]
    inputs: Vec<PathBuf>,
    /// The preset of the form.
    #[arg(long, value_name = "NAME", conflicts_with = "jq")]
    preset: Option<String>,
    /// The source of a pipeline with the mapping. The first input is the pipeline file then.
    #[arg(long, value_name = "NODE", conflicts_with_all = ["jq", "preset"])]
    node: Option<String>,
    /// A jq program that makes messages of a record.
    #[arg(long, value_name = "FILE")]
    jq: Option<PathBuf>,
    /// List the presets.
    #[arg(long)]
    list: bool,
    /// Print the program of a preset.
    #[arg(long, value_name = "NAME")]
    show: Option<String>,
}

pub(super) fn run(args: &MapArgs) -> Outcome {
    let mut out = io::stdout().lock();
    if args.list {
        for (name, code) in PRESETS {
            let about = code.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
            writeln!(out, "{name:<26} {about}")?;
        }
        return Ok(());
    }
    if let Some(name) = &args.show {
        write!(out, "{}", known(name).map_err(Fault::Told)?)?;
        return Ok(());
    }
    let begun = Instant::now();
    let (mapping, inputs) = mapping(args).map_err(Fault::Told)?;
    let mapped = map_files(&mapping, inputs, Some(&columns)).map_err(|error| Fault::Told(error.into()))?;
    for turn in &mapped.turns {
        serde_json::to_writer(&mut out, turn)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    tell(&mapped, begun);
    match (mapped.turns.len(), mapped.refused.len()) {
        (0, refused) if refused > 0 => Err(Fault::Told(unnamed(inputs)?)),
        (_, 0) => Ok(()),
        (_, refused) => Err(Fault::Told(anyhow!("{} could not be mapped", count(refused, "record")))),
    }
}

/// The mapping that the arguments name, and the inputs.
fn mapping(args: &MapArgs) -> anyhow::Result<(Mapping, &[PathBuf])> {
    let inputs = args.inputs.as_slice();
    if let Some(node) = &args.node {
        let [file, inputs @ ..] = inputs else { anyhow::bail!("`--node` needs a pipeline file and inputs") };
        anyhow::ensure!(!inputs.is_empty(), "give the files whose turns are wanted after the pipeline file");
        return Ok((of_node(file, node)?, inputs));
    }
    let mapping = match (&args.preset, &args.jq) {
        (Some(name), _) => of_preset(name),
        (None, Some(path)) => of_file(path),
        (None, None) => Err(unnamed(inputs)?),
    };
    Ok((mapping?, inputs))
}

fn of_preset(name: &str) -> anyhow::Result<Mapping> {
    Mapping::of(known(name)?).map_err(|error| anyhow!("preset `{name}`, {error}"))
}

fn of_file(path: &Path) -> anyhow::Result<Mapping> {
    let code = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Mapping::of(&code).map_err(|error| anyhow!("{}, {error}", path.display()))
}

/// The mapping of a node of a pipeline.
fn of_node(file: &Path, node: &str) -> anyhow::Result<Mapping> {
    let loaded = load(file, &[]);
    let nodes = loaded.tree.as_ref().and_then(|tree| tree.get("nodes"));
    let Some(nodes) = nodes else { anyhow::bail!("{} is no pipeline: `turnflow check` says why", file.display()) };
    let source = nodes.get(node).ok_or_else(|| anyhow!("{} has no node `{node}`", file.display()))?;
    let map = source.get("map").ok_or_else(|| anyhow!("the node `{node}` has no mapping (`map`)"))?;
    let map: MapConfig =
        from_tree(map, &loaded.sources).map_err(|error| anyhow!("the mapping of `{node}`: {error}"))?;
    match map {
        MapConfig::Jq(code) => Mapping::of(&code).map_err(|error| anyhow!("the mapping of `{node}`, {error}")),
        MapConfig::JqFile(path) => of_file(&path.path),
        MapConfig::Preset(name) => of_preset(&name),
    }
}

fn known(name: &str) -> anyhow::Result<&'static str> {
    preset(name).ok_or_else(|| {
        let near = PRESETS.iter().map(|(known, _)| *known).min_by_key(|known| strsim::levenshtein(known, name));
        let near = near.filter(|near| strsim::levenshtein(near, name) <= near.len() / 2);
        let hint = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
        anyhow!("there is no preset `{name}`{hint}; `turnflow map --list` lists them")
    })
}

/// Reads a table of columns as lines of JSON.
fn columns(path: &Path) -> io::Result<Box<dyn io::Read>> {
    let file = File::open(path)?;
    let is_parquet = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"));
    let lines = if is_parquet { columnar::parquet(file) } else { columnar::arrow(file) };
    Ok(Box::new(lines.map_err(io::Error::other)?))
}

/// What to do about a log whose form is not named, or not the one that was named.
fn unnamed(inputs: &[PathBuf]) -> anyhow::Result<anyhow::Error> {
    let fit = recognise(inputs, Some(&columns))?;
    Ok(match &fit[..] {
        [] => anyhow!(
            "no preset makes turns of this log: copy a similar one with `--show`, change it, and give it with `--jq`"
        ),
        fit => {
            let found = |(name, mapped): &(&str, Mapped)| format!("`{name}` ({})", count(mapped.turns.len(), "turn"));
            let names: Vec<String> = fit.iter().take(3).map(found).collect();
            anyhow!(
                "give a preset: of this log, {} {} turns",
                names.join(" and "),
                if fit.len() == 1 { "makes" } else { "make" }
            )
        }
    })
}

/// Says what was read and left out.
fn tell(mapped: &Mapped, begun: Instant) {
    for (source, reason) in mapped.refused.iter().take(TOLD) {
        eprintln!("{source}: {reason}");
    }
    if mapped.refused.len() > TOLD {
        eprintln!("and {} more", mapped.refused.len() - TOLD);
    }
    for (number, what) in [
        (mapped.odd.replaced, "with values that JSON cannot hold, which were replaced"),
        (mapped.odd.broken, "with bytes that are not UTF-8, in whose place is U+FFFD"),
    ] {
        if number > 0 {
            eprintln!("{} {what}", count(number as usize, "record"));
        }
    }
    let conversations: std::collections::HashSet<&str> =
        mapped.turns.iter().map(|turn| turn.conversation_id.as_str()).collect();
    let mut parts = vec![format!("{} without a message", count(mapped.skipped as usize, "record"))];
    parts.extend(
        mapped.left_out.iter().map(|(reason, number)| format!("{} {reason}", count(*number as usize, "message"))),
    );
    eprintln!(
        "{}: {} in {}; left out: {}; {:.2} s",
        count(mapped.records as usize, "record"),
        count(mapped.turns.len(), "turn"),
        count(conversations.len(), "conversation"),
        parts.join(", "),
        begun.elapsed().as_secs_f64()
    );
}
