//! The wall clock, for what is stored with the time at which it was used.
//!
//! It may jump: what it says is only compared with what it said before, and what is ahead of it
//! then counts as of now.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds by which the clock is wrong, from `TURNFLOW_CLOCK_OFFSET_S`: so that clocks which
/// jump can be tried.
static OFFSET_S: LazyLock<i64> = LazyLock::new(|| {
    let offset = std::env::var("TURNFLOW_CLOCK_OFFSET_S").ok();
    offset.and_then(|offset| offset.parse().ok()).unwrap_or_default()
});

/// Seconds since the Unix epoch.
pub fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    now.saturating_add_signed(*OFFSET_S)
}
