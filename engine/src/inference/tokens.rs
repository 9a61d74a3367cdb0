//! Tokens that language models read and write: for each call of a node, and so for each turn and each model.
//!
//! A model does not know for whom it computes. So the call of a node runs with a tally, to which each text that a model
//! gives within it is added, with the numbers that the model itself has reported. A text from the inference cache costs
//! nothing, and is told apart.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::language::Generation;

/// Numbers of tokens, as models have reported them. 0: they report none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Tokens of prompts.
    pub prompt: u64,
    /// Generated tokens, thoughts included.
    pub completion: u64,
    /// Those of the tokens of prompts whose texts were in the inference cache.
    pub cached_prompt: u64,
    /// Those of the generated tokens that were in the inference cache.
    pub cached_completion: u64,
}

impl Tokens {
    /// Those of a text.
    pub fn of(generation: &Generation, is_cached: bool) -> Self {
        let (prompt, completion) = (generation.prompt_tokens, generation.tokens);
        let cached = |tokens: u64| if is_cached { tokens } else { 0 };
        Self { prompt, completion, cached_prompt: cached(prompt), cached_completion: cached(completion) }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.completion += other.completion;
        self.cached_prompt += other.cached_prompt;
        self.cached_completion += other.cached_completion;
    }
}

/// The tokens of a call, by model.
pub type ByModel = BTreeMap<Arc<str>, Tokens>;

type Tally = Arc<Mutex<ByModel>>;

tokio::task_local! {
    static TALLY: Tally;
}

/// Runs a call, and also returns the tokens of the texts that models have given in it, and are in this task.
pub async fn counted<F: Future>(call: F) -> (F::Output, ByModel) {
    let tally = Tally::default();
    let done = TALLY.scope(tally.clone(), call).await;
    let tokens = std::mem::take(&mut *tally.lock());
    (done, tokens)
}

/// Adds the tokens of a text to the tally of this task, if it has one.
pub(crate) fn add(model: &Arc<str>, tokens: Tokens) {
    if !tokens.is_empty() {
        let _ = TALLY.try_with(|tally| *tally.lock().entry(model.clone()).or_default() += tokens);
    }
}

/// The tokens of a turn, by node.
#[derive(Debug, Default)]
pub struct TurnTokens(Mutex<BTreeMap<Arc<str>, Tokens>>);

impl TurnTokens {
    /// Adds those of a call of a node.
    pub(crate) fn add(&self, node: &Arc<str>, tokens: &ByModel) {
        if tokens.is_empty() {
            return;
        }
        let mut nodes = self.0.lock();
        let of_node = nodes.entry(node.clone()).or_default();
        tokens.values().for_each(|tokens| *of_node += *tokens);
    }

    /// Those of a node.
    pub fn of(&self, node: &str) -> Tokens {
        self.0.lock().get(node).copied().unwrap_or_default()
    }

    /// Those of all nodes.
    pub fn all(&self) -> Tokens {
        let mut all = Tokens::default();
        self.0.lock().values().for_each(|tokens| all += *tokens);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_counts_the_texts_in_it() {
        let model: Arc<str> = "m".into();
        let text = Generation { prompt_tokens: 7, tokens: 2, ..Generation::default() };
        let give = async |is_cached| {
            tokio::task::yield_now().await;
            add(&model, Tokens::of(&text, is_cached));
        };
        // Nobody counts.
        give(false).await;
        let ((), tokens) = counted(async {
            give(false).await;
            futures::join!(give(true), give(false));
        })
        .await;
        let all = Tokens { prompt: 21, completion: 6, cached_prompt: 7, cached_completion: 2 };
        assert_eq!(tokens, BTreeMap::from([(model.clone(), all)]));
        let turn = TurnTokens::default();
        turn.add(&"a".into(), &tokens);
        turn.add(&"a".into(), &tokens);
        turn.add(&"b".into(), &ByModel::new());
        turn.add(&"c".into(), &tokens);
        assert_eq!((turn.of("a").prompt, turn.of("b"), turn.all().completion), (42, Tokens::default(), 18));
    }
}
