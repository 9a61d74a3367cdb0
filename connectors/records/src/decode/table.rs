//! Rows of CSV: objects by the names of the columns, whose values are texts.

use jaq_json::Val;

use super::Records;

/// What may be between the fields.
const BETWEEN: [u8; 4] = *b",;\t|";

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    let first = text.lines().next().unwrap_or_default();
    let count = |between: &u8| first.bytes().filter(|byte| byte == between).count();
    let between = BETWEEN.into_iter().max_by_key(|between| (count(between), *between == b',')).unwrap_or(b',');
    let mut rows = csv::ReaderBuilder::new().delimiter(between).flexible(true).from_reader(text.as_bytes());
    let names = match rows.headers() {
        Ok(names) => names.clone(),
        Err(error) => return records.take(1, Err(error.to_string())),
    };
    for row in rows.records() {
        match row {
            Ok(row) => {
                let line = row.position().map_or(0, csv::Position::line);
                let fields = names.iter().zip(row.iter());
                let field =
                    |(name, value): (&str, &str)| (Val::from(name.trim().to_owned()), Val::from(value.to_owned()));
                records.take(line, Ok(Val::obj(fields.map(field).collect())));
            }
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                records.take(line, Err(error.to_string()));
            }
        }
    }
}
