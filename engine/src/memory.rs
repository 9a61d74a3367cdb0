//! Returns freed memory to the operating system.

use std::time::Duration;

/// Number of changed passages from which on freed memory is returned.
pub(crate) const MANY: usize = 20_000;
/// Time in which the dataflow frees what a large change has left.
const DELAY: Duration = Duration::from_secs(1);

/// Returns freed memory a little later, after a large change: glibc's allocator keeps what is free between blocks in use.
/// With other allocators it does nothing. Must be called in a tokio runtime.
pub(crate) fn give_back_soon() {
    tokio::spawn(async {
        tokio::time::sleep(DELAY).await;
        let _ = tokio::task::spawn_blocking(give_back).await;
    });
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    // SAFETY: It may be called at any time, from any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}
