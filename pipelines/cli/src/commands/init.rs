//! `turnflow init`: a pipeline to start from.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use serde_json::Value;
use turnflow_connectors::files::escaped;
use turnflow_engine::wording::count;
use turnflow_records::{Mapped, Mapping, Turn, decode, map_files, presets, recognise};

use super::map::{columns, not_files};
use super::{Fault, Outcome};

/// Turns that are shown.
const SHOWN: usize = 6;
/// Characters of a turn's text that are shown.
const CHARACTERS: usize = 100;
/// Lines that tell whether a log is turnflow's own.
const LINES: usize = 20;
/// Maximum bytes of these.
const BYTES: u64 = 1 << 20;
/// The model that makes retrieval better, if it was fetched or came with the package.
const MODEL: &str = "models/minilm-int8";
/// The folder of documents, unless another one is given.
const DOCS: &str = "docs";

/// Write a pipeline that answers questions about a folder of documents.
///
/// With `--log`, the questions come from a conversation log that any program may have written: its form is recognised, the
/// first turns are shown, and the pipeline reads it.
#[derive(Args)]
pub struct InitArgs {
    /// The pipeline file to write, or the folder of documents.
    #[arg(default_value = "pipeline.ron")]
    file: PathBuf,
    /// The folder of documents [default: docs].
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
    /// A conversation log.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The preset of the log's form, if another one than the first that fits is wanted.
    #[arg(long, value_name = "NAME", requires = "log")]
    preset: Option<String>,
    /// Write over an existing file.
    #[arg(long)]
    force: bool,
}

impl InitArgs {
    fn docs(&self) -> &Path {
        self.docs.as_deref().unwrap_or(Path::new(DOCS))
    }
}

pub(super) fn run(args: InitArgs) -> Outcome {
    init(args).map_err(Fault::Told)
}

fn init(mut args: InitArgs) -> anyhow::Result<()> {
    // `turnflow init FOLDER` is what many people type.
    if args.file.is_dir() {
        let folder = std::mem::replace(&mut args.file, "pipeline.ron".into());
        ensure!(args.docs.is_none(), "{} is a folder: give the name of the pipeline file to write", folder.display());
        args.docs = Some(folder);
    }
    let args = &args;
    ensure!(
        args.force || !args.file.exists(),
        "{} is there already: give another name, or `--force` to write over it",
        args.file.display()
    );
    ensure!(
        args.docs().is_dir(),
        "there is no folder {}: give the folder of your documents with `--docs`",
        args.docs().display()
    );
    let turns = match &args.log {
        None => "JsonLines(path: \"turns.jsonl\", follow: true)".to_owned(),
        Some(log) => of_log(args, log)?,
    };
    let text = pipeline(args, &turns)?;
    fs::write(&args.file, text).with_context(|| format!("cannot write {}", args.file.display()))?;
    let file = args.file.display();
    println!("\nwrote {file}");
    println!("  turnflow check {file}");
    println!("  turnflow ask {file} \"a question\"");
    println!("  turnflow serve {file}");
    match args.log {
        Some(_) => println!("  turnflow run {file} --once"),
        None => println!("  turnflow chat {file}"),
    }
    Ok(())
}

/// Recognises a log, and shows its first turns. Gives the node that reads it.
fn of_log(args: &InitArgs, log: &Path) -> anyhow::Result<String> {
    if args.preset.is_none() && is_own(log)? {
        println!("{}: turnflow's own form", log.display());
        return Ok(format!("JsonLines(path: {}, follow: true)", shown(args, log)?));
    }
    let inputs = [log.to_owned()];
    let fits = match &args.preset {
        None => recognise(&inputs, Some(&columns))?,
        Some(name) => {
            let (name, code) = presets::PRESETS
                .iter()
                .find(|(known, _)| known == name)
                .ok_or_else(|| anyhow!("there is no preset `{name}`; `turnflow map --list` lists them"))?;
            let mapping = Mapping::of(code).map_err(|error| anyhow!("{error}"))?;
            vec![(*name, map_files(&mapping, &inputs, Some(&columns))?)]
        }
    };
    let Some((name, mapped)) = fits.first() else {
        bail!(
            "no preset makes turns of {}: `turnflow map --list` lists them, and the handbook's page on logs says how to \
             write a mapping",
            log.display()
        );
    };
    tell(log, name, mapped);
    if fits.len() > 1 {
        let shown = |(name, mapped): &(&str, Mapped)| format!("`{name}` ({})", size(mapped));
        let others: Vec<String> = fits[1..].iter().take(4).map(shown).collect();
        println!("  fits as well, `--preset NAME` takes it: {}", others.join(", "));
    }
    let mapping = presets::preset(name).and_then(|code| Mapping::of(code).ok());
    let options = mapping.map(|mapping| mapping.options().clone()).unwrap_or_default();
    let is_lines = log.is_file() && decode::plain(log) == log && decode::form_of(log) == "jsonl";
    let is_parquet = log.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"));
    let path = shown(args, log)?;
    let map = format!("map: Preset({name:?})");
    let node = match (options.form(), &options.query, &options.cursor) {
        (None | Some("jsonl"), ..) if is_parquet => format!("Parquet(path: {path}, {map})"),
        (None | Some("jsonl"), ..) if is_lines => format!("JsonLines(path: {path}, follow: true, {map})"),
        (Some("sqlite"), Some(_), Some(_)) if log.is_file() => {
            // A row that is written anew may have another version of what was said.
            let revise = if options.branch { ", conversations: (revise: true)" } else { "" };
            format!("Sqlite(path: {path}, {map}{revise})")
        }
        (Some("sqlite"), ..) => bail!(
            "{} is no single database: give the file of the database, or make turns with `turnflow map --preset {name}`",
            log.display()
        ),
        _ => {
            let path = escaped(&relative(args, log)?);
            let glob = match path.trim_end_matches('/') {
                "" => "**/*".to_owned(),
                folder if log.is_dir() => format!("{folder}/**/*"),
                file => file.to_owned(),
            };
            format!("Files(glob: {glob:?}, {map})")
        }
    };
    Ok(node)
}

/// Whether the first lines of a log are records of turnflow.
fn is_own(log: &Path) -> anyhow::Result<bool> {
    if !log.is_file() {
        return Ok(false);
    }
    let file = fs::File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    let mut any = false;
    for line in BufReader::new(file.take(BYTES)).lines().take(LINES) {
        // A line may be binary, or cut.
        let Ok(line) = line else { return Ok(any) };
        if line.trim().is_empty() {
            continue;
        }
        let Ok(record) = serde_json::from_str::<Value>(&line) else { return Ok(any) };
        let is_text = |name: &str| record.get(name).is_some_and(Value::is_string);
        let speaks = matches!(record.get("speaker").and_then(Value::as_str), Some("user" | "agent"));
        if !(is_text("conversation_id")
            && is_text("text")
            && record.get("turn").is_some_and(Value::is_number)
            && speaks)
        {
            return Ok(false);
        }
        any = true;
    }
    Ok(any)
}

pub(super) fn size(mapped: &Mapped) -> String {
    let conversations = mapped.conversations().len();
    format!("{} in {}", count(mapped.turns.len(), "turn"), count(conversations, "conversation"))
}

fn tell(log: &Path, name: &str, mapped: &Mapped) {
    not_files(&mapped.others);
    println!("{}: `{name}`, {} of {}", log.display(), size(mapped), count(mapped.records as usize, "record"));
    for Turn { conversation_id, turn, speaker, text, .. } in mapped.turns.iter().take(SHOWN) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let short: String = text.chars().filter(|c| !c.is_control()).take(CHARACTERS).collect();
        let more = if short.len() < text.len() { "…" } else { "" };
        println!("  {conversation_id}, turn {turn}, {speaker}: {short}{more}");
    }
    if !mapped.refused.is_empty() {
        println!("  {} could not be read: `turnflow map` says why", count(mapped.refused.len(), "record"));
    }
    mapped.odd.remarks().iter().for_each(|told| println!("  {told}"));
}

/// A path as the pipeline file has it, in quotes.
fn shown(args: &InitArgs, path: &Path) -> anyhow::Result<String> {
    Ok(format!("{:?}", relative(args, path)?))
}

/// A path as the pipeline file has it: relative to that file's folder.
fn relative(args: &InitArgs, path: &Path) -> anyhow::Result<String> {
    let folder = args.file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let path = match folder {
        None => path.to_owned(),
        Some(folder) => match path.strip_prefix(folder) {
            Ok(inside) => inside.to_owned(),
            Err(_) => path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?,
        },
    };
    let text = path.to_str().with_context(|| format!("the path {} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// The folder of the model: the one that was fetched, or else that of the package, which is beside the program's.
fn model_folder() -> PathBuf {
    let fetched = PathBuf::from(MODEL);
    if fetched.join("model.onnx").exists() {
        return fetched;
    }
    let program = std::env::current_exe().ok();
    let packaged =
        program.as_deref().and_then(Path::parent).and_then(Path::parent).map(|root| root.join("share/turnflow"));
    packaged.map(|shared| shared.join(MODEL)).filter(|folder| folder.join("model.onnx").exists()).unwrap_or(fetched)
}

/// The pipeline's text.
fn pipeline(args: &InitArgs, turns: &str) -> anyhow::Result<String> {
    let docs = shown(args, args.docs())?;
    let folder = model_folder();
    let model = folder.join("model.onnx");
    let mut out = String::new();
    writeln!(out, "// Questions about a folder of documents, which may change meanwhile.")?;
    writeln!(out, "// `turnflow docs NAME` shows the fields of what is named here.")?;
    writeln!(out, "Pipeline(")?;
    if model.exists() {
        let (model, tokenizer) = (shown(args, &model)?, shown(args, &folder.join("tokenizer.json"))?);
        writeln!(out, "    models: {{")?;
        writeln!(
            out,
            "        \"minilm\": Onnx(path: {model}, tokenizer: {tokenizer}, pooling: Mean, max_tokens: 256),"
        )?;
        writeln!(out, "    }},")?;
    }
    writeln!(out, "    corpora: {{")?;
    writeln!(out, "        // Every edit, new file and deletion is followed.")?;
    writeln!(out, "        \"docs\": Corpus(source: Directory(path: {docs}, watch: true), chunk: Headings()),")?;
    writeln!(out, "    }},")?;
    writeln!(out, "    nodes: {{")?;
    writeln!(out, "        \"turns\": {turns},")?;
    writeln!(out, "        // The question, with the one before it: a follow-up says too little by itself.")?;
    writeln!(out, "        \"context\": UserTurns(input: \"turns\", last: 2),")?;
    writeln!(out, "        \"lexical\": Bm25(input: \"context\", corpus: \"docs\"),")?;
    if model.exists() {
        writeln!(out, "        \"question\": LastTurn(input: \"turns\"),")?;
        writeln!(out, "        \"dense\": Dense(input: \"question\", corpus: \"docs\", model: \"minilm\"),")?;
        writeln!(out, "        \"fused\": Rrf(inputs: [\"dense\", \"lexical\"]),")?;
        writeln!(out, "        \"answer\": ExtractiveAnswer(input: \"fused\", model: \"minilm\"),")?;
        writeln!(out, "        // Below this cosine, the best sentence is about something else.")?;
        writeln!(out, "        \"final\": IdkNormalize(input: \"answer\", min_support: 0.35),")?;
    } else {
        writeln!(
            out,
            "        // Search by meaning finds more: `turnflow models fetch minilm-int8`, and write this file again."
        )?;
        writeln!(out, "        \"answer\": ExtractiveAnswer(input: \"lexical\"),")?;
        writeln!(out, "        \"final\": IdkNormalize(input: \"answer\"),")?;
    }
    writeln!(out, "        \"out\": JsonLinesSink(input: \"final\", path: \"answers.jsonl\"),")?;
    writeln!(out, "    }},")?;
    writeln!(out, ")")?;
    Ok(out)
}
