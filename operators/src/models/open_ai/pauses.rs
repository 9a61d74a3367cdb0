//! The pauses between attempts.

use std::time::{Duration, SystemTime};

/// Maximum pause between two attempts, unless the server asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pause after this many attempts: doubled each time, less a jitter of up to a half that depends on the request, so
/// that requests that failed together are not retried together.
pub(super) fn pause(first: Duration, tried: usize, body: &[u8]) -> Duration {
    let mut hasher = blake3::Hasher::new();
    hasher.update(body);
    hasher.update(&(tried as u64).to_le_bytes());
    let jitter = f64::from(hasher.finalize().as_bytes()[0]) / 512.0;
    let doubled = first.saturating_mul(1 << tried.min(16)).min(LONGEST_PAUSE);
    doubled.mul_f64(1.0 - jitter)
}

/// Parses a `Retry-After` value: seconds, or a date.
pub(super) fn retry_after(value: &str) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = chrono::DateTime::parse_from_rfc2822(value.trim()).ok()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs() as i64;
    Some(Duration::from_secs((date.timestamp() - now).max(0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_differ_from_request_to_request() {
        let first = Duration::from_millis(500);
        for tried in 0..5 {
            let longest = first * (1 << tried);
            let pauses: Vec<Duration> = (0u8..20).map(|body| pause(first, tried, &[body])).collect();
            assert!(pauses.iter().all(|pause| *pause <= longest && *pause >= longest / 2), "{pauses:?}");
            assert!(pauses.windows(2).any(|two| two[0] != two[1]));
            assert_eq!(pause(first, tried, b"x"), pause(first, tried, b"x"));
        }
        assert!(pause(first, 40, b"x") <= LONGEST_PAUSE);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("2"), Some(Duration::from_secs(2)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let far = retry_after("Wed, 21 Oct 2195 07:28:00 GMT").unwrap();
        assert!(far > Duration::from_secs(86_400));
        assert_eq!(retry_after("soon"), None);
        assert_eq!(retry_after("-1"), None);
    }
}
