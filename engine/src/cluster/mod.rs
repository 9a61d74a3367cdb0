//! Several processes that run one pipeline: timely's cluster, and what it needs around it.
//!
//! A corpus is divided into shards by document. Each process indexes and searches the shards that it owns; retrievers ask
//! the other processes for the passages of their shards ([`OtherParts`]). An epoch is published by the first process when
//! every process has prepared it. A source with partitions is read by all processes together, if all of them may write its
//! sinks ([`crate::plan::Divided`]); the first process reads every other source.
//!
//! The processes share their fate: if one is lost, all end, are restarted, and go on from their checkpoints.

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

use self::connect::Secret;
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
    /// What all processes must know. `None` is allowed only if all addresses are of this machine.
    pub secret: Option<Secret>,
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
