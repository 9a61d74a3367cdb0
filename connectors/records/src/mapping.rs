//! Mappings: jq programs that make messages of records.

use std::fmt;

use crate::decode::Record;
use crate::jq::{Program, ProgramError};
use crate::message::{Item, Options};
use crate::options::options;

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
}
