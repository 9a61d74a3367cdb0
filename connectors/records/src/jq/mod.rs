//! jq programs, with limits of what they may do with one record.

mod access;
mod held;
mod limits;
mod lists;
mod matches;
mod natives;
mod ops;
mod patterns;
mod places;
mod program;
mod terms;
mod texts;
mod value;
mod write;

use std::sync::OnceLock;

use jaq_core::{Ctx, Error, Vars, data, unwrap_valr};
use jaq_json::{Num, Val};

use crate::message::text_of;

pub(crate) use self::limits::{Lent, bytes, steps};
pub(crate) use self::natives::{Own, parsed, shown};
use self::places::Marks;
pub use self::program::ProgramError;
pub(crate) use self::value::Value;
pub(crate) use self::write::Shortly;

/// Maximum length of the text of an error, in characters.
const TOLD: usize = 1_000;

type Filter = jaq_core::Filter<data::JustLut<Value>>;

/// A compiled program.
pub(crate) struct Program {
    filter: Filter,
    code: String,
    variables: Vec<String>,
    /// The names of what it may see of the environment, and these variables.
    environment: (Vec<String>, Option<Val>),
    /// The same program as it tells where it fails.
    telling: OnceLock<Option<(Filter, Marks)>>,
}

/// Why a program ends before it has given all.
enum Ended {
    /// It fails.
    Failed(Error<Value>),
    /// What it gives is not taken.
    Refused(String),
}

impl Program {
    /// Compiles a program that has these variables, and may see these variables of the environment, as they are now.
    pub fn of(code: &str, variables: &[&str], environment: &[String]) -> Result<Self, ProgramError> {
        let filter = program::compile(code, variables, environment, None)?;
        let variable = |name: &String| {
            let value = std::env::var(name).map_or(Val::Null, Val::from);
            (Val::from(name.clone()), value)
        };
        let seen = (!environment.is_empty()).then(|| Val::obj(environment.iter().map(variable).collect()));
        Ok(Self {
            filter,
            code: code.to_owned(),
            variables: variables.iter().map(|&name| name.to_owned()).collect(),
            environment: (environment.to_vec(), seen),
            telling: OnceLock::new(),
        })
    }

    /// Gives what the program makes of a value to `each`, until that fails.
    ///
    /// # Errors
    ///
    /// The program fails or has used up what it may, or `each` fails.
    pub fn run(
        &self,
        value: Val,
        variables: &[Val],
        each: &mut dyn FnMut(Val) -> Result<(), String>,
    ) -> Result<(), String> {
        let (size, depth) = limits::size_of(&value);
        let size = (size, limits::weight_of(&value, size));
        let run = || {
            let taken = &mut |given| each(given).map_err(Ended::Refused);
            self.run_filter(&self.filter, (&value, depth), variables, taken).map_err(|ended| match ended {
                Ended::Failed(error) => (shortly(&error), Some(error.into_val().into_val())),
                Ended::Refused(reason) => (reason, None),
            })
        };
        let done = limits::bounded(size, run);
        let done = done.unwrap_or_else(|spent| Err((format!("the program was ended: {spent}"), None)));
        done.map_err(|(reason, error)| match error.and_then(|error| self.place(&value, variables, &error)) {
            Some(place) => format!("{reason} ({place})"),
            None => reason,
        })
    }

    /// Runs the program, or the one that tells where it fails.
    fn run_filter(
        &self,
        filter: &Filter,
        (value, depth): (&Val, u32),
        variables: &[Val],
        each: &mut dyn FnMut(Val) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        // The record is held by the caller, too, so that no part of it is given back.
        let variables = variables.iter().chain(&self.environment.1);
        let variables = variables.map(|value| Value::of(held::shared(value), limits::size_of(value).1));
        let context = Ctx::<data::JustLut<Value>>::new(&filter.lut, Vars::new(variables));
        let value = Value::of(held::shared(value), depth);
        for given in filter.id.run((context, value)).map(unwrap_valr) {
            let given = given.map_err(Ended::Failed)?;
            // What follows looks at all of it.
            limits::walk(&given.val);
            each(finite(given.into_val()))?;
        }
        Ok(())
    }

    /// Where the program fails on a value with an error.
    fn place(&self, value: &Val, variables: &[Val], error: &Val) -> Option<String> {
        let compile = || {
            let (mut marks, names) = (Marks::default(), self.variables.iter().map(String::as_str).collect::<Vec<_>>());
            let filter = program::compile(&self.code, &names, &self.environment.0, Some(&mut marks)).ok()?;
            Some((filter, marks))
        };
        let (filter, marks) = self.telling.get_or_init(compile).as_ref()?;
        let (size, depth) = limits::size_of(value);
        let size = (size, limits::weight_of(value, size));
        let run = || match self.run_filter(filter, (value, depth), variables, &mut |_| Ok(())) {
            Err(Ended::Failed(error)) => Some(error.into_val().into_val()),
            _ => None,
        };
        let place = marks.place(|| limits::bounded(size, run).ok().flatten(), error)?;
        // What the program says itself needs no place.
        let name = self.code.get(place.clone())?.split(|letter: char| !letter.is_alphanumeric()).next();
        if name == Some("error") {
            return None;
        }
        let at = program::at(&self.code, &self.code[place.start..], String::new());
        Some(format!("line {}, column {}: {}", at.line, at.column, places::shown(&self.code, &place)))
    }
}

/// What an error says, with the values in it shown shortly.
fn shortly(error: &Error<Value>) -> String {
    let value = error.clone().into_val();
    if Error::new(value.clone()) != *error {
        return format!("{error:#}");
    }
    let text = text_of(&value.val).unwrap_or_else(|| value.to_string());
    match text.char_indices().nth(TOLD) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// A value as JSON can hold it: null is no number, and the largest number stands for those without an end.
fn finite(value: Val) -> Val {
    fn is_odd(value: &Val) -> bool {
        match value {
            Val::Num(Num::Float(number)) => !number.is_finite(),
            Val::Arr(values) => values.iter().any(is_odd),
            Val::Obj(fields) => fields.values().any(is_odd),
            _ => false,
        }
    }
    fn mended(value: &Val) -> Val {
        match value {
            Val::Num(Num::Float(number)) if number.is_nan() => Val::Null,
            Val::Num(Num::Float(number)) => Val::from(write::finite(*number)),
            Val::Arr(values) => values.iter().map(mended).collect(),
            Val::Obj(fields) => Val::obj(fields.iter().map(|(name, value)| (name.clone(), mended(value))).collect()),
            other => other.clone(),
        }
    }
    if is_odd(&value) { mended(&value) } else { value }
}

#[cfg(test)]
mod tests;
