//! Starts real servers for tests and for the kill runs, each with its own data and a free port of this machine.
//!
//! A server is killed when its [`Server`] is dropped, or when the test's process ends. The programs come from Debian's
//! packages, which `pipelines/test.sh` installs. Where one is missing, [`Server::start`] prints that a test is skipped
//! and returns nothing; with `TURNFLOW_TESTS_MUST_RUN` it panics.

// Each crate that includes this file uses some of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Long enough for any machine; only a broken server takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kind of server.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The program that must exist: a name in `PATH`, or one of Debian's directories.
    pub program: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
    /// Makes the data directory ready, once.
    pub prepare: fn(&Path, &Path),
    /// The command that runs the server: program, data directory, port.
    pub command: fn(&Path, &Path, u16) -> Command,
    /// Whether the server on this port answers.
    pub is_ready: fn(u16) -> bool,
}

/// NATS with JetStream.
pub const NATS: Kind = Kind {
    program: "nats-server",
    package: "nats-server",
    prepare: |_, data| {
        // Answers in tests are longer than the server's own limit of 1 MB.
        std::fs::write(data.join("server.conf"), "max_payload: 8MB\n").expect("a configuration");
    },
    command: |program, data, port| {
        let mut command = Command::new(program);
        command.args(["--jetstream", "--addr", "127.0.0.1", "--port", &port.to_string(), "--store_dir"]).arg(data);
        let config = data.join("server.conf");
        if config.exists() {
            command.arg("--config").arg(config);
        }
        command
    },
    is_ready: answers,
};

/// Redis, with every write on disk before it is acknowledged.
pub const REDIS: Kind = Kind {
    program: "redis-server",
    package: "redis-server",
    prepare: |_, _| {},
    command: |program, data, port| {
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--save", "", "--dir"]).arg(data);
        command
    },
    // While it loads its data, the reply is an error.
    is_ready: |port| {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
        let mut reply = [0; 5];
        stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut reply)).is_ok() && reply == *b"+PONG"
    },
};

/// S3's protocol, by moto. Its objects are in memory.
pub const S3: Kind = Kind {
    program: "moto_server",
    package: "python3-venv, and moto from PyPI",
    prepare: |_, _| {},
    command: |program, _, port| {
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command
    },
    is_ready: answers,
};

/// PostgreSQL with logical decoding. Everyone on this machine may log in, as the superuser `postgres`, without a password.
/// What a kill of the process loses is what matters here, not a power cut, so it does not wait for the disk.
pub const POSTGRES: Kind = Kind {
    program: "postgres",
    package: "postgresql",
    prepare: |program, data| {
        let mut command = Command::new(program.with_file_name("initdb"));
        if let Some((user, group)) = postgres_user() {
            std::os::unix::fs::chown(data, Some(user), Some(group)).expect("the data directory is given away");
        }
        command.args(["--auth=trust", "--no-sync", "--username=postgres", "--encoding=UTF8", "--locale=C", "--pgdata"]);
        command.arg(data.join("cluster")).current_dir(data);
        let done = as_postgres(&mut command).output().expect("initdb runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    },
    command: |program, data, port| {
        let cluster = data.join("cluster");
        // After a kill of the first process, the others end after a moment, and no new one starts before.
        let until = Instant::now() + PATIENCE;
        while works_in(&cluster) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(data).arg("-D").arg(cluster);
        for setting in ["wal_level=logical", "fsync=off", "max_replication_slots=20", "max_connections=50"] {
            command.args(["-c", setting]);
        }
        as_postgres(&mut command).current_dir(data);
        command
    },
    is_ready: |port| {
        let parameters = b"user\0postgres\0database\0postgres\0\0";
        let mut hello = (parameters.len() as u32 + 8).to_be_bytes().to_vec();
        hello.extend_from_slice(&[0, 3, 0, 0]);
        hello.extend_from_slice(parameters);
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
        let mut reply = [0];
        let asked = stream.write_all(&hello).and_then(|()| stream.read_exact(&mut reply));
        // `R` asks to log in; while it starts, the reply is an error.
        asked.is_ok() && reply == *b"R"
    },
};

/// The user and group of PostgreSQL, if we are root: its programs refuse to run as root.
fn postgres_user() -> Option<(u32, u32)> {
    // SAFETY: these functions read and return plain data; the entry is copied at once.
    unsafe {
        if libc::geteuid() != 0 {
            return None;
        }
        let entry = libc::getpwnam(c"postgres".as_ptr()).as_ref().expect("a user `postgres`");
        Some((entry.pw_uid, entry.pw_gid))
    }
}

fn as_postgres(command: &mut Command) -> &mut Command {
    match postgres_user() {
        Some((user, group)) => command.uid(user).gid(group),
        None => command,
    }
}

/// Whether a process has this working directory.
fn works_in(directory: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut directories = processes.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok());
    directories.any(|working| working == directory)
}

/// Whether something listens on the port.
pub fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A port that nothing listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// The file of a program, in `PATH` or where Debian keeps those that are not in it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let further = ["/usr/sbin", "/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/15/bin"].map(PathBuf::from);
    // `pipelines/test.sh` installs programs of Python beside the builds.
    let built = std::env::current_exe().ok();
    let tools = built.iter().flat_map(|program| program.ancestors()).map(|above| above.join("tools/servers/bin"));
    tools
        .chain(std::env::split_paths(&path))
        .chain(further)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// The port of a server that all tests of this process share; `None` if its program is missing.
pub fn shared(kind: Kind) -> Option<u16> {
    static PORTS: Mutex<BTreeMap<&str, Option<u16>>> = Mutex::new(BTreeMap::new());
    let mut ports = PORTS.lock().expect("no test panics here");
    *ports.entry(kind.program).or_insert_with(|| {
        // The server ends with the thread that starts it, so that thread must not end.
        let (sender, port) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let server = Server::start(kind);
            let _ = sender.send(server.as_ref().map(|server| server.port));
            loop {
                std::thread::park();
            }
        });
        port.recv().unwrap_or_else(|_| panic!("{} cannot be started", kind.program))
    })
}

/// Whether the program of a server exists. If not, prints that a test is skipped.
pub fn is_there(kind: Kind) -> bool {
    let is_there = find(kind.program).is_some();
    if !is_there {
        let why = format!("{} is missing (Debian's package {})", kind.program, kind.package);
        assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{why}");
        println!("skipped: {why}");
    }
    is_there
}

/// A server that runs.
pub struct Server {
    kind: Kind,
    program: PathBuf,
    /// The port of 127.0.0.1 that it listens on, also after a restart.
    pub port: u16,
    data: TempDir,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with an empty data directory; `None` if its program is missing.
    pub fn start(kind: Kind) -> Option<Self> {
        Self::configured(kind, |_| {})
    }

    /// The same; the function may write configuration files into the data directory first.
    pub fn configured(kind: Kind, configure: impl FnOnce(&Path)) -> Option<Self> {
        if !is_there(kind) {
            return None;
        }
        let program = find(kind.program)?;
        let data = tempfile::tempdir().expect("a directory");
        (kind.prepare)(&program, data.path());
        configure(data.path());
        let mut server = Self { kind, program, port: free_port(), data, child: None };
        server.up();
        Some(server)
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// Starts the server again after [`Server::down`], and waits until it answers.
    pub fn up(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.data.path().join("server.log"));
        let log = log.expect("a log");
        let mut command = (self.kind.command)(&self.program, self.data.path(), self.port);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        // SAFETY: prctl is safe between fork and exec. The server ends with the thread that started it.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        self.child = Some(command.spawn().expect("the server starts"));
        let until = Instant::now() + PATIENCE;
        while !(self.kind.is_ready)(self.port) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > until {
                let log = std::fs::read_to_string(self.data.path().join("server.log")).unwrap_or_default();
                panic!("{} does not answer on port {}:\n{log}", self.kind.program, self.port);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the server. Its data stay.
    pub fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the server's process without ending it, or lets it go on: its connections stay open and are silent.
    pub fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen { libc::SIGSTOP } else { libc::SIGCONT };
        if let Some(child) = &self.child {
            // SAFETY: a signal to a child that has not been waited for.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.freeze(false);
        self.down();
    }
}
