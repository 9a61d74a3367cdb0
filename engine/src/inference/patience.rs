//! How long a caller of a model waits for a server that asks for a pause.

use std::time::Duration;

tokio::task_local! {
    static PATIENCE: Duration;
}

/// Runs a call that had better fail at once than wait for a pause of this length.
pub(crate) async fn within<F: Future>(patience: Duration, call: F) -> F::Output {
    PATIENCE.scope(patience, call).await
}

/// Whether the caller of this task waits so long. Without a limit of its own, a caller does.
pub fn waits_for(pause: Duration) -> bool {
    PATIENCE.try_with(|patience| pause < *patience).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_waits_as_long_as_it_says() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(9));
        assert!(waits_for(long));
        let waits = within(Duration::from_secs(5), async { (waits_for(short), waits_for(long)) }).await;
        assert_eq!(waits, (true, false));
    }
}
