//! `turnflow map`: the turns that a log in another form gives.

use std::fs::File;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde::de::DeserializeOwned;
use turnflow_connectors::mapped::MapConfig;
use turnflow_connectors::readers::columnar;
use turnflow_connectors::shape::{BodyConfig, Outgoing, When};
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::spec::{from_tree, load};
use turnflow_engine::wording::count;
use turnflow_records::presets::{PRESETS, preset};
use turnflow_records::{DocumentMapping, Mapped, Mapping, Source, map_documents, map_files, recognise};

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
    /// Print what the sink `--node` sends of answers. The inputs are files of answers, as `JsonLinesSink` writes them.
    #[arg(long, requires = "node")]
    bodies: bool,
    /// Print the documents that a mapping of a corpus gives, as rows that the corpus source `JsonLines` reads. With
    /// `--node NAME`, it is that of the corpus NAME.
    #[arg(long, conflicts_with_all = ["bodies", "preset"])]
    documents: bool,
    /// A jq program that makes messages of a record, or documents.
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
    if args.bodies {
        return bodies(args, &mut out);
    }
    if args.documents {
        return documents(args, &mut out);
    }
    let begun = Instant::now();
    let (mapping, inputs) = mapping(args).map_err(Fault::Told)?;
    let mapped = map_files(&mapping, inputs, Some(&columns)).map_err(|error| Fault::Told(error.into()))?;
    for turn in &mapped.turns {
        out.write_all(&turn.to_line()?)?;
    }
    out.flush()?;
    tell(&mapped, begun);
    match (mapped.turns.len(), mapped.refused.len()) {
        (0, refused) if refused > 0 => Err(Fault::Told(unnamed(inputs, args.jq.is_some() || args.node.is_some())?)),
        (_, 0) => Ok(()),
        (_, refused) => Err(Fault::Told(anyhow!("{} could not be mapped", count(refused, "record")))),
    }
}

/// Prints the documents that a mapping gives.
fn documents(args: &MapArgs, out: &mut impl io::Write) -> Outcome {
    let begun = Instant::now();
    let (mapping, inputs) = document_mapping(args).map_err(Fault::Told)?;
    let mapped = map_documents(&mapping, inputs, Some(&columns)).map_err(|error| Fault::Told(error.into()))?;
    for document in &mapped.documents {
        serde_json::to_writer(&mut *out, document)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    not_files(&mapped.others);
    told(&mapped.refused);
    mapped.odd.remarks().iter().for_each(|told| eprintln!("{told}"));
    eprintln!(
        "{}: {}; left out: {} without a document, {} replaced or deleted by later ones; {:.2} s",
        count(mapped.records as usize, "record"),
        count(mapped.documents.len(), "document"),
        count(mapped.skipped as usize, "record"),
        count(mapped.replaced as usize, "document"),
        begun.elapsed().as_secs_f64()
    );
    match mapped.refused.len() {
        0 => Ok(()),
        refused => Err(Fault::Told(anyhow!("{} could not be mapped", count(refused, "record")))),
    }
}

/// The mapping of documents that the arguments name, and the inputs.
fn document_mapping(args: &MapArgs) -> anyhow::Result<(DocumentMapping, &[PathBuf])> {
    let of = |code: &str, name: &str| DocumentMapping::of(code).map_err(|error| anyhow!("{name}, {error}"));
    let of_file = |path: &Path| {
        let code = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        of(&code, &path.display().to_string())
    };
    match (&args.jq, &args.node, args.inputs.as_slice()) {
        (Some(path), _, inputs) => Ok((of_file(path)?, inputs)),
        (None, Some(corpus), [file, inputs @ ..]) => {
            anyhow::ensure!(!inputs.is_empty(), "give the files whose documents are wanted after the pipeline file");
            let map =
                corpus_map(file, corpus)?.ok_or_else(|| anyhow!("the corpus `{corpus}` has no mapping (`map`)"))?;
            let mapping = match map {
                MapConfig::Jq(code) => of(&code, &format!("the mapping of `{corpus}`")),
                MapConfig::JqFile(path) => of_file(&path.path),
                MapConfig::Preset(name) => Err(anyhow!("preset `{name}` makes turns, and no documents")),
            };
            Ok((mapping?, inputs))
        }
        _ => anyhow::bail!(
            "`--documents` needs a program (`--jq FILE`), or a pipeline file and its corpus (`--node NAME`)"
        ),
    }
}

/// The mapping of the source of a corpus.
fn corpus_map(file: &Path, corpus: &str) -> anyhow::Result<Option<MapConfig>> {
    let loaded = load(file, &[]);
    let corpora = loaded.tree.as_ref().and_then(|tree| tree.get("corpora"));
    let Some(corpora) = corpora else { anyhow::bail!("{} has no corpora", file.display()) };
    let tree = corpora.get(corpus).ok_or_else(|| anyhow!("{} has no corpus `{corpus}`", file.display()))?;
    let Some(value) = tree.get("source").and_then(|source| source.get("map")) else { return Ok(None) };
    from_tree(value, &loaded.sources).map_err(|error| anyhow!("the field `map` of `{corpus}`: {error}"))
}

/// The mapping that the arguments name, and the inputs.
fn mapping(args: &MapArgs) -> anyhow::Result<(Mapping, &[PathBuf])> {
    let inputs = args.inputs.as_slice();
    if let Some(node) = &args.node {
        let [file, inputs @ ..] = inputs else { anyhow::bail!("`--node` needs a pipeline file and inputs") };
        anyhow::ensure!(!inputs.is_empty(), "give the files whose turns are wanted after the pipeline file");
        let mapping = super::node_map::of_node(file, node)?;
        return Ok((mapping.ok_or_else(|| anyhow!("the node `{node}` has no mapping (`map`)"))?, inputs));
    }
    let mapping = match (&args.preset, &args.jq) {
        (Some(name), _) => of_preset(name),
        (None, Some(path)) => of_file(path),
        (None, None) => Err(unnamed(inputs, false)?),
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

/// A field of a node of a pipeline.
fn field<T: DeserializeOwned>(file: &Path, node: &str, name: &str) -> anyhow::Result<Option<T>> {
    let loaded = load(file, &[]);
    let nodes = loaded.tree.as_ref().and_then(|tree| tree.get("nodes"));
    let Some(nodes) = nodes else { anyhow::bail!("{} is no pipeline: `turnflow check` says why", file.display()) };
    let node_tree = nodes.get(node).ok_or_else(|| anyhow!("{} has no node `{node}`", file.display()))?;
    let Some(value) = node_tree.get(name) else { return Ok(None) };
    let value = from_tree::<Option<T>>(value, &loaded.sources);
    value.map_err(|error| anyhow!("the field `{name}` of `{node}`: {error}"))
}

/// Prints what a sink sends of answers.
fn bodies(args: &MapArgs, out: &mut impl io::Write) -> Outcome {
    let begun = Instant::now();
    let (outgoing, inputs) = outgoing(args).map_err(Fault::Told)?;
    let (mut answers, mut sent, mut left_out, mut refused) = (0, 0, 0, 0);
    for path in inputs {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display())).map_err(Fault::Told)?;
        for (number, line) in (1..).zip(io::BufReader::new(file).lines()) {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            answers += 1;
            let parsed = serde_json::from_str::<AnswerRecord>(&line).map_err(|error| error.to_string());
            match parsed.and_then(|answer| outgoing.made(&answer).map_err(|error| error.to_string())) {
                Ok(Some(made)) => {
                    sent += made.len();
                    for value in made {
                        writeln!(out, "{}", value.json())?;
                    }
                }
                Ok(None) => left_out += 1,
                Err(reason) => {
                    refused += 1;
                    if refused <= TOLD {
                        eprintln!("{}:{number}: {reason}", path.display());
                    }
                }
            }
        }
    }
    out.flush()?;
    let (answers, sent) = (count(answers, "answer"), count(sent, "body"));
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!("{answers}: {sent}; left out by `when`: {left_out}; {seconds:.2} s");
    match refused {
        0 => Ok(()),
        refused => Err(Fault::Told(anyhow!("{} could not be mapped", count(refused, "answer")))),
    }
}

/// What the sink that the arguments name sends, and the inputs.
fn outgoing(args: &MapArgs) -> anyhow::Result<(Outgoing, &[PathBuf])> {
    let ([file, inputs @ ..], Some(node)) = (args.inputs.as_slice(), &args.node) else {
        anyhow::bail!("`--bodies` needs a pipeline file, `--node` and inputs")
    };
    anyhow::ensure!(!inputs.is_empty(), "give the files of answers after the pipeline file");
    let (when, body) = (field::<When>(file, node, "when")?, field::<BodyConfig>(file, node, "body")?);
    anyhow::ensure!(when.is_some() || body.is_some(), "the node `{node}` has neither `when` nor `body`");
    Ok((Outgoing::of(when.as_ref(), body.as_ref())?, inputs))
}

/// The mapping of a field `map`.
pub(super) fn mapping_of(map: &MapConfig, of: &str) -> anyhow::Result<Mapping> {
    match map {
        MapConfig::Jq(code) => Mapping::of(code).map_err(|error| anyhow!("the mapping of {of}, {error}")),
        MapConfig::JqFile(path) => of_file(&path.path),
        MapConfig::Preset(name) => of_preset(name),
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
pub(super) fn columns(path: &Path) -> io::Result<Box<dyn io::Read>> {
    let file = File::open(path)?;
    let is_parquet = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"));
    let lines = if is_parquet { columnar::parquet(file) } else { columnar::arrow(file) };
    Ok(Box::new(lines.map_err(io::Error::other)?))
}

/// What to do about a log whose form is not named, or not the one that was named.
fn unnamed(inputs: &[PathBuf], has_own: bool) -> anyhow::Result<anyhow::Error> {
    let fit = recognise(inputs, Some(&columns))?;
    Ok(match &fit[..] {
        [] if has_own => anyhow!("the program makes no turn of this log, and no preset does"),
        [] => anyhow!(
            "no preset makes turns of this log: copy a similar one with `--show`, change it, and give it with `--jq`"
        ),
        fit => {
            let found = |(name, mapped): &(&str, Mapped)| format!("`{name}` ({})", super::init::size(mapped));
            let names: Vec<String> = fit.iter().take(3).map(found).collect();
            anyhow!(
                "give a preset: of this log, {} {} turns",
                names.join(" and "),
                if fit.len() == 1 { "makes" } else { "make" }
            )
        }
    })
}

/// Says which records could not be mapped.
fn told(refused: &[(Source, String)]) {
    for (source, reason) in refused.iter().take(TOLD) {
        eprintln!("{source}: {reason}");
    }
    if refused.len() > TOLD {
        eprintln!("and {} more", refused.len() - TOLD);
    }
}

/// Says what in folders is no file.
pub(super) fn not_files(others: &[(PathBuf, &'static str)]) {
    for (path, what) in others.iter().take(TOLD) {
        eprintln!("{}: {what}, not read", path.display());
    }
    if others.len() > TOLD {
        eprintln!("and {} more that are no files", others.len() - TOLD);
    }
}

/// Says what was read and left out.
fn tell(mapped: &Mapped, begun: Instant) {
    not_files(&mapped.others);
    told(&mapped.refused);
    for (number, what) in [
        (mapped.odd.replaced, "with values that JSON cannot hold, which were replaced"),
        (mapped.odd.broken, "with bytes that are not UTF-8, in whose place is U+FFFD"),
    ] {
        if number > 0 {
            eprintln!("{} {what}", count(number as usize, "record"));
        }
    }
    if mapped.odd.unread > 0 {
        eprintln!(
            "{} without text, or with another name than `files` says, not read",
            count(mapped.odd.unread as usize, "file")
        );
    }
    mapped.odd.remarks().iter().for_each(|told| eprintln!("{told}"));
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
