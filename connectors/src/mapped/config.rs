//! The fields of a source with a mapping.

use std::path::Path;

use turnflow_engine::component::{Check, config};
use turnflow_engine::spec::{FilePath, did_you_mean};
use turnflow_records::presets::{PRESETS, preset};
use turnflow_records::{Mapping, Options};

use super::IntakeOptions;

/// What makes messages of records.
#[config]
pub enum MapConfig {
    /// A jq program.
    Jq(#[field(hidden)] String),
    /// A file with a jq program, relative to the pipeline file.
    JqFile(FilePath),
    /// The preset of a form that many programs write (`turnflow map --list`).
    Preset(String),
}

/// The program of a mapping, and its name if it is not in the pipeline file. Reports what is wrong.
pub(super) fn code_of<'a>(map: &'a MapConfig, check: &mut Check<'_>) -> Option<(Option<&'a str>, String)> {
    match map {
        MapConfig::Jq(code) => Some((None, code.clone())),
        MapConfig::JqFile(file) => Some((Some(file.written.as_str()), check.text("map", file)?)),
        MapConfig::Preset(name) => match preset(name) {
            Some(code) => Some((Some(name.as_str()), code.to_owned())),
            None => {
                let near = did_you_mean(name, PRESETS.iter().map(|(known, _)| *known));
                let near = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
                let message = format!("there is no preset `{name}`{near}; `turnflow map --list` lists them");
                check.error("no-such-preset", "map", message);
                None
            }
        },
    }
}

/// How messages become turns.
#[config(default)]
#[derive(PartialEq)]
pub struct ConversationsConfig {
    /// While a log is followed: how long a message waits for others that belong before it, or change or delete it, in
    /// seconds. Default: what the mapping says, or else 0.
    #[field(range = 0.0..=3600.0)]
    pub settle_s: Option<f64>,
    /// Leave out conversations in which no agent speaks or is spoken to. Default: what the mapping says.
    pub with_agent: Option<bool>,
    /// Of messages with parents that wait together, only the branch with the latest one counts, and a later message on
    /// another branch has the number that follows its parent's. Default: what the mapping says.
    pub branch: Option<bool>,
    /// Questions in a row of which each came at most so long after the one before are one question, in seconds. While a log
    /// is followed, a question waits so long for the next one. Default: what the mapping says, or else 0.
    #[field(range = 0.0..=3600.0)]
    pub burst_s: Option<f64>,
    /// Whether a message that is changed after it became a turn is a new version of that turn, which is answered again,
    /// without what followed it. Default: what the mapping says, or else false: the turn stays as it is.
    pub revise: Option<bool>,
    /// Whether users' messages are left out after a hand-over to a person (`hand_over: true`), until that ends. Default: what
    /// the mapping says, or else false.
    pub until_hand_over: Option<bool>,
    /// Whether a message without an id that has conversation, speaker, text and time of an earlier one is that one again, and
    /// counts once. Default: what the mapping says, or else false.
    pub once_by_content: Option<bool>,
    /// Maximum number of messages that wait. Beyond that, the first ones become turns.
    #[field(default = 100_000, range = 1..=10_000_000)]
    pub max_waiting: usize,
    /// Maximum number of conversations, messages with an id and histories that are remembered, those used longest ago are
    /// forgotten first.
    #[field(default = 1_000_000, range = 1000..=1_000_000_000)]
    pub max_known: u64,
}

impl ConversationsConfig {
    /// Whether anything differs from the default.
    fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// The options of a mapping with what is said here.
    pub fn over(&self, options: Options) -> Options {
        let burst_s = self.burst_s.unwrap_or(options.burst_s);
        Options {
            settle_s: self.settle_s.unwrap_or(options.settle_s).max(burst_s),
            with_agent: self.with_agent.unwrap_or(options.with_agent),
            branch: self.branch.unwrap_or(options.branch),
            burst_s,
            revise: self.revise.unwrap_or(options.revise),
            until_hand_over: self.until_hand_over.unwrap_or(options.until_hand_over),
            once_by_content: self.once_by_content.unwrap_or(options.once_by_content),
            ..options
        }
    }
}

/// The fields of a source that concern its mapping.
pub struct MapFields<'a> {
    /// Its field `map`.
    pub map: Option<&'a MapConfig>,
    /// Its field `conversations`.
    pub conversations: &'a ConversationsConfig,
    /// The file that it reads.
    pub file: Option<&'a Path>,
    /// What it reads.
    pub reads: Reads,
    /// Whether its records last, and can be read again from their beginning.
    pub lasts: bool,
}

/// What a source with a mapping reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Records of JSON, or forms.
    Records,
    /// Rows of a database, as a mapping for files of the form `sqlite` gets them.
    Rows,
    /// Files of all forms.
    Files,
}

impl<'a> MapFields<'a> {
    /// Of a source whose records come from a program or a broker, and are not there a second time.
    #[cfg(feature = "remote")]
    pub(crate) fn of_queue(map: Option<&'a MapConfig>, conversations: &'a ConversationsConfig) -> Self {
        Self { map, conversations, file: None, reads: Reads::Records, lasts: false }
    }
}

impl MapFields<'_> {
    /// Reports what is wrong.
    pub fn validate(&self, check: &mut Check<'_>) {
        let Some(map) = self.map else {
            if self.conversations.is_given() {
                let message = "`conversations` says how messages of other forms become turns, and without `map` records are \
                               turns as they are: give a `map`, or leave `conversations` out";
                check.error("wrong-value", "conversations", message.to_owned());
            }
            return;
        };
        let Some((name, code)) = code_of(map, check) else { return };
        match (Mapping::of(&code), name) {
            (Ok(mapping), _) => {
                if let Some(form) = mapping.options().form().filter(|form| !self.reads(form)) {
                    let message = format!(
                        "the mapping reads files of the form `{form}`, and this source gives records of JSON: such files are \
                         for the source `Files`, and databases for `Sqlite`"
                    );
                    check.error("map-form", "map", message);
                }
            }
            (Err(error), None) => check.error_within("bad-map", "map", (error.line, error.column), error.reason),
            (Err(error), Some(name)) => check.error("bad-map", "map", format!("{name}, {error}")),
        }
    }

    /// Whether the source reads this form.
    fn reads(&self, form: &str) -> bool {
        match self.reads {
            Reads::Records => matches!(form, "jsonl" | "forms"),
            Reads::Rows => matches!(form, "jsonl" | "sqlite"),
            // A database is read while it changes by a source of its own.
            Reads::Files => form != "sqlite",
        }
    }

    /// What `explain` adds.
    pub fn explain(&self) -> String {
        match self.map {
            None => String::new(),
            Some(MapConfig::Jq(_)) => ", map: Jq".to_owned(),
            Some(MapConfig::JqFile(file)) => format!(", map: JqFile({:?})", file.written),
            Some(MapConfig::Preset(name)) => format!(", map: Preset({name:?})"),
        }
    }

    /// The mapping, if there is one, and the program.
    pub(crate) fn mapping(&self) -> Option<Result<(Mapping, String), String>> {
        let code = match self.map? {
            MapConfig::Jq(code) => Ok(code.clone()),
            MapConfig::JqFile(file) => {
                std::fs::read_to_string(&file.path).map_err(|error| format!("cannot read `{}`: {error}", file.written))
            }
            MapConfig::Preset(name) => preset(name).map(str::to_owned).ok_or_else(|| format!("no preset `{name}`")),
        };
        let mapping = |code: String| Ok((Mapping::of(&code).map_err(|error| error.to_string())?, code));
        Some(code.and_then(mapping))
    }

    /// How records are taken, with these options of the mapping.
    pub(super) fn intake(&self, id: &str, options: &Options) -> IntakeOptions {
        let options = options.clone();
        let Self { conversations, file, .. } = self;
        let assembly = conversations.over(options);
        IntakeOptions {
            settle_ms: (assembly.settle_s * 1000.0) as u64,
            max_waiting: conversations.max_waiting,
            path: file.map_or_else(|| id.to_owned(), |file| file.display().to_string()),
            names_files: self.reads == Reads::Files,
            assembly,
        }
    }
}
