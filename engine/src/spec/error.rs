//! The error of deserializing a value, with its span.

use std::fmt;

use serde::de;

use super::Span;
use crate::wording;

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// The struct has no such field.
    UnknownField {
        /// As written.
        field: String,
        /// The valid fields.
        expected: &'static [&'static str],
    },
    /// A required field is missing.
    MissingField(&'static str),
    /// The name is not one of the choices.
    UnknownVariant {
        /// As written.
        variant: String,
        /// The valid names.
        expected: &'static [&'static str],
    },
    /// The value has the wrong type.
    Type {
        /// The expected type.
        expected: String,
    },
    /// A path is empty.
    EmptyPath,
    /// A field is given twice; its name here is the current one.
    Twice(&'static str),
    /// A field is given under its current name and under an earlier one.
    OldName {
        /// The earlier name.
        old: String,
        /// The current name.
        new: String,
        /// Where the current name is.
        other: Span,
    },
    /// Any other error, in the words of the type that reports it.
    Other(String),
}

/// A value that could not be deserialized.
#[derive(Clone, Debug)]
pub struct SpecError {
    /// What is wrong.
    pub problem: Problem,
    /// Where.
    pub span: Option<Span>,
}

impl SpecError {
    pub(super) fn new(problem: Problem) -> Self {
        Self { problem, span: None }
    }

    pub(super) fn expected(what: &str) -> Self {
        let expected = match what {
            "a string" | "a borrowed string" => "text in quotes",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            _ if what.starts_with("struct ") => "fields with their names",
            other => wording::expected(other),
        };
        Self::new(Problem::Type { expected: expected.to_owned() })
    }

    pub(super) fn at(mut self, span: Span) -> Self {
        self.span.get_or_insert(span);
        self
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::UnknownField { field, .. } => write!(f, "unknown field `{field}`"),
            Problem::MissingField(field) => write!(f, "missing field `{field}`"),
            Problem::UnknownVariant { variant, .. } => write!(f, "unknown `{variant}`"),
            Problem::Type { expected } => write!(f, "expected {expected}"),
            Problem::EmptyPath => f.write_str("the path is empty"),
            Problem::Twice(field) => write!(f, "the field `{field}` is given twice"),
            Problem::OldName { old, new, .. } => write!(f, "`{old}` is the old name of `{new}`, which is given too"),
            Problem::Other(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for SpecError {}

impl de::Error for SpecError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Problem::Other(message.to_string()))
    }
    fn invalid_type(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }
    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }
    fn invalid_length(_: usize, expected: &dyn de::Expected) -> Self {
        Self::expected(&expected.to_string())
    }
    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::UnknownVariant { variant: variant.to_owned(), expected })
    }
    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Problem::UnknownField { field: field.to_owned(), expected })
    }
    fn missing_field(field: &'static str) -> Self {
        Self::new(Problem::MissingField(field))
    }
    fn duplicate_field(field: &'static str) -> Self {
        Self::new(Problem::Twice(field))
    }
}
