//! `Otlp`: turns in the spans and log records that instrumented programs send with OpenTelemetry's protocol.
//!
//! ```ron
//! Otlp(listen: "127.0.0.1:4318")
//! ```
//!
//! At `listen`, the source takes OTLP over HTTP (`/v1/traces` and `/v1/logs`, in protobuf and JSON) and over gRPC, both at
//! the same port. `turnflow serve` takes the same over HTTP at its own address, also without `listen`. Requests are
//! answered when what they bring is on disk; a program that gets no answer sends them again, and a span that comes twice
//! gives one turn. If `max_waiting` turns have no answer, requests are refused with 429 and `Retry-After`.
//!
//! Each span and each log record is a record, in the form that OpenTelemetry's collector writes into files. The mapping
//! makes turns of them; the preset `otlp` reads the names of all instrumentations that are widely used. Spans that are no
//! calls of models, such as those of databases, give no turn. What cannot be mapped is a dead letter, and the reply says so
//! (a partial success).
//!
//! ```
//! # use turnflow_connectors::otlp::OtlpConfig;
//! # let ron = r#"
//! (listen: "0.0.0.0:4318", token: Env("OTLP_TOKEN"))
//! # "#;
//! # let config: OtlpConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_mb, 32);
//! ```

mod door;
mod grpc;
mod listen;
mod records;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod unpack;
mod wire;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use tokio::sync::oneshot;
use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset, Stopped, TakesRequests, TurnOutput, TurnSource};

use self::door::{Batch, Door, Outcome};
use self::listen::{Listener, Listening};
use self::tls::Tls;
pub use self::tls::TlsFiles;
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, mapped};
use crate::secret::Secret;

/// Fields of `Otlp`.
#[config]
pub struct OtlpConfig {
    /// The address at which the source listens, as in `127.0.0.1:4318`. Default: none, requests come through `turnflow
    /// serve`.
    #[field(unset = "turnflow serve")]
    pub listen: Option<SocketAddr>,
    /// What programs must send as `Authorization: Bearer TOKEN`. An address that other machines can reach needs one.
    /// Default: none.
    pub token: Option<Secret>,
    /// The certificate and the private key, for HTTPS and for gRPC over TLS at `listen`. Files that are replaced are read
    /// again. Default: no encryption.
    pub tls: Option<TlsFiles>,
    /// Maximum size of a request at `listen`, unpacked, in MiB.
    #[field(default = 32, range = 1..=1024)]
    pub max_mb: usize,
    /// Maximum number of messages and turns without an answer. Further requests are refused until some are answered.
    #[field(default = 100_000, range = 1..=100_000_000)]
    pub max_waiting: u64,
    /// What makes messages of the records: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default: `Preset("otlp")`.
    #[field(default = MapConfig::Preset("otlp".to_owned()))]
    pub map: MapConfig,
    /// How messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<OtlpConfig>("Otlp", "turns in the spans and log records of OpenTelemetry that programs send");

impl OtlpConfig {
    fn map_fields(&self) -> MapFields<'_> {
        let Self { map, conversations, .. } = self;
        MapFields::of_queue(Some(map), conversations)
    }

    /// Builds the source without its mapping.
    ///
    /// # Errors
    ///
    /// The state directory cannot be used.
    pub(crate) fn source(&self, context: &ComponentContext) -> Result<Otlp, ConnectorError> {
        let is_kept = context.state_directory().map_err(|source| ConnectorError::Io {
            action: "create the directory of",
            path: context.id().to_owned(),
            source,
        })?;
        if is_kept.is_none() {
            tracing::warn!(source = context.id(), "no state directory: what is received is lost when the engine ends");
        }
        let (door, batches) = Door::new();
        Ok(Otlp { config: self.clone(), context: context.clone(), is_kept: is_kept.is_some(), door, batches })
    }
}

impl TurnSourceConfig for OtlpConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(listen) = self.listen
            && !listen.ip().to_canonical().is_loopback()
            && self.token.is_none()
        {
            let message = format!(
                "{listen} can be reached from other machines, but there is no token: add `token: Env(\"NAME\")`, or listen on \
                 127.0.0.1"
            );
            check.error("open-address", "listen", message);
        }
        if self.listen.is_none() && self.tls.is_some() {
            let message = "`tls` is for `listen`, which is missing: `turnflow serve` has a `tls` of its own";
            check.error("wrong-value", "tls", message);
        }
        self.map_fields().validate(check);
    }

    fn is_queue(&self) -> bool {
        true
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        let source = self.source(context).map(|source| Box::new(source) as Box<dyn TurnSource>);
        mapped(&self.map_fields(), context, built(source))
    }
}

/// Takes requests.
pub(crate) struct Otlp {
    config: OtlpConfig,
    context: ComponentContext,
    is_kept: bool,
    door: Door,
    batches: Receiver<Batch>,
}

impl TurnSource for Otlp {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let Self { config, context, is_kept, door, batches } = *self;
        let listening = match (config.listen, mode) {
            (Some(address), Mode::Follow) => {
                let tls = config.tls.map(Tls::new).transpose()?;
                let listener =
                    Listener { door: door.clone(), token: config.token, max_bytes: config.max_mb << 20, tls };
                Some(Listening::start(listener, address, context.runtime())?)
            }
            _ => None,
        };
        // Others have it as long as the source runs.
        drop(door);
        let mut taker = Taker::new(&output, is_kept, config.max_waiting);
        let done = taker.run(mode, &batches);
        // Whoever waits is told that the source ends.
        drop((taker, batches));
        if let Some(listening) = listening {
            listening.end(context.runtime());
        }
        done
    }

    fn requests(&self) -> Option<Arc<dyn TakesRequests>> {
        Some(Arc::new(self.door.clone()))
    }
}

/// The name of the log that offsets are of.
const LOG: &str = "otlp";

/// Gives records to the mapping, and tells programs when they are stored.
struct Taker<'a> {
    output: &'a TurnOutput,
    is_kept: bool,
    max_waiting: u64,
    /// The number of the last record.
    last: u64,
    /// Requests whose records, up to a number, are not stored yet.
    unstored: VecDeque<(u64, oneshot::Sender<Outcome>, Outcome)>,
}

impl<'a> Taker<'a> {
    fn new(output: &'a TurnOutput, is_kept: bool, max_waiting: u64) -> Self {
        let last = output.resume().filter(|offset| &*offset.log == LOG).map_or(0, |offset| offset.end);
        let taker = Self { output, is_kept, max_waiting, last, unstored: VecDeque::new() };
        if last == 0 {
            output.begins(taker.offset());
        }
        taker
    }

    fn offset(&self) -> SourceOffset {
        SourceOffset { log: LOG.into(), end: self.last, line: self.last, ..SourceOffset::default() }
    }

    fn run(&mut self, mode: Mode, batches: &Receiver<Batch>) -> Result<(), ConnectorError> {
        self.output.caught_up();
        let never = crossbeam_channel::never();
        let mut from = batches;
        loop {
            if mode == Mode::Once {
                while let Ok(batch) = batches.try_recv() {
                    self.take(batch)?;
                }
                return Ok(());
            }
            crossbeam_channel::select! {
                recv(from) -> batch => match batch {
                    Ok(batch) => self.take(batch)?,
                    // Nobody can send any more.
                    Err(_) => from = &never,
                },
                recv(self.output.acknowledgements().changed()) -> _ => {}
                recv(self.output.stop().receiver()) -> _ => return Err(Stopped.into()),
            }
            self.tell();
        }
    }

    fn take(&mut self, batch: Batch) -> Result<(), Stopped> {
        let Batch { records, reply } = batch;
        let waiting = self.output.waiting();
        if waiting >= self.max_waiting {
            let reason = format!("{waiting} messages and turns wait for answers; the maximum is {}", self.max_waiting);
            let _ = reply.send(Outcome::Busy(reason));
            return Ok(());
        }
        let (mut rejected, mut first) = (0, String::new());
        for record in records {
            self.last += 1;
            let position = format!("{LOG}: {}", self.last);
            if let Some(reason) = self.output.record(&record, &position, self.offset())? {
                rejected += 1;
                if first.is_empty() {
                    first = reason;
                }
            }
        }
        let outcome = Outcome::Taken { rejected, reason: first };
        match self.is_kept {
            true => self.unstored.push_back((self.last, reply, outcome)),
            // It is in memory, and nowhere else.
            false => drop(reply.send(outcome)),
        }
        Ok(())
    }

    /// Tells those whose records are stored.
    fn tell(&mut self) {
        let offsets = self.output.acknowledgements().offsets();
        let stored = offsets.get("").filter(|offset| &*offset.log == LOG).map_or(0, |offset| offset.end);
        while let Some((last, ..)) = self.unstored.front()
            && *last <= stored
        {
            if let Some((_, reply, outcome)) = self.unstored.pop_front() {
                let _ = reply.send(outcome);
            }
        }
    }
}
