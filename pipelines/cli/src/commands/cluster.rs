//! `turnflow cluster`: runs a pipeline with several processes on this machine, and supervises them.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use turnflow_engine::run::default_state;
use turnflow_engine::spec::Override;
use turnflow_engine::state::StateDirectory;

use super::backup::BackupArgs;
use super::member::LOST_AFTER;
use super::signals::Signals;
use super::{Fault, LOST, Outcome, PipelineArgs, WorkerArgs};

/// The interval between checks of the processes.
const TICK: Duration = Duration::from_millis(20);
/// How long the others may take to end when one process has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same when it has ended because another one was lost: that one may be stopped, and the others end at once.
const PATIENCE_AFTER_LOSS: Duration = Duration::from_secs(3);
/// First pause before a restart; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// After a run of this length, the next pause is the first one again.
const STEADY: Duration = Duration::from_secs(60);

/// Run a pipeline with several processes on this machine.
///
/// The processes share the documents: each indexes and searches its part. If a process is lost, all are started again
/// and go on where they were. Another number of processes divides the documents anew at the next start.
#[derive(Args)]
pub struct ClusterArgs {
    #[command(flatten)]
    pipeline: PipelineArgs,
    /// Number of processes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    #[command(flatten)]
    workers: WorkerArgs,
    /// The state directory of process 0; the others' are below it [default: .turnflow/NAME].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    backup: BackupArgs,
    /// The longest pause before the processes are started again, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    max_pause: f64,
    /// After how many seconds without a sign of life a process is lost, so that all are started again. Every process gives
    /// one each second, whatever it computes.
    #[arg(long, value_name = "SECONDS", default_value_t = LOST_AFTER, value_parser = clap::value_parser!(u64).range(3..))]
    lost_after: u64,
    /// Exit when every source is drained and every answer is delivered.
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    /// Serve the pipeline over HTTP at this address, as `serve` does, instead of answering its sources' turns. Process 0
    /// listens there; on several machines, `serve --process` serves everything at each of them.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The server's configuration, with `--listen`.
    #[arg(long, value_name = "SERVE.ron", requires = "listen")]
    config: Option<PathBuf>,
    /// Reload the pipeline in all processes when its file, an included file or a prompt changes. The signal SIGHUP
    /// reloads it too, even without this option.
    #[arg(long, conflicts_with = "once")]
    watch: bool,
    /// Serve metrics, health and status of process 0 over HTTP at this address; each further process uses the next port.
    #[arg(long, value_name = "ADDR", conflicts_with = "listen")]
    metrics: Option<SocketAddr>,
}

/// The options of the log.
pub(super) struct Logs {
    /// How often `--verbose` is given.
    pub verbose: u8,
    /// Whether lines are JSON.
    pub is_json: bool,
}

impl Logs {
    fn arguments(&self) -> Vec<&'static str> {
        let mut arguments = vec!["--verbose"; self.verbose.into()];
        if self.is_json {
            arguments.extend(["--log-format", "json"]);
        }
        arguments
    }
}

/// How a start of all processes ended.
enum End {
    /// All have ended as they should.
    Done,
    /// A process was lost.
    Lost(String),
    /// A process failed, and would fail again.
    Failed(u8),
}

/// `logs` are the options of the log, for the processes.
pub(super) fn run(args: &ClusterArgs, logs: &Logs) -> Outcome {
    let plan = args.pipeline.plan()?;
    let state = args.state.clone().unwrap_or_else(|| default_state(&plan.name));
    drop(plan);
    // Held while the cluster runs: another one must not change its files.
    let directory = StateDirectory::open(&state.join("cluster"))?;
    let signals = Signals::handle()?;
    let most = Duration::try_from_secs_f64(args.max_pause).unwrap_or(Duration::MAX);
    let mut pause = PAUSE.min(most);
    loop {
        let begun = Instant::now();
        // On other ports each time, in case another program has taken one.
        let files = Files::prepare(directory.path(), args.processes.into())?;
        match Processes::start(args, logs, &state, &files)?.wait(&signals, args.once) {
            End::Done => return Ok(()),
            End::Failed(code) => return Err(Fault::Ended(code)),
            End::Lost(reason) if signals.stop.load(Ordering::Acquire) => {
                return Err(Fault::Run(anyhow!("{reason} while the cluster stopped; the next start goes on")));
            }
            End::Lost(reason) => {
                if begun.elapsed() >= STEADY {
                    pause = PAUSE.min(most);
                }
                eprintln!("{reason}; starting all processes again in {} ms", pause.as_millis());
                let until = Instant::now() + pause;
                while Instant::now() < until {
                    if signals.stop.load(Ordering::Acquire) {
                        return Ok(());
                    }
                    std::thread::park_timeout(TICK);
                }
                pause = pause.saturating_mul(2).min(most);
            }
        }
    }
}

/// The files that the processes share.
struct Files {
    hosts: PathBuf,
    secret: PathBuf,
}

impl Files {
    /// Writes the addresses, on free ports, and a new secret.
    fn prepare(directory: &Path, processes: usize) -> anyhow::Result<Self> {
        let (hosts, secret) = (directory.join("hosts"), directory.join("secret"));
        let listeners = (0..processes).map(|_| TcpListener::bind("127.0.0.1:0"));
        let listeners = listeners.collect::<Result<Vec<_>, _>>().context("cannot find free ports")?;
        let mut lines = String::new();
        for listener in &listeners {
            lines += &format!("{}\n", listener.local_addr().context("cannot find free ports")?);
        }
        super::write(&hosts, &lines)?;
        let mut random = [0; 32];
        let mut source = std::fs::File::open("/dev/urandom").context("cannot make a secret")?;
        std::io::Read::read_exact(&mut source, &mut random).context("cannot make a secret")?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = std::fs::remove_file(&secret);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&secret);
        let written = file.and_then(|mut file| file.write_all(hex.as_bytes()));
        written.with_context(|| format!("cannot write `{}`", secret.display()))?;
        Ok(Self { hosts, secret })
    }
}

/// The running processes.
struct Processes {
    children: Vec<Child>,
    ended: Vec<Option<ExitStatus>>,
}

impl Processes {
    fn start(args: &ClusterArgs, logs: &Logs, state: &Path, files: &Files) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut this = Self { children: Vec::new(), ended: Vec::new() };
        for process in 0..args.processes {
            let mut command = Command::new(&program);
            args.arguments(&mut command, process, state, files);
            command.args(logs.arguments());
            if process > 0 {
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            }
            die_with_this_process(&mut command);
            let mut child = command.spawn().with_context(|| format!("cannot start process {process}"))?;
            if let Some(lines) = child.stderr.take() {
                let prefix = if logs.is_json { String::new() } else { format!("process {process}: ") };
                std::thread::spawn(move || {
                    for line in BufReader::new(lines).lines().map_while(Result::ok) {
                        eprintln!("{prefix}{line}");
                    }
                });
            }
            this.children.push(child);
            this.ended.push(None);
        }
        Ok(this)
    }

    /// Waits until all processes have ended. When one is lost, the others end too, and are ended if they do not.
    fn wait(mut self, signals: &Signals, once: bool) -> End {
        let (mut told, mut forced) = (false, false);
        let mut ending: Option<Instant> = None;
        while self.ended.iter().any(Option::is_none) {
            for (process, (child, ended)) in self.children.iter_mut().zip(&mut self.ended).enumerate() {
                if ended.is_none()
                    && let Ok(Some(status)) = child.try_wait()
                {
                    *ended = Some(status);
                    // The first process may end last, since it delivers what it has answered. With `--once`, the others
                    // may still copy what they have computed.
                    if !status.success() || (process == 0 && !once) {
                        ending.get_or_insert_with(Instant::now);
                    }
                }
            }
            if signals.stop.load(Ordering::Acquire) && !told {
                told = true;
                self.running().for_each(|child| send(child, libc::SIGUSR1));
            }
            if signals.reload.swap(false, Ordering::AcqRel)
                && let (Some(first), Some(None)) = (self.children.first(), self.ended.first())
            {
                send(first, libc::SIGHUP);
            }
            let is_lost = self.ended.iter().flatten().any(|ended| ended.code() == Some(LOST.into()));
            let patience = if is_lost { PATIENCE_AFTER_LOSS } else { PATIENCE };
            if ending.is_some_and(|at| at.elapsed() >= patience) {
                forced = true;
                self.kill();
            }
            std::thread::park_timeout(TICK);
        }
        let code = |process: usize| self.ended[process].and_then(|status| status.code());
        // The first process knows best why it ended; the others only notice that it did.
        match code(0) {
            Some(0) => return End::Done,
            Some(code) if code != i32::from(LOST) => return End::Failed(u8::try_from(code).unwrap_or(3)),
            _ => {}
        }
        let processes = 0..self.ended.len();
        if let Some(code) = processes.clone().filter_map(code).find(|code| ![0, i32::from(LOST)].contains(code)) {
            return End::Failed(u8::try_from(code).unwrap_or(3));
        }
        let signal = |process: usize| Some((process, self.ended[process]?.signal()?));
        let killed = if forced { None } else { processes.clone().find_map(signal) };
        End::Lost(match killed {
            Some((process, signal)) => format!("process {process} was ended by signal {signal}"),
            None => "a process was lost".to_owned(),
        })
    }

    /// The processes that have not ended.
    fn running(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().zip(&self.ended).filter(|(_, ended)| ended.is_none()).map(|(child, _)| child)
    }

    fn kill(&mut self) {
        self.children.iter_mut().zip(&self.ended).filter(|(_, ended)| ended.is_none()).for_each(|(child, _)| {
            let _ = child.kill();
        });
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

impl ClusterArgs {
    /// The command line of a process.
    fn arguments(&self, command: &mut Command, process: u16, state: &Path, files: &Files) {
        let serves = self.listen.filter(|_| process == 0);
        command.arg(if serves.is_some() { "serve" } else { "run" }).arg(&self.pipeline.file);
        for Override { path, value } in &self.pipeline.set {
            command.arg("--set").arg(format!("{path}={value}"));
        }
        let state = if process == 0 { state.to_owned() } else { StateDirectory::of_process(state, process.into()) };
        command.arg("--state").arg(state).arg("--workers").arg(self.workers.count().to_string());
        if self.processes > 1 {
            command.arg("--process").arg(process.to_string());
            command.arg("--hosts").arg(&files.hosts).arg("--secret").arg(&files.secret);
            // Processes that restore their indexes take longer than others, and this one sees if one ends.
            command.args(["--wait", "86400"]);
            command.arg("--lost-after").arg(self.lost_after.to_string());
        }
        if let Some(url) = self.backup.url() {
            command.arg("--backup").arg(url);
        }
        if let Some(address) = serves {
            command.arg("--listen").arg(address.to_string());
            if let Some(config) = &self.config {
                command.arg("--config").arg(config);
            }
        }
        if self.once {
            command.arg("--once");
        }
        if self.watch && process == 0 {
            command.arg("--watch");
        }
        if let Some(mut address) = self.metrics {
            address.set_port(address.port().saturating_add(process));
            command.arg("--metrics").arg(address.to_string());
        }
    }
}

/// Has the system end a process when this one is gone, even if it is killed, and hold back the signals that
/// this process sends.
fn die_with_this_process(command: &mut Command) {
    #[cfg(target_os = "linux")]
    // SAFETY: `prctl`, `pthread_sigmask` and `getppid` may be called between fork and exec.
    unsafe {
        let parent = libc::pid_t::try_from(std::process::id()).unwrap_or_default();
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // A stop or a reload that is asked for before the process handles signals waits until then.
            let mut told: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut told);
            libc::sigaddset(&raw mut told, libc::SIGUSR1);
            libc::sigaddset(&raw mut told, libc::SIGHUP);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const told, std::ptr::null_mut());
            // It may be gone already.
            if libc::getppid() == parent { Ok(()) } else { Err(std::io::ErrorKind::NotConnected.into()) }
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

fn send(child: &Child, signal: i32) {
    // SAFETY: The process is not waited for yet, so its number is not another process's.
    unsafe { libc::kill(libc::pid_t::try_from(child.id()).unwrap_or_default(), signal) };
}
