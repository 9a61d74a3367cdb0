//! The wall clock, for stored entries that record when they were last used.
//!
//! It may jump. Times are only compared with earlier times, and a time in the future counts as now.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds added to the clock, from `TURNFLOW_CLOCK_OFFSET_S`, to test clocks that jump.
static OFFSET_S: LazyLock<i64> = LazyLock::new(|| {
    let offset = std::env::var("TURNFLOW_CLOCK_OFFSET_S").ok();
    offset.and_then(|offset| offset.parse().ok()).unwrap_or_default()
});

/// Seconds since the Unix epoch.
pub fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    now.saturating_add_signed(*OFFSET_S)
}
