//! Names of tables, columns, slots and channels, and SQL around a query of the pipeline file.

use std::fmt;

use turnflow_engine::component::Check;

/// The longest name that PostgreSQL keeps, in bytes.
const LONGEST: usize = 63;

/// Whether this is the name of a column, channel or publication: letters, digits, `_` and `$`, and no digit first.
pub(super) fn is_name(name: &str) -> bool {
    let first = name.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_');
    let rest = name.chars().all(|character| character.is_alphanumeric() || character == '_' || character == '$');
    first && rest && name.len() <= LONGEST
}

/// Whether this is the name of a replication slot.
fn is_slot(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.len() <= LONGEST && name.bytes().all(fits)
}

/// A name in SQL. Upper and lower case are kept.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table with its schema.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Table {
    pub(super) schema: String,
    pub(super) name: String,
}

impl Table {
    /// Reads `schema.table`.
    pub(super) fn parse(written: &str) -> Result<Self, String> {
        match written.split_once('.') {
            Some((schema, name)) if is_name(schema) && is_name(name) => {
                Ok(Self { schema: schema.to_owned(), name: name.to_owned() })
            }
            _ => Err(format!("`{written}` is not a table with its schema, as in `public.articles`")),
        }
    }

    /// The table in SQL.
    pub(super) fn sql(&self) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// Reports what is not a name.
pub(super) fn check_name(check: &mut Check<'_>, field: &str, name: &str) {
    if !is_name(name) {
        let problem = "must be letters, digits, `_` and `$`, at most 63 bytes, and not begin with a digit";
        check.error("wrong-value", field, format!("the name `{name}` {problem}"));
    }
}

/// Reports what is not the name of a slot.
pub(super) fn check_slot(check: &mut Check<'_>, field: &str, name: &str) {
    if !is_slot(name) {
        let problem = "must be lower-case letters, digits and `_`, at most 63";
        check.error("wrong-value", field, format!("the name of a slot `{name}` {problem}"));
    }
}

/// Reports what is not a table with its schema.
pub(super) fn check_table(check: &mut Check<'_>, field: &str, table: &str) {
    if let Err(problem) = Table::parse(table) {
        check.error("wrong-value", field, problem);
    }
}

/// A query without the semicolon at its end, so that it can stand inside another.
pub(super) fn inner(query: &str) -> Result<&str, String> {
    let query = query.trim_end_matches(|character: char| character.is_whitespace() || character == ';').trim_start();
    let word: String =
        query.trim_start_matches('(').trim_start().chars().take_while(char::is_ascii_alphabetic).collect();
    match word.to_ascii_uppercase().as_str() {
        "SELECT" | "WITH" | "VALUES" | "TABLE" => Ok(query),
        _ => Err("`query` must begin with SELECT, WITH, VALUES or TABLE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_quotes() {
        for name in ["id", "_id", "Größe", "a$1"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "1a", "a b", "a\"b", "a;b", "a.b", "a\0", &"x".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
        assert_eq!(quoted("a\"; DROP"), "\"a\"\"; DROP\"");
        assert_eq!(Table::parse("public.Articles").unwrap().sql(), "\"public\".\"Articles\"");
        for table in ["articles", "a.b.c", "a.", ".a", "a.b c"] {
            Table::parse(table).unwrap_err();
        }
        assert!(is_slot("turnflow_1") && !is_slot("Turnflow") && !is_slot(""));
    }

    #[test]
    fn a_query_loses_its_semicolon_only() {
        assert_eq!(inner(" select ';' AS a ; \n;").unwrap(), "select ';' AS a");
        assert_eq!(inner("(VALUES (1))").unwrap(), "(VALUES (1))");
        assert_eq!(inner("DELETE FROM a").unwrap_err(), "`query` must begin with SELECT, WITH, VALUES or TABLE");
    }
}
