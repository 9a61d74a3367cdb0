//! Rows of a query of SQLite: objects by the names of the columns. The database is only read.

use std::path::Path;

use jaq_json::{Num, Val};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::Records;

pub(super) fn read(path: &Path, query: Option<&str>, records: &mut Records<'_>) {
    let Some(query) = query else {
        return records.take(1, Err("a database needs a `query` in the options of the mapping".to_owned()));
    };
    if let Err(error) = rows(path, query, records) {
        records.take(0, Err(error.to_string()));
    }
}

fn rows(path: &Path, query: &str, records: &mut Records<'_>) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags)?;
    let mut query = database.prepare(query)?;
    let names: Vec<String> = query.column_names().into_iter().map(str::to_owned).collect();
    let mut rows = query.query([])?;
    for number in 1.. {
        let Some(row) = rows.next()? else { break };
        let mut fields = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            fields.push((Val::from(name.clone()), value(row.get_ref(at)?)));
        }
        records.take(number, Ok(Val::obj(fields.into_iter().collect())));
    }
    Ok(())
}

fn value(value: ValueRef<'_>) -> Val {
    match value {
        ValueRef::Null | ValueRef::Blob(_) => Val::Null,
        ValueRef::Integer(number) => Val::Num(Num::from_integral(number)),
        ValueRef::Real(number) => Val::from(number),
        ValueRef::Text(text) => Val::from(String::from_utf8_lossy(text).into_owned()),
    }
}
