//! Why a value could not be typed, as a value with its place.

use std::fmt;

use serde::de;

use super::Span;

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// A field that the struct doesn't have.
    UnknownField {
        /// As written.
        field: String,
        /// Those there are.
        expected: &'static [&'static str],
    },
    /// A field without default is not given.
    MissingField(&'static str),
    /// A name that is none of the choices.
    UnknownVariant {
        /// As written.
        variant: String,
        /// Those there are.
        expected: &'static [&'static str],
    },
    /// Of another type than asked for.
    Type {
        /// What is asked for.
        expected: String,
    },
    /// Anything else, said by the type itself.
    Other(String),
}

/// A value that could not be typed.
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
            "f32" | "f64" => "a number",
            "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number, 0 or more",
            "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
            "a string" | "a borrowed string" => "text in quotes",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            other => other,
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
}
