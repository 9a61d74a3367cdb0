//! `Redis`: turns from a Redis stream, one entry each.
//!
//! ```ron
//! Redis(url: "redis://localhost:6379", stream: "turns")
//! ```
//!
//! An entry has a field `record` with a turn record in JSON. Instead, it may have the record's fields: `conversation_id`,
//! `turn`, `speaker`, `text` and others; their values are text, except `turn` and `timestamp`, which are numbers.
//!
//! Entries are read in the order of their ids. turnflow keeps in its own checkpoint how far it has answered, so it needs no
//! consumer group: a restart resumes there, and an answer is in a file sink exactly once however often the process is
//! killed. With `trim: true`, entries are removed when a checkpoint covers their answers. A server that has lost its last
//! entries goes on with later ones. A stream that was deleted and made again is read from its beginning: it has other
//! entries under the ids that were read. A warning counts the entries that were removed before they were read (from
//! Redis 7 on).
//!
//! An entry that is not a turn becomes a dead letter `STREAM@ID`; so does one of more than a mebibyte.
//!
//! ```
//! # use turnflow_connectors::redis::turns::RedisConfig;
//! # let ron = r#"
//! (url: "rediss://cache.example.org:6379/1", stream: "turns", password: Some(Env("REDIS_PASSWORD")), trim: true)
//! # "#;
//! # let config: RedisConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert!(config.trim);
//! ```

use std::time::{Duration, Instant};

use redis::{Connection, Value, cmd, pipe};
use serde_json::Map;
use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, Stopped, TurnOutput, TurnSource};

use super::stream::{Info, Mark, Standing, entry_at, hash_of};
use super::{Server, check_url, failed, shown};
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, fitting, mapped};
use crate::remote::{Retry, may_pass};
use crate::secret::Secret;

/// Entries in a request.
const PAGE: usize = 64;
/// How long a request waits for entries.
const BLOCK: Duration = Duration::from_millis(200);
/// How often an idle stream is looked at: it may have been made again.
const LOOK: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// Maximum size of an entry, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Bits of an offset for the second part of an entry's id, which counts the entries of a millisecond.
const BITS: u32 = 20;

/// Fields of `Redis`.
#[config]
pub struct RedisConfig {
    /// The server, as in `redis://localhost:6379` or `rediss://host:6379/1` (TLS, database 1).
    #[field(show = shown)]
    pub url: String,
    /// The user. Default: the server's default user.
    pub user: Option<String>,
    /// Where the password is: `Env("NAME")` or `File("path")`. Default: none.
    pub password: Option<Secret>,
    /// The key of the stream. It need not exist yet.
    pub stream: String,
    /// Whether to remove entries when a checkpoint covers their answers.
    #[field(default)]
    pub trim: bool,
    /// What makes messages of records in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default:
    /// records are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind = TurnSourceKind::of::<RedisConfig>("Redis", "entries of a Redis stream");

impl RedisConfig {
    fn map_fields(&self) -> MapFields<'_> {
        MapFields::of_queue(self.map.as_ref(), &self.conversations)
    }
}

impl TurnSourceConfig for RedisConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_url(check, &self.url);
        self.map_fields().validate(check);
        if self.stream.is_empty() {
            check.error("wrong-value", "stream", "`stream` is empty".to_owned());
        }
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        mapped(&self.map_fields(), context, built(Ok(Box::new(self.source(context)))))
    }
}

impl RedisConfig {
    /// Builds the source. It connects when it runs.
    pub fn source(&self, context: &ComponentContext) -> RedisTurns {
        RedisTurns { config: self.clone(), context: context.clone() }
    }

    fn server(&self) -> Server {
        Server { url: self.url.clone(), user: self.user.clone(), password: self.password.clone() }
    }
}

/// Reads turns from a stream.
pub struct RedisTurns {
    config: RedisConfig,
    context: ComponentContext,
}

/// An entry's id as an offset. `None` if it is too large.
pub(super) fn offset_of(id: &str) -> Option<u64> {
    let (ms, number) = id.split_once('-')?;
    let (ms, number): (u64, u64) = (ms.parse().ok()?, number.parse().ok()?);
    (ms < 1 << (u64::BITS - BITS) && number < 1 << BITS).then_some((ms << BITS) | number)
}

/// The id of an offset.
pub(super) fn id_of(offset: u64) -> String {
    format!("{}-{}", offset >> BITS, offset & ((1 << BITS) - 1))
}

impl TurnSource for RedisTurns {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let output = output.hinting(fitting);
        let server = format!("stream `{}` of {}", self.config.stream, shown(&self.config.url));
        let mut retry = Retry::new(server, mode, &self.context);
        let at = output.resume().cloned();
        let mut following =
            Following { config: self.config, mode, output, at, cursor: String::new(), trimmed: 0, unread: 0 };
        loop {
            match following.connected(&mut retry) {
                Ok(()) => return Ok(()),
                Err(error) if may_pass(&error) => retry.failed(&error, following.output.stop())?,
                Err(error) => return Err(error),
            }
        }
    }
}

/// A source that runs.
struct Following {
    config: RedisConfig,
    mode: Mode,
    output: TurnOutput,
    /// The offset of the last entry that was read; `None` before the first connection of a new source.
    at: Option<SourceOffset>,
    /// The id of the last entry that was read, which may have no offset.
    cursor: String,
    /// Entries up to this offset are removed.
    trimmed: u64,
    /// Number of entries that were removed before they were read, as a warning has told.
    unread: u64,
}

impl Following {
    /// Reads over one connection, until everything is read or something fails.
    fn connected(&mut self, retry: &mut Retry) -> Result<(), ConnectorError> {
        let mut connection = self.config.server().connect()?;
        let info = Info::of(&mut connection, &self.config.stream)?;
        let newest = info.as_ref().map(|info| info.newest);
        let mut at = self.begin(&mut connection, info.as_ref())?;
        if self.cursor.is_empty() {
            self.cursor = id_of(at.end);
        }
        let mut looked = Instant::now();
        retry.worked();
        loop {
            if self.output.stop().is_set() {
                return Err(Stopped.into());
            }
            self.trim(&mut connection, &at)?;
            let is_behind = newest.is_some_and(|newest| newest > at.end);
            if !is_behind {
                self.output.caught_up();
                if self.mode == Mode::Once {
                    return Ok(());
                }
            }
            let mut ask = cmd("XREAD");
            ask.arg("COUNT").arg(PAGE);
            if !is_behind {
                ask.arg("BLOCK").arg(BLOCK.as_millis() as u64);
            }
            ask.arg("STREAMS").arg(&self.config.stream).arg(&self.cursor);
            let reply: Value = ask.query(&mut connection).map_err(failed)?;
            retry.worked();
            let entries = entries(reply);
            let is_any = !entries.is_empty();
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let info = Info::of(&mut connection, &self.config.stream)?;
                at = self.begin(&mut connection, info.as_ref())?;
                if self.cursor.is_empty() {
                    // Another stream.
                    self.cursor = id_of(at.end);
                    continue;
                }
            }
            for entry in entries {
                self.take(&entry, &mut at)?;
            }
            // Removed entries leave gaps, also at the end.
            if !is_any && is_behind {
                self.output.caught_up();
                if self.mode == Mode::Once {
                    return Ok(());
                }
                if self.output.stop().wait(BLOCK) {
                    return Err(Stopped.into());
                }
            }
        }
    }

    /// The offset after which to read.
    fn begin(&mut self, connection: &mut Connection, info: Option<&Info>) -> Result<SourceOffset, ConnectorError> {
        let stream = self.config.stream.as_str();
        let fresh = |generation| {
            let log = Mark::new(stream, info).to_log().into();
            SourceOffset { log, generation, ..SourceOffset::default() }
        };
        let at = match self.at.clone() {
            None => {
                let at = fresh(0);
                self.output.begins(at.clone());
                at
            }
            Some(at) => {
                let mark = Mark::parse(&at.log, stream);
                let standing = match (&mark, info) {
                    (Some(mark), Some(info)) => mark.standing(connection, info, at.end)?,
                    // It may come back.
                    (Some(_), None) => Standing::Unknown,
                    (None, _) => Standing::Another,
                };
                match (mark, info) {
                    (Some(mark), info) if standing != Standing::Another => {
                        if info.is_some_and(|info| info.newest < at.end) && self.cursor.is_empty() {
                            tracing::warn!(
                                stream,
                                "the server has lost entries that were answered; reading later ones"
                            );
                        }
                        let entries = info.map_or(0, |info| mark.unread(info, at.end, at.line));
                        if entries > self.unread {
                            tracing::warn!(
                                stream,
                                entries = entries - self.unread,
                                "entries were removed from the stream before they were read"
                            );
                            self.unread = entries;
                        }
                        at
                    }
                    _ => {
                        tracing::warn!(stream, "the stream was made again; reading it from its beginning");
                        (self.trimmed, self.unread, self.cursor) = (0, 0, String::new());
                        fresh(at.generation + 1)
                    }
                }
            }
        };
        self.at = Some(at.clone());
        Ok(at)
    }

    /// Passes an entry on.
    fn take(&mut self, entry: &Entry, at: &mut SourceOffset) -> Result<(), ConnectorError> {
        let position = format!("{}@{}", self.config.stream, entry.id);
        self.cursor.clone_from(&entry.id);
        let Some(end) = offset_of(&entry.id) else {
            self.output.dead_letter(&position, "the id is too large for an offset", b"");
            return Ok(());
        };
        let mut mark = Mark::parse(&at.log, &self.config.stream).unwrap_or_default();
        mark.read(end, entry);
        let log = mark.to_log().into();
        let next = SourceOffset { log, end, line: at.line + 1, ..at.clone() };
        match record(entry) {
            Ok(record) => self.output.line(&record, &position, Some(next.clone()))?,
            Err((reason, beginning)) => self.output.dead_letter(&position, &reason, &beginning),
        }
        *at = next.clone();
        self.at = Some(next);
        Ok(())
    }

    /// Removes the entries that a checkpoint covers.
    fn trim(&mut self, connection: &mut Connection, at: &SourceOffset) -> Result<(), ConnectorError> {
        if !self.config.trim {
            return Ok(());
        }
        let safe = self.output.acknowledgements().offsets();
        let known = safe.get("").into_iter().chain(self.output.resume());
        let covered = known.filter(|offset| offset.generation == at.generation).max_by_key(|offset| offset.end);
        let Some(covered) = covered.filter(|offset| offset.end > self.trimmed).cloned() else { return Ok(()) };
        let stream = self.config.stream.as_str();
        // The stream may just have been made again, with smaller ids: none of its entries is read. So nothing is removed
        // unless it still has the last covered entry. Without the right to watch it, a moment between the two remains.
        let is_watched = cmd("WATCH").arg(stream).query::<()>(connection).is_ok();
        let hash = Mark::parse(&covered.log, stream).and_then(|mark| mark.last);
        let has = entry_at(connection, stream, covered.end)?
            .is_some_and(|entry| hash.is_none_or(|hash| hash == hash_of(&entry)));
        let mut trim = cmd("XTRIM");
        trim.arg(stream).arg("MINID").arg(id_of(covered.end + 1));
        if !is_watched {
            if has {
                trim.query::<u64>(connection).map_err(failed)?;
            }
        } else if !has {
            cmd("UNWATCH").query::<()>(connection).map_err(failed)?;
        } else if pipe().atomic().add_command(trim).query::<Option<(u64,)>>(connection).map_err(failed)?.is_none() {
            // It has changed meanwhile.
            return Ok(());
        }
        self.trimmed = covered.end;
        Ok(())
    }
}

/// An entry of a stream: its id, and its fields.
pub(super) struct Entry {
    id: String,
    pub(super) fields: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(super) fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        Value::Int(number) => number.to_string().into_bytes(),
        _ => Vec::new(),
    }
}

pub(super) fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
        _ => Vec::new(),
    }
}

/// The entries in the reply to `XREAD` of one stream: `[[NAME, [[ID, [FIELD, VALUE, …]], …]]]`.
fn entries(reply: Value) -> Vec<Entry> {
    let stream = items(reply).into_iter().flat_map(items).nth(1);
    stream.map(entries_of).unwrap_or_default()
}

/// The entries in a list of them.
pub(super) fn entries_of(list: Value) -> Vec<Entry> {
    let entry = |entry: Value| {
        let mut parts = items(entry).into_iter();
        let id = String::from_utf8(bytes(parts.next()?)).ok()?;
        let mut values = items(parts.next()?).into_iter().map(bytes);
        let mut fields = Vec::new();
        while let (Some(name), Some(value)) = (values.next(), values.next()) {
            fields.push((name, value));
        }
        Some(Entry { id, fields })
    };
    items(list).into_iter().filter_map(entry).collect()
}

/// The turn record of an entry, in JSON; or what is wrong with it, and its beginning.
fn record(entry: &Entry) -> Result<Vec<u8>, (String, Vec<u8>)> {
    let size: usize = entry.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > MAX_BYTES {
        let beginning = entry.fields.first().map(|(_, value)| value.clone()).unwrap_or_default();
        return Err((format!("the entry has {size} bytes, more than {MAX_BYTES}"), beginning));
    }
    if let Some((_, record)) = entry.fields.iter().find(|(name, _)| name == b"record") {
        return Ok(record.clone());
    }
    let mut fields = Map::new();
    for (name, value) in &entry.fields {
        let name = String::from_utf8_lossy(name).into_owned();
        let text =
            std::str::from_utf8(value).map_err(|error| (format!("`{name}` is not UTF-8: {error}"), value.clone()))?;
        let value = match name.as_str() {
            "turn" | "timestamp" => serde_json::from_str(text).unwrap_or(text.into()),
            _ => text.into(),
        };
        fields.insert(name, value);
    }
    serde_json::to_vec(&fields).map_err(|error| (error.to_string(), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_an_offset_in_the_same_order() {
        let ids = ["0-1", "0-2", "1-0", "1700000000000-0", "1700000000000-7", "1700000000001-0"];
        let offsets: Vec<u64> = ids.iter().map(|id| offset_of(id).unwrap()).collect();
        assert!(offsets.is_sorted_by(|one, other| one < other));
        assert_eq!(offsets.iter().map(|offset| id_of(*offset)).collect::<Vec<_>>(), ids);
        assert_eq!((offset_of("1-1048576"), offset_of("99999999999999-0"), offset_of("x")), (None, None, None));
    }
}
