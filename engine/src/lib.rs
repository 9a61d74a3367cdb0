//! turnflow's engine: pipeline files, the two dataflows (of documents and of turns), epochs,
//! inference, and the traits of connectors and operators. It has no operator and no connector itself.
//!
//! [`corpus`] and [`publish`] process documents; [`turns`] processes turns. [`plan`] makes a plan
//! from a pipeline file ([`spec`]), and [`run`] runs it.

pub mod activity;
pub mod adjust;
pub mod append;
pub mod ask;
pub mod backup;
pub mod cache;
pub mod claims;
pub mod clock;
pub mod cluster;
pub mod component;
pub mod compute;
pub mod connector;
pub mod corpus;
pub mod database;
pub mod dead_letter;
pub mod document;
pub mod durable;
pub mod filter;
pub mod inference;
pub mod keyed;
pub mod language;
pub mod maintenance;
pub mod mapped;
mod memory;
pub mod metadata;
pub mod metrics;
pub mod panics;
pub mod plan;
pub mod principal;
pub mod publish;
pub mod record;
pub mod run;
pub mod schema;
pub mod sinks;
pub mod spec;
pub mod state;
pub mod together;
pub mod turns;
pub mod wake;
pub mod wording;

pub use turnflow_odd_json as odd_json;
