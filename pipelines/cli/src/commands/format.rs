//! The output format of commands that print a report or records.

use clap::{Args, ValueEnum};

/// The option `--format`, and `--json` as its short form.
#[derive(Args)]
pub(super) struct FormatArgs {
    /// The output format.
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    format: Format,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    /// Human-readable text.
    Text,
    /// JSON for programs.
    Json,
}

impl FormatArgs {
    /// Whether the output is JSON.
    pub fn is_json(&self) -> bool {
        self.json || self.format == Format::Json
    }
}
