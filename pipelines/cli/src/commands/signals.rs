//! Signals to the process: stop and reload.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use turnflow_engine::run::IsCancelled;

/// Flags that signals set.
pub(super) struct Signals {
    /// Stop: SIGINT or SIGTERM, of which the second one ends the process immediately, or SIGUSR1, which does not: the
    /// supervisor of a cluster sends it, also to processes that have had another signal.
    pub stop: Arc<AtomicBool>,
    /// Reload: SIGHUP.
    pub reload: Arc<AtomicBool>,
}

impl Signals {
    /// Whether the run was told to stop, for a start that may take long.
    pub fn cancel(&self) -> IsCancelled {
        let stop = self.stop.clone();
        Arc::new(move || stop.load(Ordering::Acquire))
    }

    /// Installs the signal handlers.
    pub fn handle() -> anyhow::Result<Self> {
        let signals = Self { stop: Arc::default(), reload: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag is not set yet.
            signal_hook::flag::register_conditional_shutdown(signal, 130, signals.stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, signals.stop.clone()))
                .context("cannot handle signals")?;
        }
        signal_hook::flag::register(SIGUSR1, signals.stop.clone()).context("cannot handle signals")?;
        signal_hook::flag::register(SIGHUP, signals.reload.clone()).context("cannot handle signals")?;
        take_held_back();
        Ok(signals)
    }
}

/// Lets signals through that the supervisor of a cluster has held back until they are handled. Called before there are
/// other threads.
fn take_held_back() {
    // SAFETY: The set is initialised before it is used.
    unsafe {
        let mut told: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut told);
        libc::sigaddset(&raw mut told, SIGUSR1);
        libc::sigaddset(&raw mut told, SIGHUP);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const told, std::ptr::null_mut());
    }
}
