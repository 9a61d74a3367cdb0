//! `Nats`: a corpus of documents in a NATS key-value bucket.
//!
//! ```ron
//! Nats(url: "nats://localhost:4222", bucket: "docs")
//! ```
//!
//! A key is a document's id, and its value the document. A change of a key changes that document only, and a deleted or
//! purged key deletes it. At the start, the last value of each key is read; later changes are read as they come, also after
//! the connection was lost. Changes that arrive together are published together.
//!
//! A value that expires in the bucket is removed without a message. Once in `compare_s` seconds, all keys are read again,
//! and the documents whose keys are gone are deleted. A value that is not a document becomes a dead letter `BUCKET: KEY`.
//!
//! ```
//! # use turnflow_connectors::nats::bucket::NatsConfig;
//! # let ron = r#"
//! (url: "nats://localhost:4222", bucket: "docs", format: Markdown)
//! # "#;
//! # let config: NatsConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.bucket, "docs");
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::Message;
use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode};

use super::reader::{First, Found, Reader, open};
use super::{Connection, NatsAuth, check_name, check_url, shown};
use crate::keyed::{self, ValueFormat};
use crate::mapped::{Changes, KeyMap, MapConfig, RowMap};
use crate::readers::jsonl::Fields;
use crate::remote::{Retry, may_pass, wait};

/// Changes in a commit, at most.
const AT_ONCE: usize = 1000;
/// How long a commit waits for more changes.
const TOGETHER: Duration = Duration::from_millis(20);

/// Fields of `Nats`, as a corpus.
#[config]
pub struct NatsConfig {
    /// The server, as in `nats://localhost:4222` or `tls://nats.example.org:4222`; several servers of a cluster have commas
    /// between them.
    pub url: String,
    /// How turnflow proves who it is. Default: `None`.
    #[field(default)]
    pub auth: NatsAuth,
    /// Name of the bucket.
    pub bucket: String,
    /// How a value is read: `Json`, `Text` or `Markdown`. Default: `Json`.
    #[field(default)]
    pub format: ValueFormat,
    /// Field that holds the title in JSON; may be missing.
    #[field(default = Fields::default().title)]
    pub title: String,
    /// Field that holds the text in JSON.
    #[field(default = Fields::default().text)]
    pub text: String,
    /// Seconds between two comparisons of all keys, which find values that have expired. 0: never.
    #[field(default = 3600.0, range = 0.0..=1e9)]
    pub compare_s: f64,
    /// What makes documents of JSON values in another form: `Jq("PROGRAM")` or `JqFile("PATH")`. Default: a value is a
    /// document.
    pub map: Option<MapConfig>,
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind = CorpusSourceKind::of::<NatsConfig>("Nats", "the keys of a NATS key-value bucket");

impl CorpusSourceConfig for NatsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_url(check, &self.url);
        check_name(check, "bucket", &self.bucket);
        RowMap::validate(self.map.as_ref(), check);
    }

    fn explain(&self) -> String {
        let Self { bucket, format, auth, .. } = self;
        format!("url: {:?}, bucket: {bucket:?}, format: {format:?}, {}", shown(&self.url), auth.shown())
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.source(context))))
    }
}

impl NatsConfig {
    /// Builds the source. It connects when it runs.
    pub fn source(&self, context: &ComponentContext) -> NatsBucket {
        NatsBucket { config: self.clone(), context: context.clone() }
    }
}

/// Reads documents from a bucket.
pub struct NatsBucket {
    config: NatsConfig,
    context: ComponentContext,
}

impl CorpusSource for NatsBucket {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let server = format!("bucket `{}` of {}", self.config.bucket, shown(&self.config.url));
        let retry = Retry::new(server, mode, &self.context);
        let fields = Fields { title: self.config.title.clone(), text: self.config.text.clone(), ..Fields::default() };
        let keys = self.config.map.as_ref().map(|map| RowMap::of(map, &self.config.bucket)).transpose();
        let keys = keys.map_err(|reason| ConnectorError::Refused { reason })?.map(KeyMap::new);
        let mut following = Following {
            keys,
            source: *self,
            mode,
            output,
            retry,
            fields,
            known: HashSet::new(),
            prefixes: Vec::new(),
            last: None,
            is_ready: false,
            bad: HashMap::new(),
            uncommitted: 0,
        };
        loop {
            match following.connected() {
                Ok(()) => return Ok(()),
                Err(error) if may_pass(&error) => following.retry.failed(&error, following.output.stop())?,
                Err(error) => return Err(error),
            }
        }
    }
}

/// A source that runs.
struct Following {
    /// With a mapping: what it has made.
    keys: Option<KeyMap>,
    source: NatsBucket,
    mode: Mode,
    output: CorpusOutput,
    retry: Retry,
    fields: Fields,
    /// The ids of the documents that were sent.
    known: HashSet<Arc<str>>,
    /// The beginnings of the subjects of keys: that of the bucket, and those of the buckets that it mirrors or collects.
    prefixes: Vec<String>,
    /// The bucket's identity, and the number of the last message that was read.
    last: Option<(String, u64)>,
    is_ready: bool,
    /// Keys whose values are not documents, with the hash of each value.
    bad: HashMap<Arc<str>, blake3::Hash>,
    /// Changes since the last commit.
    uncommitted: usize,
}

impl Following {
    fn wait<T>(&self, future: impl Future<Output = Result<T, ConnectorError>>) -> Result<T, ConnectorError> {
        wait(self.source.context.runtime(), self.output.stop(), future)?
    }

    /// Reads over one client, until everything is read or something fails.
    fn connected(&mut self) -> Result<(), ConnectorError> {
        let (config, id) = (self.source.config.clone(), self.source.context.id().to_owned());
        let name = format!("KV_{}", config.bucket);
        let (connection, opened) = self.wait(async {
            let connection = Connection::open(&config.url, &config.auth, &id).await?;
            let opened = open(&connection, &name).await?;
            Ok((connection, opened))
        })?;
        let origins = opened.origins.iter().filter_map(|origin| origin.strip_prefix("KV_"));
        let names = std::iter::once(config.bucket.as_str()).chain(origins);
        self.prefixes = names.map(|name| format!("$KV.{name}.")).collect();
        let resumes = self
            .last
            .as_ref()
            .filter(|(log, last)| *log == opened.log && *last + 1 >= opened.first && *last <= opened.last);
        let mut reader = match resumes {
            Some((_, last)) if self.is_ready => {
                let first = First::After(*last);
                Reader::new(connection.clone(), opened.stream.clone(), Some(self.subject()), None, first)
            }
            _ => self.read_all(&connection, &opened)?,
        };
        if !self.is_ready {
            self.output.ready()?;
            self.is_ready = true;
        }
        if self.mode == Mode::Once {
            return Ok(());
        }
        let mut compared = Instant::now();
        let mut since = Instant::now();
        loop {
            let compare = Duration::from_secs_f64(config.compare_s);
            if self.uncommitted == 0 && !compare.is_zero() && compared.elapsed() >= compare {
                // The bucket may have been made again meanwhile.
                let opened = self.wait(open(&connection, &name))?;
                reader = self.read_all(&connection, &opened)?;
                compared = Instant::now();
            }
            let found = if self.uncommitted == 0 {
                self.wait(reader.next())?
            } else {
                let left = TOGETHER.saturating_sub(since.elapsed());
                let next = async { tokio::time::timeout(left, reader.next()).await.unwrap_or(Ok(Found::Nothing)) };
                wait(self.source.context.runtime(), self.output.stop(), next)??
            };
            match found {
                Found::Message(read) => {
                    self.retry.worked();
                    if self.uncommitted == 0 {
                        since = Instant::now();
                    }
                    self.change(&read.message)?;
                    self.last = Some((opened.log.clone(), read.sequence));
                    self.uncommitted += 1;
                }
                Found::Nothing => self.retry.worked(),
                Found::Away(reason) => self.retry.away(&reason, self.output.stop())?,
            }
            if self.uncommitted > 0 && (self.uncommitted >= AT_ONCE || since.elapsed() >= TOGETHER) {
                self.output.commit()?;
                self.uncommitted = 0;
            }
        }
    }

    /// The subjects of all keys: of the bucket, or of all buckets whose messages the stream has.
    fn subject(&self) -> String {
        match &self.prefixes[..] {
            [only] => format!("{only}>"),
            _ => "$KV.>".to_owned(),
        }
    }

    /// Reads the last value of each key, and deletes the documents whose keys are gone. Returns the reader, which reads
    /// what comes later.
    fn read_all(&mut self, connection: &Connection, opened: &super::reader::Opened) -> Result<Reader, ConnectorError> {
        let mut reader =
            Reader::new(connection.clone(), opened.stream.clone(), Some(self.subject()), None, First::LastOfEach);
        self.wait(reader.begin())?;
        let mut gone = self.known.clone();
        let mut last = opened.last;
        let mut is_behind = reader.pending > 0;
        while is_behind {
            match self.wait(reader.next())? {
                Found::Message(read) => {
                    is_behind = read.pending > 0;
                    last = last.max(read.sequence);
                    for id in self.change(&read.message)? {
                        gone.remove(&id);
                    }
                }
                Found::Nothing => is_behind = !self.wait(reader.is_at_end())?,
                Found::Away(reason) => self.retry.away(&reason, self.output.stop())?,
            }
        }
        for id in gone {
            self.known.remove(&id);
            self.output.change(id, None)?;
        }
        self.output.commit()?;
        self.uncommitted = 0;
        self.retry.worked();
        self.last = Some((opened.log.clone(), last));
        Ok(reader)
    }

    /// Sends the changes of a message. Returns the ids of the documents that it gives.
    fn change(&mut self, message: &Message) -> Result<Vec<Arc<str>>, ConnectorError> {
        let key = self.prefixes.iter().find_map(|prefix| message.subject.strip_prefix(&**prefix));
        let Some(key) = key else { return Ok(Vec::new()) };
        let header = |name: &str| message.headers.as_ref().and_then(|headers| headers.get(name));
        let is_deleted = header("KV-Operation").is_some_and(|operation| matches!(operation.as_str(), "DEL" | "PURGE"))
            || header("Nats-Marker-Reason").is_some();
        let value = Some(&*message.payload).filter(|_| !is_deleted);
        let (changes, wrong) = match &mut self.keys {
            Some(keys) => keys.change(key, value),
            None => self.document(key, value),
        };
        match wrong {
            Some(reason) => {
                let position = format!("{}: {key}", self.source.config.bucket);
                let hash = blake3::hash(&message.payload);
                // A comparison reads it again.
                if self.bad.insert(key.into(), hash) != Some(hash) {
                    self.output.dead_letter(&position, &reason, &message.payload);
                }
            }
            None if !is_deleted => drop(self.bad.remove(key)),
            None => {}
        }
        let mut given = Vec::new();
        for (id, document) in changes {
            if document.is_some() {
                self.known.insert(id.clone());
                given.push(id.clone());
            } else if !self.known.remove(&id) {
                continue;
            }
            self.output.change(id, document)?;
        }
        Ok(given)
    }

    /// The document of a value, or why there is none.
    fn document(&self, key: &str, value: Option<&[u8]>) -> (Changes, Option<String>) {
        let read = value.map(|value| keyed::document(key, value, self.source.config.format, &self.fields));
        match read {
            Some(Ok((document, large))) => {
                if !large.is_empty() {
                    let fields = large.join(", ");
                    tracing::warn!(key, fields, "fields of the metadata are too large and left out");
                }
                (vec![(key.into(), Some(document))], None)
            }
            Some(Err(error)) => (vec![(key.into(), None)], Some(error.to_string())),
            None => (vec![(key.into(), None)], None),
        }
    }
}
