//! Measures how much of an answer its passages contain, without a model.

use std::collections::HashSet;

use turnflow_engine::record::Hit;

use crate::citations::without;
use crate::words::{is_function, key, lower, words};

/// The share of an answer's content words that its passages contain, 0 to 1. An answer without content words ("Yes.")
/// has 1, and an answer without passages has 0.
pub(super) fn share(text: &str, hits: &[Hit]) -> f64 {
    let text = without(text);
    let said: HashSet<String> = keys(&text);
    if said.is_empty() {
        return 1.0;
    }
    let there: HashSet<String> = hits.iter().flat_map(|hit| keys(&hit.chunk.indexed_text())).collect();
    said.intersection(&there).count() as f64 / said.len() as f64
}

fn keys(text: &str) -> HashSet<String> {
    words(text).iter().filter(|word| !is_function(&lower(word.text))).map(|word| key(word.text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::tests::list;

    #[test]
    fn words_of_the_passages_count() {
        let hits = list(&[("The ferries leave at noon.", 1.0), ("Tickets cost 12 euros.", 0.5)]);
        for (text, want) in [
            ("The ferry leaves at noon [1].", 1.0),
            ("A ticket is 12 pounds.", 2.0 / 3.0),
            ("Whales sing.", 0.0),
            ("Yes.", 1.0),
        ] {
            assert_eq!(share(text, &hits), want, "{text}");
        }
        assert_eq!(share("Noon.", &[]), 0.0);
    }
}
