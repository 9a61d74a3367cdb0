//! Mappings: jq programs that make messages of records.

use std::fmt;

use jaq_json::Val;

use crate::decode::{self, Odd, Record, form};
use crate::jq::{Program, ProgramError};
use crate::message::{Item, Options};
use crate::options::options;
use crate::parts::parts;

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
    program: Program,
    options: Options,
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
        Ok(Self { program: Program::of(code, &["$source"], &options.env)?, options })
    }

    /// The same with other options.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// How the form is read and assembled.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The value of a record that comes by itself: JSON, or a form, if the options say so.
    ///
    /// # Errors
    ///
    /// It is neither.
    pub fn value(&self, record: &[u8], odd: &mut Odd) -> Result<Val, String> {
        match self.options.form() {
            Some("forms") => form(record.trim_ascii()),
            _ => decode::value(record, odd),
        }
    }

    /// What the mapping gives for a record.
    ///
    /// # Errors
    ///
    /// The program fails on it or does not end, or gives something that is no message.
    pub fn run(&self, record: &Record) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        self.program.run(record.value.clone(), &[record.source.value()], &mut |given| {
            items.push(Item::of(&given)?);
            if items.len() > ITEMS {
                return Err(format!("the mapping gives more than {ITEMS} messages"));
            }
            Ok(())
        })?;
        Ok(items)
    }

    /// The same, but of a batch of spans and log records that cannot be mapped as a whole, those that can be, with the
    /// reason why the others cannot.
    ///
    /// # Errors
    ///
    /// Nothing of it can be mapped.
    pub fn run_in_parts(&self, record: &Record) -> Result<(Vec<Item>, Option<String>), String> {
        let reason = match self.run(record) {
            Ok(items) => return Ok((items, None)),
            Err(reason) => reason,
        };
        let parts = parts(&record.value);
        let (count, mut items, mut failed) = (parts.len(), Vec::new(), Vec::new());
        for value in parts {
            match self.run(&Record { value, source: record.source.clone() }) {
                Ok(found) => items.extend(found),
                Err(reason) => failed.push(reason),
            }
        }
        match failed.first() {
            _ if failed.len() == count => Err(reason),
            Some(first) => Ok((items, Some(format!("{} of {count} spans and log records: {first}", failed.len())))),
            None => Ok((items, None)),
        }
    }
}
