//! A socket in the state directory that serves the status of a running pipeline, for `turnflow top`.
//!
//! Each connection receives one JSON object, `{"pipeline": …, "status": …}`, and is closed.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use turnflow_engine::run::Engine;
use turnflow_server::Served;

/// The name of the socket.
const NAME: &str = "status.sock";
/// Its name until its permissions are set.
const UNREADY: &str = "status.new";
/// The pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// A slower reader is disconnected.
const PATIENCE: Duration = Duration::from_secs(2);

/// An open socket; dropping it removes it.
pub struct StatusSocket {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StatusSocket {
    /// Opens the socket of a state directory, which this process has locked. `None` if it cannot be
    /// opened, for example because its path is too long: the pipeline runs without it.
    pub fn open(state: &Path, served: Arc<Served>) -> Option<Self> {
        let (path, unready) = (state.join(NAME), state.join(UNREADY));
        let open = || {
            // An earlier process was killed.
            let (_, _) = (std::fs::remove_file(&path), std::fs::remove_file(&unready));
            // No one else can connect before the permissions are set.
            let listener = UnixListener::bind(&unready)?;
            std::fs::set_permissions(&unready, std::fs::Permissions::from_mode(0o600))?;
            std::fs::rename(&unready, &path)?;
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = stop.clone();
            let thread = std::thread::Builder::new().name("status".into()).spawn(move || {
                for stream in listener.incoming() {
                    if stopped.load(Ordering::Acquire) {
                        return;
                    }
                    let Ok(mut stream) = stream else {
                        // Too many files are open.
                        std::thread::park_timeout(PAUSE);
                        continue;
                    };
                    {
                        let told = json!({
                            "pipeline": turnflow_server::describe(served.name(), &served.outline()),
                            "status": status(served.engine()),
                        });
                        let _ = stream.set_write_timeout(Some(PATIENCE));
                        let _ = stream.write_all(told.to_string().as_bytes());
                    }
                }
            })?;
            Ok(Self { path: path.clone(), stop, thread: Some(thread) })
        };
        open().inspect_err(|error: &std::io::Error| tracing::debug!(%error, "no status for `turnflow top`")).ok()
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread. If the socket was removed, nothing can, and the thread ends with the process.
        let is_woken = UnixStream::connect(&self.path).is_ok();
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            let _ = thread.join();
        }
    }
}

fn status(engine: &Engine) -> Value {
    serde_json::to_value(engine.status()).unwrap_or_default()
}

/// Reads the status of the pipeline that runs with this state directory.
///
/// # Errors
///
/// No such pipeline is running.
pub fn read(state: &Path) -> anyhow::Result<Value> {
    let mut text = String::new();
    let mut read = || {
        let mut stream = UnixStream::connect(state.join(NAME))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        text.clear();
        stream.read_to_string(&mut text)
    };
    read().map_err(|error| {
        anyhow::anyhow!(
            "no running pipeline uses the state directory `{}` ({error}); start one, or give the address of \
             a server",
            state.display()
        )
    })?;
    Ok(serde_json::from_str(&text)?)
}
