//! jq programs, with limits of what they may do with one record.

mod access;
mod held;
mod limits;
mod lists;
mod matches;
mod natives;
mod ops;
mod patterns;
mod program;
mod texts;
mod value;
mod write;

use jaq_core::{Ctx, Vars, data, unwrap_valr};
use jaq_json::{Num, Val};

use crate::message::text_of;

pub(crate) use self::limits::{Lent, bytes, steps};
pub(crate) use self::natives::{Own, parsed, shown};
pub use self::program::ProgramError;
pub(crate) use self::value::Value;

/// Maximum length of the text of an error, in characters.
const TOLD: usize = 1_000;

/// A compiled program.
pub(crate) struct Program {
    filter: jaq_core::Filter<data::JustLut<Value>>,
    /// What it may see of the environment.
    environment: Option<Val>,
}

impl Program {
    /// Compiles a program that has these variables, and may see these variables of the environment, as they are now.
    pub fn of(code: &str, variables: &[&str], environment: &[String]) -> Result<Self, ProgramError> {
        let filter = program::compile(code, variables, environment)?;
        let variable = |name: &String| {
            let value = std::env::var(name).map_or(Val::Null, Val::from);
            (Val::from(name.clone()), value)
        };
        let seen = (!environment.is_empty()).then(|| Val::obj(environment.iter().map(variable).collect()));
        Ok(Self { filter, environment: seen })
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
        let variables: Vec<(&Val, u32)> =
            variables.iter().chain(&self.environment).map(|value| (value, limits::size_of(value).1)).collect();
        let run = || {
            // The record is held by the caller, too, so that no part of it is given back.
            let variables = variables.iter().map(|(value, depth)| Value::of(held::shared(value), *depth));
            let context = Ctx::<data::JustLut<Value>>::new(&self.filter.lut, Vars::new(variables));
            let value = Value::of(held::shared(&value), depth);
            for given in self.filter.id.run((context, value)).map(unwrap_valr) {
                let given = given.map_err(|error| {
                    let value = error.into_val();
                    let text = text_of(&value.val).unwrap_or_else(|| value.to_string());
                    match text.char_indices().nth(TOLD) {
                        Some((at, _)) => format!("{}…", &text[..at]),
                        None => text,
                    }
                })?;
                // What follows looks at all of it.
                limits::walk(&given.val);
                each(finite(given.into_val()))?;
            }
            Ok(())
        };
        limits::bounded(size, run).unwrap_or_else(|spent| Err(format!("the program was ended: {spent}")))
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
            Val::Obj(fields) => {
                Val::obj(fields.iter().map(|(name, value)| (name.clone(), mended(value))).collect())
            }
            other => other.clone(),
        }
    }
    if is_odd(&value) { mended(&value) } else { value }
}

#[cfg(test)]
mod tests;
