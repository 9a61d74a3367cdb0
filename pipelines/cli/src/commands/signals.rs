//! Signals to the process: stop and reload.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Flags that signals set.
pub(super) struct Signals {
    /// Stop: SIGINT or SIGTERM. The second signal ends the process immediately.
    pub stop: Arc<AtomicBool>,
    /// Reload: SIGHUP.
    pub reload: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the signal handlers.
    pub fn handle() -> anyhow::Result<Self> {
        let signals = Self { stop: Arc::default(), reload: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag is not set yet.
            signal_hook::flag::register_conditional_shutdown(signal, 130, signals.stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, signals.stop.clone()))
                .context("cannot handle signals")?;
        }
        signal_hook::flag::register(SIGHUP, signals.reload.clone()).context("cannot handle signals")?;
        Ok(signals)
    }
}
