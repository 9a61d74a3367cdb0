//! An operator that adds the long form of each acronym to the query: Queries → Queries.

use std::collections::BTreeMap;

use turnflow_engine::component::{Call, Check, Function, InputPort, OperatorError, OperatorKind, config};
use turnflow_engine::record::{PortType, Query, Value};

/// The entry for the catalog.
pub const KIND: OperatorKind = OperatorKind::function::<AcronymsConfig>(
    "Acronyms",
    &[InputPort::one(PortType::Queries)],
    PortType::Queries,
    "adds the long form of each acronym to the query",
);

/// Fields of `Acronyms`.
#[config]
pub struct AcronymsConfig {
    /// Input node that produces queries.
    _input: String,
    /// What each acronym stands for.
    long: BTreeMap<String, String>,
}

impl Function for AcronymsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.long.is_empty() {
            check.error("wrong-value", "long", "no acronyms are given");
        }
    }

    fn explain(&self) -> String {
        format!("{} acronyms", self.long.len())
    }

    fn call(&self, call: &Call) -> Result<Value, OperatorError> {
        Ok(Value::Query(Query::new(expand(&call.query(0)?.text, &self.long))))
    }
}

/// The text, followed by the long forms of its acronyms.
fn expand(text: &str, long: &BTreeMap<String, String>) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let found = words.filter_map(|word| {
        let known = long.iter().find(|(acronym, _)| acronym.eq_ignore_ascii_case(word));
        known.map(|(_, long)| long.as_str())
    });
    std::iter::once(text).chain(found).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_forms_are_added_to_whole_words() {
        let long = BTreeMap::from([("SLA".to_owned(), "service level agreement".to_owned())]);
        assert_eq!(expand("Which sla, please?", &long), "Which sla, please? service level agreement");
        assert_eq!(expand("Slate", &long), "Slate");
    }
}
