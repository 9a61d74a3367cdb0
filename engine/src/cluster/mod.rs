//! Several processes that run one pipeline: timely's cluster, and what it needs around it.
//!
//! A corpus is divided into shards by document. Each process indexes and searches the shards that it owns; retrievers ask
//! the other processes for the passages of their shards ([`OtherParts`]). An epoch is published by the first process when
//! every process has prepared it. A source with partitions is read by all processes together, if all of them may write its
//! sinks ([`crate::plan::Divided`]); the first process reads every other source.
//!
//! The processes share their fate: if one is lost, all end, are restarted, and go on from their checkpoints.
//!
//! # How the processes work together
//!
//! timely's cluster connects their workers; the sockets, the messages on top of them, and the division of corpora are
//! turnflow's.
//!
//! **Connecting.** `connect.rs` connects the processes before timely gets the connections. Everything between two processes
//! is in TLS 1.3 (`channel.rs`). Both sides show the public key that is made from the secret, or certificates from files
//! (`connect/tls.rs`), and say which version, plan, files of models, shape and start they belong to. When every process has
//! all of its connections, process 0 tells all to go. `link.rs` wraps a connection for timely, sends a sign of life each
//! second from a thread of its own, and reports when the other process is lost or silent; the process then ends with one
//! line.
//!
//! **Dataflows.** All processes build the same dataflows in the same order. A caller's turn is answered in the process
//! that was asked, and a source's turn in the process that has read it. Process 0 reads every source and writes every
//! sink, except those that all processes share. Documents are exchanged across processes by id: each belongs to one of
//! 1024 shards, and each process owns a range of shards (`shape.rs`). From there on, chunks and contents stay in the
//! process.
//!
//! **Sources with partitions.** All processes read a source together if it has partitions
//! (`TurnSourceConfig::is_divisible`) and its answers go only to sinks that several processes may write
//! (`SinkConfig::is_shared`); `Divided` in `engine/src/plan/divided.rs` decides it. Each process reads its partitions
//! (`Share`), holds their conversations in memory, and delivers the answers. The checkpoint database stays in process
//! 0: another process asks it for conversations, and sends it its offsets and changed conversations once a second, when
//! its dead letters have arrived there (`engine/src/durable/first.rs`). So a restart with another number of processes
//! moves nothing. Process 0 says which of these sources are read, and from where (`engine/src/run/divided.rs`); it
//! stops them, ends them before a reload, and waits for the last checkpoints before the cluster ends. If a reload
//! changes who must read a source, the source counts as changed.
//!
//! **Messages.** One more dataflow (`messages.rs`) carries questions, answers and orders between processes (`peers.rs`,
//! `wire.rs`). Each topic of questions has a service that answers it. An answer may come in parts, such as the text
//! that a model generates; of the answer to a caller, only some parts are under way at a time. Whoever drops a question
//! cancels it in the other process. Process 0 orders the end: first that no more turns come, and, when all other
//! dataflows have ended, that nothing more is sent.
//!
//! **Epochs.** Process 0 decides up to which commit an epoch goes. Its index writer asks the other processes to prepare
//! their parts up to that commit, applies its own changes meanwhile, and publishes when all have answered. Every
//! process sees the same frontier, so each of them has all changes of these commits. A prepared part has a version,
//! which the other process keeps until process 0 drops the snapshot that names it (`parts.rs`, `served.rs`). So a turn
//! finds in every process what its epoch has. If a part cannot be prepared, nothing is published, and the same commit
//! is asked for again.
//!
//! **Manifests.** After a publication, process 0 tells the others which versions the epoch consists of, and waits until
//! they have it before it reports the epoch (`manifest.rs`). So a caller who has changed a document finds the change in
//! every process. A process makes its own snapshot from the manifest, and its turns pin that (`TurnsShared::epochs`;
//! `RuntimeContext::published` is what its index writers publish). Process 0 keeps the epoch, and with it the old plan
//! during a reload, until each process has released it.
//!
//! **Starts.** Each process has a table of the passages of its part. With each epoch, `epoch.json` of process 0 names
//! the version of every process's table (`Epochs::stored`), so it is the manifest on disk. A start serves the stored
//! passages if every process can read its table at exactly its version; process 0 asks for that (`Request::Restore`),
//! and publishes what they have as the first epoch. A process that had prepared more reads its table as of that
//! version. If one cannot, the source is read first. A version depends on the process and the number of processes, so a
//! part is never taken for another one. A process that merges or rewrites its table says so, and process 0 notes it if
//! the epoch still has that part (`Epochs::note_stored`). The first changes that a process prepares are compared with
//! what it has restored, as in a single process.
//!
//! **Searching.** `CorpusSnapshot::part` gives an operator the part of an index in this process, and `other_parts` asks
//! the others, with the turn's filter, condition and groups. `IndexDefinition::answer` answers in the other process.
//! `Bm25` adds up the counts of all parts before it weighs terms, so scores do not depend on the division; counts are
//! asked once for each term and epoch. An operator that has not been taught to ask fails at the start of a cluster
//! (`OperatorConfig::asks_other_parts`), and `CorpusSnapshot::index` refuses a part that could pass for a whole.
//!
//! **Encodings.** Before a content is encoded, the other processes are asked for its encoding (`Elsewhere`). So another
//! number of processes moves documents, and encodes none. With fewer processes on one machine, process 0 takes over the
//! stored encodings of those that are gone (`Index::take_over`). With a backup, it first restores those that are on no
//! disk here.
//!
//! **Models.** What takes long in a turn is the calls of its models. Each call goes to the process that has the least
//! to do of such calls, as far as the caller knows from the last answers (`models.rs`), and pairs to score are divided
//! among several. If another process cannot call its model, the caller calls its own, and leaves that process alone for
//! some seconds. Models behind a server are called from the process that needs them.
//!
//! **Reloading.** Process 0 leads a reload step by step, and the others follow (`engine/src/run/reload/follow.rs`).
//! What may fail, such as loading a model, is done in one step, and the dataflows are built in the next, so that all
//! processes build the same ones in the same order. At the switch, the index writer of process 0 asks the others to
//! switch their parts (`ServedParts`), as it asks them to prepare an epoch. If a step that may fail does so in any
//! process, all of them drop what they have built; if another one fails, the run ends, and a restart goes on with the
//! new file. What a process opens must be the same in all of them; otherwise the reload fails. The program of a process
//! takes the new plan with `Engine::take_followed`, to describe it.
//!
//! **Dead letters** of all processes go to process 0, which writes them to one file. A checkpoint of another process
//! waits for its letters.
//!
//! **Serving.** A caller may ask any process, and each answers questions itself. What needs the stores of documents,
//! the durable turns, the sinks or the stored responses is in process 0: a server in another process sends such a
//! request there with `Engine::ask_first`, and process 0 answers with its own routes (`Engine::answer_others`); the
//! parts of the answer come back in order, as they are made. Both use the messages of the cluster, so there is no
//! second connection to secure or to lose, and dropping the stream of an answer drops it in process 0. Before process 0
//! ends, it tells the servers of the others to finish their requests, and waits for them (`Engine::drain_others`).
//!
//! **State.** Each process has a state directory. Nothing in it has to agree with those of the others: at a start, each
//! index is compared with the documents, as in a single process. Process 0 has the checkpoints of all.

mod channel;
pub mod connect;
mod link;
mod manifest;
mod messages;
mod models;
mod parts;
mod peers;
mod served;
mod shape;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use self::connect::{CertificateFiles, Secret};
pub(crate) use self::link::{Bond, Link, LinkOptions};
pub(crate) use self::manifest::{Beginning, FollowedEpochs, Manifests};
pub(crate) use self::messages::build as build_messages;
pub(crate) use self::models::{SharedModels, models_of};
pub(crate) use self::parts::{Lead, OtherShards, Prepared};
pub use self::parts::{OtherParts, Restriction};
pub(crate) use self::peers::{AnswerParts, Peers, Service, name_of};
pub use self::served::answered;
pub(crate) use self::served::{ComingPart, ServedParts, Target, Targets, ask_elsewhere};
pub use self::shape::{SHARDS, Shape, Share};
pub(crate) use self::wire::{Bytes, Order, Topic, decode, encode};
use crate::plan::Plan;

/// Reads the pipeline's file again, for a reload.
pub type PlanLoader = Arc<dyn Fn() -> Result<Plan, String> + Send + Sync>;
/// Called with one line when another process is lost. It should end the process.
pub type OnLost = Arc<dyn Fn(&str) + Send + Sync>;

/// The place of a process in its cluster.
#[derive(Clone)]
pub struct ClusterOptions {
    /// The number of this process, from 0.
    pub process: usize,
    /// `HOST:PORT` of each process, in order.
    pub hosts: Vec<String>,
    /// What all processes must know. Without it and without certificates, all addresses must be of this machine.
    pub secret: Option<Secret>,
    /// By which processes know each other in place of the secret.
    pub certificates: Option<CertificateFiles>,
    /// How long to wait for the other processes at the start.
    pub patience: Duration,
    /// After how long without any sign of life another process is lost. Each process gives one every second, whatever it
    /// computes.
    pub lost_after: Duration,
    /// What to do when another process is lost.
    pub on_lost: OnLost,
    /// Reads the pipeline's file again when the first process reloads it.
    pub load: PlanLoader,
}
