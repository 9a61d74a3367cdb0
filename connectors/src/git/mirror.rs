//! A bare repository with the objects of the branch that was fetched last, read through the program `git`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use tempfile::TempDir;
use turnflow_engine::connector::{ConnectorError, Stop, Stopped};

use super::GitConfig;
use crate::remote::{lasting, passing};

/// Where the fetched commit is.
const REFERENCE: &str = "refs/turnflow/fetched";
/// Number of commits after which the objects of earlier ones are removed.
const TIDY: u32 = 50;
/// The interval between checks whether a command has ended.
const LOOK: Duration = Duration::from_millis(10);
/// How long a command may take.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long a fetch may report no progress. A server that no longer answers, and keeps its connection open, is left then.
const SILENCE: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(90) };
/// The beginnings of the variables of git that commands get from the environment.
const KEPT: &[&str] = &[
    "GIT_SSH",
    "GIT_SSL_",
    "GIT_HTTP_",
    "GIT_PROXY_",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_EXEC_PATH",
    "GIT_TRACE",
    "GIT_CURL_VERBOSE",
    "GIT_ALLOW_PROTOCOL",
];
/// Maximum size of what a command prints, in bytes, such as the list of all files. Of a complaint, only the end is
/// kept.
const PRINTED: u64 = 512 << 20;
const COMPLAINED: usize = 64 << 10;
/// Characters of a command's complaint that are shown.
const SHOWN: usize = 500;

/// A file of a commit.
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    /// The id of its content; `None` if no file is there now.
    pub(super) blob: Option<String>,
}

/// The repository.
pub(super) struct Mirror {
    directory: PathBuf,
    // Deletes the directory at the end, if the run has no state directory.
    _temporary: Option<TempDir>,
    reader: Option<Reader>,
    /// Commits that were fetched since old objects were removed.
    commits: u32,
    /// Whether the server gives a commit without the earlier ones.
    is_shallow: bool,
}

/// A `git cat-file` that waits for the ids of contents.
struct Reader {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Mirror {
    /// Opens the repository in the state directory, or makes a new one.
    pub(super) fn open(config: &GitConfig, state: Option<&Path>) -> Result<Self, ConnectorError> {
        // A full disk may get room.
        let io = |error: std::io::Error| passing(format!("cannot write the copy of the repository: {error}"));
        let (directory, temporary) = match state {
            Some(state) => {
                // Another repository gets another directory.
                let name = &blake3::hash(config.url.as_bytes()).to_hex()[..16];
                (state.join(format!("{name}.git")), None)
            }
            None => {
                let directory = TempDir::new().map_err(io)?;
                (directory.path().join("mirror.git"), Some(directory))
            }
        };
        let mut mirror = Self { directory, _temporary: temporary, reader: None, commits: 0, is_shallow: true };
        if mirror.is_sound() {
            mirror.unlock();
        } else {
            mirror.make("sha1")?;
        }
        Ok(mirror)
    }

    /// Makes the repository, with ids of this kind.
    fn make(&self, ids: &str) -> Result<(), ConnectorError> {
        let (_handle, never) = Stop::new();
        let io = |error: std::io::Error| passing(format!("cannot write the copy of the repository: {error}"));
        if self.directory.exists() {
            std::fs::remove_dir_all(&self.directory).map_err(io)?;
        }
        std::fs::create_dir_all(&self.directory).map_err(io)?;
        // No template of the machine, which may have hooks.
        let ids = format!("--object-format={ids}");
        self.run(self.git(&["init", "--quiet", "--bare", "--template=", &ids]), &never).map(drop)
    }

    /// Where it is.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the repository is there and can be used.
    pub(super) fn is_sound(&self) -> bool {
        let (_handle, never) = Stop::new();
        self.directory.is_dir() && self.run(self.git(&["rev-parse", "--git-dir"]), &never).is_ok()
    }

    /// Removes the locks of a process that was killed. Only this source uses the repository.
    fn unlock(&mut self) {
        let below = ["", "objects/pack", "refs/turnflow"].map(|below| self.directory.join(below));
        for entry in below.iter().filter_map(|below| std::fs::read_dir(below).ok()).flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".lock") || name.starts_with("tmp_") || name == "gc.pid" {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn git(&self, arguments: &[&str]) -> Command {
        let mut command = git();
        command.arg("--git-dir").arg(&self.directory).args(["-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0"]);
        // A server that is silent is left after a minute.
        command.args(["-c", "http.lowSpeedLimit=100", "-c", "http.lowSpeedTime=60"]);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a command and returns what it prints. A command that fails may work later.
    fn run(&self, command: Command, stop: &Stop) -> Result<Vec<u8>, ConnectorError> {
        self.run_within(command, LONGEST, stop)
    }

    /// The same, as long as the command prints something at least this often.
    fn run_within(&self, mut command: Command, silence: Duration, stop: &Stop) -> Result<Vec<u8>, ConnectorError> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => lasting("the program `git` is missing; install it"),
            _ => passing(format!("git: {error}")),
        };
        // A group of its own, which has the programs that git starts, too.
        command.process_group(0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let until = Instant::now() + LONGEST;
        // Both outputs are read while the command runs, since a full pipe would stop it.
        let read = |stream: Option<Box<dyn Read + Send>>, limit: u64| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let Some(mut stream) = stream else { return Ok((bytes, 0)) };
                Read::by_ref(&mut stream).take(limit).read_to_end(&mut bytes)?;
                let more = std::io::copy(&mut stream, &mut std::io::sink())?;
                Ok((bytes, more))
            })
        };
        let output = read(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>), PRINTED);
        let heard = Arc::new(Mutex::new(Instant::now()));
        let complaint = child.stderr.take().map(|stream| {
            let heard = heard.clone();
            std::thread::spawn(move || last_of(stream, &heard))
        });
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            let is_stopped = stop.wait(LOOK);
            let is_silent = heard.lock().elapsed() > silence;
            if is_stopped || is_silent || Instant::now() > until {
                end(&mut child);
                let why = if is_silent { "git: the server does not answer" } else { "git: takes too long" };
                return Err(if is_stopped { Stopped.into() } else { passing(why) });
            }
        };
        let joined = |thread: std::thread::JoinHandle<std::io::Result<(Vec<u8>, u64)>>| match thread.join() {
            Ok(Ok(read)) => read,
            _ => Default::default(),
        };
        let (output, more) = joined(output);
        let complaint = complaint.and_then(|thread| thread.join().ok()).unwrap_or_default();
        if status.success() {
            return match more {
                0 => Ok(output),
                _ => Err(passing(format!("git printed more than {PRINTED} bytes"))),
            };
        }
        let text: String = told(&String::from_utf8_lossy(&complaint)).chars().take(SHOWN).collect();
        Err(passing(format!("git: {}", text.split_whitespace().collect::<Vec<_>>().join(" "))))
    }

    /// Fetches the branch. Returns its commit.
    pub(super) fn fetch(&mut self, config: &GitConfig, stop: &Stop) -> Result<String, ConnectorError> {
        let names = match config.branch.as_deref() {
            None => vec!["HEAD".to_owned()],
            // A tag may have the name of the branch, and git alone would take the tag.
            Some(name) => vec![format!("refs/heads/{name}"), format!("refs/tags/{name}"), name.to_owned()],
        };
        let mut names = names.iter().peekable();
        while let Some(name) = names.next() {
            match self.fetch_name(config, name, stop) {
                Err(error) if names.peek().is_some() && error.to_string().contains("couldn't find remote ref") => {}
                fetched => return fetched.and_then(|()| self.fetched(stop)),
            }
        }
        Err(passing("git: there is no such branch"))
    }

    /// Fetches what has this name, in the way that the server knows.
    fn fetch_name(&mut self, config: &GitConfig, name: &str, stop: &Stop) -> Result<(), ConnectorError> {
        let Err(error) = self.fetch_once(config, name, stop) else { return Ok(()) };
        let reason = error.to_string();
        let ids = reason.split_once("mismatched algorithms").and_then(|(_, reason)| reason.rsplit_once("server "));
        if let Some((_, ids)) = ids {
            let ids: String = ids.chars().take_while(char::is_ascii_alphanumeric).collect();
            tracing::info!(ids, "the repository has ids of another kind; making its copy again");
            self.reader = None;
            self.make(&ids)?;
        } else if self.is_shallow && reason.contains("does not support shallow") {
            // A plain file server has no commits alone.
            self.is_shallow = false;
        } else {
            return Err(error);
        }
        self.fetch_once(config, name, stop)
    }

    fn fetch_once(&self, config: &GitConfig, name: &str, stop: &Stop) -> Result<(), ConnectorError> {
        let target = format!("+{name}:{REFERENCE}");
        let mut arguments = vec!["fetch", "--progress", "--no-tags", "--no-write-fetch-head"];
        if self.is_shallow {
            arguments.extend(["--depth", "1"]);
        }
        arguments.extend(["--", &config.url, &target]);
        let mut command = self.git(&arguments);
        if let Some(token) = &config.token {
            // In the environment, where other users of the machine do not see it. Redirects would get it too.
            let credentials = STANDARD.encode(format!("{}:{}", config.user, token.read()?));
            let count = std::env::var("GIT_CONFIG_COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(0_usize);
            let header = format!("Authorization: Basic {credentials}");
            let settings = [("http.extraHeader", header.as_str()), ("http.followRedirects", "false")];
            for (at, (name, value)) in settings.iter().enumerate() {
                command.env(format!("GIT_CONFIG_KEY_{}", count + at), name);
                command.env(format!("GIT_CONFIG_VALUE_{}", count + at), value);
            }
            command.env("GIT_CONFIG_COUNT", (count + settings.len()).to_string());
        }
        // A silent connection of HTTP is left by git itself; without progress, a large file of a plain server may arrive.
        let silence = if config.url.starts_with("http") { LONGEST } else { SILENCE };
        self.run_within(command, silence, stop).map(drop)
    }

    /// The commit that was fetched.
    fn fetched(&mut self, stop: &Stop) -> Result<String, ConnectorError> {
        // The reader would not see new packs.
        self.reader = None;
        let commit = self.run(self.git(&["rev-parse", "--verify", &format!("{REFERENCE}^{{commit}}")]), stop)?;
        Ok(String::from_utf8_lossy(&commit).trim().to_owned())
    }

    /// Whether the repository has a commit.
    pub(super) fn has(&self, commit: &str) -> bool {
        let (_handle, never) = Stop::new();
        self.run(self.git(&["cat-file", "-e", &format!("{commit}^{{tree}}")]), &never).is_ok()
    }

    /// Removes the objects of earlier commits, after some commits.
    pub(super) fn tidy(&mut self, stop: &Stop) -> Result<(), ConnectorError> {
        self.commits += 1;
        if self.commits >= TIDY {
            self.commits = 0;
            self.reader = None;
            self.run(self.git(&["gc", "--quiet", "--prune=now"]), stop)?;
        }
        Ok(())
    }

    /// All files of a commit.
    pub(super) fn files(&self, commit: &str, stop: &Stop) -> Result<Vec<Entry>, ConnectorError> {
        let listed = self.run(self.git(&["ls-tree", "-r", "-z", "--full-tree", commit]), stop)?;
        let entries = listed.split(|byte| *byte == 0).filter_map(|line| {
            // `MODE TYPE ID<tab>PATH`
            let tab = line.iter().position(|byte| *byte == b'\t')?;
            let mut words = line[..tab].split(|byte| *byte == b' ');
            let (mode, _, id) = (words.next()?, words.next()?, words.next()?);
            Some(Entry { path: line[tab + 1..].to_vec(), blob: blob(mode, id) })
        });
        Ok(entries.collect())
    }

    /// The files that differ between two commits, as they are in the second.
    pub(super) fn between(&self, old: &str, new: &str, stop: &Stop) -> Result<Vec<Entry>, ConnectorError> {
        let listed = self.run(self.git(&["diff-tree", "-r", "-z", "--no-renames", old, new]), stop)?;
        let mut entries = Vec::new();
        let mut parts = listed.split(|byte| *byte == 0);
        // `:OLDMODE NEWMODE OLDID NEWID STATUS`, then the path.
        while let (Some(facts), Some(path)) = (parts.next(), parts.next()) {
            let words: Vec<&[u8]> = facts.split(|byte| *byte == b' ').collect();
            let [_, mode, _, id, _] = words[..] else { continue };
            entries.push(Entry { path: path.to_vec(), blob: blob(mode, id) });
        }
        Ok(entries)
    }

    /// The content with this id; `None` if it is larger than the limit.
    pub(super) fn content(&mut self, blob: &str, limit: u64) -> Result<Option<Vec<u8>>, ConnectorError> {
        let result = self.ask(blob, limit);
        if result.is_err() {
            self.reader = None;
        }
        result.map_err(|error| passing(format!("cannot read {blob} from the copy of the repository: {error}")))
    }

    fn ask(&mut self, blob: &str, limit: u64) -> std::io::Result<Option<Vec<u8>>> {
        let broken = || std::io::Error::other("git ended early");
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let mut command = git();
                command.arg("--git-dir").arg(&self.directory).args(["cat-file", "--batch-command"]);
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
                let mut child = command.spawn()?;
                let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                    return Err(broken());
                };
                none.insert(Reader { child, input, output: BufReader::new(output) })
            }
        };
        let mut answer = |command: &str| -> std::io::Result<u64> {
            writeln!(reader.input, "{command} {blob}")?;
            let mut line = String::new();
            reader.output.read_line(&mut line)?;
            // `ID blob SIZE`
            let size = line.trim_end().rsplit_once(" blob ").or_else(|| {
                let (id, rest) = line.trim_end().split_once(' ')?;
                rest.strip_prefix("blob ").map(|size| (id, size))
            });
            size.and_then(|(_, size)| size.parse().ok())
                .ok_or_else(|| std::io::Error::other(line.trim_end().to_owned()))
        };
        if answer("info")? > limit {
            return Ok(None);
        }
        let size = answer("contents")?;
        let mut bytes = vec![0; usize::try_from(size).map_err(std::io::Error::other)?];
        reader.output.read_exact(&mut bytes)?;
        // A line end follows.
        reader.output.read_exact(&mut [0])?;
        Ok(Some(bytes))
    }
}

/// The last bytes of a stream of complaints and reports of progress. Notes when something comes.
fn last_of(mut stream: impl Read, heard: &Mutex<Instant>) -> Vec<u8> {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        *heard.lock() = Instant::now();
        all.extend_from_slice(&bytes[..read]);
        all.drain(..all.len().saturating_sub(COMPLAINED));
    }
    all
}

/// What a command complains about, without its reports of progress.
fn told(printed: &str) -> String {
    let is_progress = |line: &str| line.ends_with(", done.") || line.contains("% (") || line.ends_with("objects...");
    let lines = printed.split(['\r', '\n']).map(str::trim).filter(|line| !line.is_empty() && !is_progress(line));
    lines.collect::<Vec<_>>().join(" ")
}

/// The program `git`, which reads and writes no other repository than it is told to.
///
/// A caller may have variables of git in its environment, as a hook has: they name the caller's repository. Only those stay
/// that say how to connect, and settings that the caller gives to all commands.
pub(super) fn git() -> Command {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os().filter(|(name, _)| !is_kept(name)) {
        command.env_remove(name);
    }
    // Never asks, never runs what the repository says, and speaks English.
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_OPTIONAL_LOCKS", "0").env("LC_ALL", "C");
    command.env("SSH_ASKPASS_REQUIRE", "never").env_remove("SSH_ASKPASS");
    if std::env::var_os("GIT_SSH_COMMAND").is_none() && std::env::var_os("GIT_SSH").is_none() {
        command.env("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15");
    }
    command
}

/// Whether commands get a variable of the environment.
fn is_kept(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    !name.starts_with(b"GIT_") || KEPT.iter().any(|kept| name.starts_with(kept.as_bytes()))
}

/// Ends a command and the programs that it has started. It gets a moment to remove its locks.
fn end(child: &mut Child) {
    // A group has the number of its first process.
    let group = -(child.id() as i32);
    for (signal, looks) in [(libc::SIGTERM, 200), (libc::SIGKILL, 1)] {
        // SAFETY: a signal to a group of processes that has not been waited for.
        unsafe { libc::kill(group, signal) };
        for _ in 0..looks {
            if matches!(child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
    let _ = child.wait();
}

/// The content of an entry that is a file; links and submodules have other modes.
fn blob(mode: &[u8], id: &[u8]) -> Option<String> {
    let is_file = mode.starts_with(b"100") || mode.starts_with(b":100");
    is_file.then(|| String::from_utf8_lossy(id).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why it exists: started by a hook, turnflow fetched into the repository of the hook, and made it bare and shallow.
    #[test]
    fn variables_that_name_a_repository_are_not_passed_on() {
        for name in [
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_COMMON_DIR",
            "GIT_INDEX_FILE",
            "GIT_OBJECT_DIRECTORY",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES",
            "GIT_NAMESPACE",
            "GIT_QUARANTINE_PATH",
            "GIT_SHALLOW_FILE",
            "GIT_GRAFT_FILE",
            "GIT_REPLACE_REF_BASE",
            "GIT_CONFIG",
            "GIT_CONFIG_PARAMETERS",
            "GIT_PREFIX",
            "GIT_DEFAULT_HASH",
            "GIT_PUSH_OPTION_COUNT",
            "GIT_ASKPASS",
            "GIT_EXTERNAL_DIFF",
            "GIT_TEMPLATE_DIR",
        ] {
            assert!(!is_kept(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "HOME", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL"] {
            assert!(is_kept(OsStr::new(name)), "{name}");
        }
    }
}
