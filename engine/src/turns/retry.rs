//! Calls an operator, and retries transient failures.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;

use crate::component::{Call, Operator, OperatorError, Warnings};
use crate::inference::InferenceError;
use crate::plan::Retries;
use crate::record::Value;

/// The pause after an attempt; attempts count from 1.
fn pause(retries: &Retries, attempt: u32) -> Duration {
    let doubled = retries.first_ms.saturating_mul(1 << (attempt - 1).min(32));
    Duration::from_millis(doubled.min(retries.most_ms))
}

/// Why an operator failed.
pub(super) struct Failed {
    pub reason: String,
    /// Whether its language model cannot give the form that the caller asks for.
    pub of_form: bool,
}

impl From<&str> for Failed {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), of_form: false }
    }
}

impl From<OperatorError> for Failed {
    fn from(error: OperatorError) -> Self {
        let of_form = matches!(error, OperatorError::Inference(InferenceError::Form(_)));
        Self { reason: error.to_string(), of_form }
    }
}

/// Returns the operator's value, or the reason of the failure. Pauses do not block a thread. Warnings
/// of failed attempts are dropped, but a warning reports the number of attempts.
pub(super) async fn call(operator: Arc<dyn Operator>, call: Call, retries: Retries) -> Result<Value, Failed> {
    let Call { turn, inputs, snapshot, warnings, stream, weights, format, watch } = call;
    let mut attempt = 1;
    loop {
        let own = Warnings::default();
        let (inputs, snapshot, weights) = (inputs.clone(), snapshot.clone(), weights.clone());
        let (turn, stream, watch) = (&turn, &stream, watch.clone());
        let (asked, warned, said) = (turn.clone(), own.clone(), stream.clone());
        let call = Call {
            turn: asked,
            inputs,
            snapshot,
            warnings: warned,
            stream: said,
            weights,
            format: format.clone(),
            watch,
        };
        let operator = operator.clone();
        // Call inside the future, so that a panic before the first await is caught too.
        let outcome = AssertUnwindSafe(async move { operator.call(call).await }).catch_unwind().await;
        let outcome = match outcome {
            Ok(Err(error)) if error.is_transient() && attempt < retries.attempts => {
                let pause = pause(&retries, attempt);
                tracing::debug!(conversation = %turn.conversation_id, turn = turn.turn, %error, ?pause, "retrying");
                tokio::time::sleep(pause).await;
                stream.restart();
                attempt += 1;
                continue;
            }
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(value)) => Ok(value),
            Err(_) => Err("the operator panicked".into()),
        };
        own.take().into_iter().for_each(|note| warnings.add(note));
        if attempt > 1 {
            warnings.add(format!("tried {attempt} times"));
        }
        return outcome;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retries = Retries { attempts: 100, first_ms: 200, most_ms: 1000 };
        let pauses: Vec<u64> = [1, 2, 3, 4, 99].map(|attempt| pause(&retries, attempt).as_millis() as u64).into();
        assert_eq!(pauses, [200, 400, 800, 1000, 1000]);
        let none = Retries { first_ms: 0, ..retries };
        assert_eq!(pause(&none, 7), Duration::ZERO);
    }
}
