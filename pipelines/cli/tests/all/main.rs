//! The tests of whole pipelines and of the command line, as one binary.

// A test's helpers fail as the test does.
#![allow(clippy::unwrap_used)]

mod agent;
mod architecture;
mod ask;
mod backup;
mod cluster;
mod cluster_models;
mod cluster_network;
mod cluster_reload;
mod cluster_secured;
mod cluster_serving;
mod command_line;
mod diagnostics;
mod documented;
mod evaluation;
mod five_logs;
mod fuzzing;
mod hostile_files;
mod language;
mod live;
mod long_calls;
mod matrix;
mod models;
mod reference;
mod replay;
mod retries;
mod rewriting;
mod serve;
#[path = "../../../stress/src/servers.rs"]
mod servers;
mod support;
mod systems;
mod tables;
mod testing;
mod verify;
