//! Programs in Python that talk to the server with the packages that people use.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Server;
use crate::support::root;

/// A Python with a package, as in `openai==3.54.0`, made once for all runs; `None`, with a word on it,
/// if it cannot be made.
pub fn with(package: &str) -> Option<PathBuf> {
    let (name, _) = package.split_once("==").unwrap();
    with_all(name, &[package])
}

/// The same with several packages, under a name.
pub fn with_all(name: &str, packages: &[&str]) -> Option<PathBuf> {
    let home = root().join("target/python-clients").join(name);
    let python = home.join("bin/python");
    let has_it = || {
        let of = |package: &&str| {
            let name = package.split_once("==").map_or(*package, |(name, _)| name);
            let bare = name.split('[').next().unwrap_or(name);
            format!("print('{name}==' + m.version('{bare}'))")
        };
        let script: Vec<String> = packages.iter().map(of).collect();
        let script = format!("import importlib.metadata as m; {}", script.join("; "));
        let found = Command::new(&python).args(["-c", &script]).output();
        found.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).lines().eq(packages.iter().copied()))
    };
    // Tests run at the same time: one makes it, and the others wait.
    let _one = only_one(&home);
    if has_it() {
        return Some(python);
    }
    let run = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&home))
        && run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--no-compile"]).args(packages));
    if made && has_it() {
        return Some(python);
    }
    // Whoever has no network cannot run it.
    println!(
        "skipped: there is no Python with a virtual environment, or its packages ({}) cannot be fetched",
        packages.join(", ")
    );
    None
}

/// Waits until no other test makes this directory.
pub(super) fn only_one(home: &Path) -> File {
    std::fs::create_dir_all(home.parent().unwrap()).unwrap();
    let lock = File::create(home.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    lock
}

/// Runs a script of `tests/` against a server.
pub(super) async fn run(python: PathBuf, script: &str, server: &Server, arguments: &[&str]) {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script)).arg(&server.url).args(arguments);
    succeeds(command).await;
}

/// Runs a program that must succeed.
pub(super) async fn succeeds(mut command: Command) {
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{error}");
    println!("{out}");
}
