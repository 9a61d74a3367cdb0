//! Packages of Node.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Server, python};
use crate::support::root;

/// A directory with packages of Node, as in `ai@6.0.326`, made once for all runs under a name; `None`, with a word on it, if it
/// cannot be made.
pub(super) fn with(name: &str, packages: &[&str]) -> Option<PathBuf> {
    let home = root().join("target/node-clients").join(name);
    let made = home.join("made");
    let _one = python::only_one(&home);
    if !std::fs::read_to_string(&made).is_ok_and(|known| known == packages.join(" ")) {
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("package.json"), "{\"private\": true}").unwrap();
        let mut install = Command::new("npm");
        install.current_dir(&home).args(["install", "--no-audit", "--no-fund", "--silent"]).args(packages);
        if !install.output().is_ok_and(|done| done.status.success()) {
            // Whoever has no network cannot run it.
            println!("skipped: there is no npm, or its packages cannot be fetched");
            return None;
        }
        std::fs::write(&made, packages.join(" ")).unwrap();
    }
    Some(home)
}

/// Runs a script of `tests/` with the packages of a directory against a server.
pub(super) async fn run(packages: &Path, script: &str, server: &Server, arguments: &[&str]) {
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script));
    command.arg(packages).arg(&server.url).args(arguments);
    python::succeeds(command).await;
}
