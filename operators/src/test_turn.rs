//! Turns for operator tests.

use turnflow_engine::record::{Speaker, Turn, Utterance};

/// Builds a turn with a history of lines such as `user: …` and `agent: …`.
pub(crate) fn turn(history: &[&str], text: &str) -> Turn {
    let utterance = |line: &&str| {
        let (speaker, text) = line.split_once(": ").unwrap();
        let speaker = if speaker == "user" { Speaker::User } else { Speaker::Agent };
        Utterance { speaker, text: text.into() }
    };
    Turn {
        conversation_id: "c".into(),
        turn: 1,
        text: text.into(),
        history: history.iter().map(utterance).collect(),
        collection: None,
        timestamp: None,
        extra: Default::default(),
        position: "".into(),
        epoch: 0,
        entered_us: 0,
        filter: None,
        sequence: 0,
        source: "turns".into(),
        standing: None,
        computed_at: None,
        similar_to: None,
        tokens: Default::default(),
        key: "k".into(),
    }
}
