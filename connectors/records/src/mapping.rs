//! Mappings: jq programs that make messages of records.

use std::fmt;

use jaq_core::load::{self, Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Vars, compile, data, unwrap_valr};
use jaq_json::Val;

use crate::decode::Record;
use crate::functions::{DEFINITIONS, is_known, natives};
use crate::message::{Item, Options};

/// What begins the line of a program that has its options.
const OPTIONS: &str = "#:";

/// Maximum number of messages of a record.
const ITEMS: usize = 1_000_000;

/// A mapping of records to messages.
///
/// ```
/// use turnflow_records::Mapping;
///
/// let code = r#"{conversation: .chat, speaker: (.role | role), text: .content}"#;
/// assert!(Mapping::of(code).is_ok());
/// let error = Mapping::of("{conversation: .chat,\n speaker: rolle}").err().unwrap();
/// assert_eq!(error.to_string(), "line 2, column 11: there is no filter `rolle`");
/// ```
pub struct Mapping {
    filter: jaq_core::Filter<data::JustLut<Val>>,
    options: Options,
}

/// What is wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct ProgramError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Why.
    pub reason: String,
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Mapping {
    /// Compiles a program.
    ///
    /// # Errors
    ///
    /// The program or its options are wrong.
    pub fn of(code: &str) -> Result<Self, ProgramError> {
        let options = options(code)?;
        let own = load::parse(DEFINITIONS, |parser| parser.defs()).unwrap_or_default();
        let definitions = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs()).chain(own);
        let known = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
        let known = known.filter(|(name, ..)| is_known(name)).chain(natives());
        let arena = Arena::default();
        let modules =
            Loader::new(definitions).load(&arena, File { code, path: () }).map_err(|errors| loading(code, errors))?;
        let filter = Compiler::default()
            .with_funs(known)
            .with_global_vars(["$source"])
            .compile(modules)
            .map_err(|errors| compiling(code, errors))?;
        Ok(Self { filter, options })
    }

    /// How the form is read and assembled.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What the mapping gives for a record.
    ///
    /// # Errors
    ///
    /// The program fails on it, or gives something that is no message.
    pub fn run(&self, record: &Record) -> Result<Vec<Item>, String> {
        let source = record.source.value();
        let context = Ctx::<data::JustLut<Val>>::new(&self.filter.lut, Vars::new([source]));
        let mut items = Vec::new();
        for given in self.filter.id.run((context, record.value.clone())).map(unwrap_valr) {
            items.push(Item::of(&given.map_err(|error| error.to_string())?)?);
            if items.len() > ITEMS {
                return Err(format!("the mapping gives more than {ITEMS} messages"));
            }
        }
        Ok(items)
    }
}

fn options(code: &str) -> Result<Options, ProgramError> {
    let Some((at, line)) = code.lines().enumerate().find(|(_, line)| line.starts_with(OPTIONS)) else {
        return Ok(Options::default());
    };
    let written = &line[OPTIONS.len()..];
    serde_json::from_str(written).map_err(|error| ProgramError {
        line: at + 1,
        column: OPTIONS.len() + error.column(),
        reason: format!("the options are wrong: {error}"),
    })
}

/// An error at a part of the code.
fn at(code: &str, part: &str, reason: String) -> ProgramError {
    let offset = (part.as_ptr() as usize).checked_sub(code.as_ptr() as usize).filter(|offset| *offset <= code.len());
    let before = code.get(..offset.unwrap_or(code.len())).unwrap_or(code);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    ProgramError { line, column, reason }
}

fn loading(code: &str, errors: load::Errors<&str, ()>) -> ProgramError {
    let wrong = |part: &str, expected: &str| {
        let found = part.chars().take(20).collect::<String>();
        let found = if found.trim().is_empty() { "the end".to_owned() } else { format!("`{}`", found.trim()) };
        at(code, part, format!("{expected} is expected, not {found}"))
    };
    for (_, error) in errors {
        match error {
            load::Error::Io(files) => {
                if let Some((path, reason)) = files.into_iter().next() {
                    return at(code, path, reason);
                }
            }
            load::Error::Lex(errors) => {
                if let Some((expected, part)) = errors.into_iter().next() {
                    return wrong(part, expected.as_str());
                }
            }
            load::Error::Parse(errors) => {
                if let Some((expected, part)) = errors.into_iter().next() {
                    return wrong(part, expected.as_str());
                }
            }
        }
    }
    at(code, "", "the program is wrong".to_owned())
}

fn compiling(code: &str, errors: compile::Errors<&str, ()>) -> ProgramError {
    for (_, errors) in errors {
        if let Some((name, undefined)) = errors.into_iter().next() {
            return at(code, name, format!("there is no {} `{name}`", undefined.as_str()));
        }
    }
    at(code, "", "the program is wrong".to_owned())
}
