//! The messages of PostgreSQL's output plugin `pgoutput`, version 1 of its protocol.
//!
//! Nothing in a message is trusted: what is cut off, unknown or not UTF-8 is an error.

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("a message of logical decoding is cut off")]
    Short,
    #[error("a message of logical decoding is longer than its contents")]
    Long,
    #[error("a message of logical decoding is not UTF-8")]
    Utf8,
    #[error("an unknown message of logical decoding (byte {0:#04x})")]
    Unknown(u8),
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A transaction begins: its number, and the position of its commit.
    Begin {
        transaction: u32,
        commit: u64,
    },
    /// It ends: the position of its commit, and the first one after it.
    Commit {
        commit: u64,
        end: u64,
    },
    /// The columns of a table, before the first of its rows.
    Relation(Relation),
    Insert {
        relation: u32,
        new: Tuple<'a>,
    },
    /// `old` has the former key, or the whole row, if the replica identity tells it.
    Update {
        relation: u32,
        old: Option<Tuple<'a>>,
        new: Tuple<'a>,
    },
    Delete {
        relation: u32,
        old: Tuple<'a>,
    },
    /// These tables are emptied.
    Truncate(Vec<u32>),
    /// Something that has no rows: a type, an origin, a message of a program.
    Other,
}

/// The values of a row, in the order of the columns.
pub(crate) type Tuple<'a> = Vec<Cell<'a>>;

/// A value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell<'a> {
    Null,
    /// A large value that the change does not touch, and that is not sent.
    Unchanged,
    Text(&'a str),
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) id: u32,
    pub(crate) schema: String,
    pub(crate) name: String,
    /// `d`: the primary key, `n`: nothing, `f`: the whole row, `i`: an index.
    pub(crate) identity: u8,
    pub(crate) columns: Vec<Column>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The number of its type.
    pub(crate) of: u32,
    /// Whether it is part of the replica identity.
    pub(crate) is_key: bool,
}

/// Reads a message.
pub(crate) fn parse(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    let mut from = Bytes(bytes);
    let message = match from.u8()? {
        b'B' => {
            let commit = from.u64()?;
            from.u64()?;
            Message::Begin { commit, transaction: from.u32()? }
        }
        b'C' => {
            from.u8()?;
            let (commit, end) = (from.u64()?, from.u64()?);
            from.u64()?;
            Message::Commit { commit, end }
        }
        b'R' => Message::Relation(from.relation()?),
        b'I' => {
            let relation = from.u32()?;
            from.tag(b'N')?;
            Message::Insert { relation, new: from.tuple()? }
        }
        b'U' => {
            let relation = from.u32()?;
            let old = match from.u8()? {
                b'K' | b'O' => {
                    let old = from.tuple()?;
                    from.tag(b'N')?;
                    Some(old)
                }
                b'N' => None,
                other => return Err(Malformed::Unknown(other)),
            };
            Message::Update { relation, old, new: from.tuple()? }
        }
        b'D' => {
            let relation = from.u32()?;
            match from.u8()? {
                b'K' | b'O' => Message::Delete { relation, old: from.tuple()? },
                other => return Err(Malformed::Unknown(other)),
            }
        }
        b'T' => {
            let count = from.u32()?;
            from.u8()?;
            let mut relations = Vec::new();
            for _ in 0..count {
                relations.push(from.u32()?);
            }
            Message::Truncate(relations)
        }
        b'O' | b'Y' | b'M' => return Ok(Message::Other),
        other => return Err(Malformed::Unknown(other)),
    };
    if from.0.is_empty() { Ok(message) } else { Err(Malformed::Long) }
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed::Short)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn tag(&mut self, tag: u8) -> Result<(), Malformed> {
        let found = self.u8()?;
        if found == tag { Ok(()) } else { Err(Malformed::Unknown(found)) }
    }

    fn text(bytes: &[u8]) -> Result<&str, Malformed> {
        std::str::from_utf8(bytes).map_err(|_| Malformed::Utf8)
    }

    /// A text that ends with a zero.
    fn name(&mut self) -> Result<String, Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed::Short)?;
        let name = Self::text(self.take(end)?)?.to_owned();
        self.u8()?;
        Ok(name)
    }

    fn tuple(&mut self) -> Result<Tuple<'a>, Malformed> {
        // Memory is taken for what is there, not for what the count says.
        let mut cells = Vec::new();
        for _ in 0..self.u16()? {
            cells.push(match self.u8()? {
                b'n' => Cell::Null,
                b'u' => Cell::Unchanged,
                b't' => {
                    let length = self.u32()?;
                    Cell::Text(Self::text(self.take(length as usize)?)?)
                }
                other => return Err(Malformed::Unknown(other)),
            });
        }
        Ok(cells)
    }

    fn relation(&mut self) -> Result<Relation, Malformed> {
        let (id, schema, name, identity) = (self.u32()?, self.name()?, self.name()?, self.u8()?);
        let mut columns = Vec::new();
        for _ in 0..self.u16()? {
            let is_key = self.u8()? & 1 != 0;
            let (name, of) = (self.name()?, self.u32()?);
            self.u32()?;
            columns.push(Column { name, of, is_key });
        }
        // Tables of the system's own schema have no name there.
        let schema = if schema.is_empty() { "pg_catalog".to_owned() } else { schema };
        Ok(Relation { id, schema, name, identity, columns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Vec<u8>> {
        let tuple = |cells: &[&[u8]]| {
            let mut bytes = (cells.len() as u16).to_be_bytes().to_vec();
            cells.iter().for_each(|cell| bytes.extend_from_slice(cell));
            bytes
        };
        let row = tuple(&[b"t\0\0\0\x0217", b"n", b"u", "t\0\0\0\x02é".as_bytes()]);
        let with = |head: &[u8], parts: &[&[u8]]| [head, &parts.concat()].concat();
        vec![
            with(b"B", &[&7u64.to_be_bytes(), &1u64.to_be_bytes(), &9u32.to_be_bytes()]),
            with(b"C\0", &[&7u64.to_be_bytes(), &8u64.to_be_bytes(), &1u64.to_be_bytes()]),
            with(b"R\0\0\0\x05public\0articles\0d\0\x01\x01id\0\0\0\0\x14\xff\xff\xff\xff", &[]),
            with(b"I\0\0\0\x05N", &[&row]),
            with(b"U\0\0\0\x05N", &[&row]),
            with(b"U\0\0\0\x05K", &[&row, b"N", &row]),
            with(b"D\0\0\0\x05O", &[&row]),
            b"T\0\0\0\x02\0\0\0\0\x05\0\0\0\x06".to_vec(),
            b"Mwhatever".to_vec(),
        ]
    }

    #[test]
    fn messages_are_read() {
        let all = messages();
        let read: Vec<Message<'_>> = all.iter().map(|bytes| parse(bytes).unwrap()).collect();
        let row = || vec![Cell::Text("17"), Cell::Null, Cell::Unchanged, Cell::Text("é")];
        assert_eq!(read[0], Message::Begin { transaction: 9, commit: 7 });
        assert_eq!(read[1], Message::Commit { commit: 7, end: 8 });
        let columns = vec![Column { name: "id".to_owned(), of: 20, is_key: true }];
        let (schema, name) = ("public".to_owned(), "articles".to_owned());
        assert_eq!(read[2], Message::Relation(Relation { id: 5, schema, name, identity: b'd', columns }));
        assert_eq!(read[3], Message::Insert { relation: 5, new: row() });
        assert_eq!(read[4], Message::Update { relation: 5, old: None, new: row() });
        assert_eq!(read[5], Message::Update { relation: 5, old: Some(row()), new: row() });
        assert_eq!(read[6], Message::Delete { relation: 5, old: row() });
        assert_eq!(read[7], Message::Truncate(vec![5, 6]));
        assert_eq!(read[8], Message::Other);
        assert_eq!(parse(b"S").unwrap_err(), Malformed::Unknown(b'S'));
        assert_eq!(parse(b"").unwrap_err(), Malformed::Short);
    }

    #[test]
    fn what_is_cut_off_or_altered_is_an_error_and_never_a_panic() {
        for message in messages() {
            for length in 0..message.len() {
                let cut = parse(&message[..length]);
                assert!(cut.is_err() || message[0] == b'M', "{message:?} to {length}");
            }
            // A small generator of numbers, the same in each run.
            let mut state = 1u64;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            };
            for _ in 0..20_000 {
                let mut altered = message.clone();
                for _ in 0..=next() % 4 {
                    let at = next() % altered.len();
                    match next() % 3 {
                        0 => altered[at] = next() as u8,
                        1 => altered[at] = 0xff,
                        _ => altered.insert(at, next() as u8),
                    }
                }
                let _ = parse(&altered);
            }
        }
    }
}
