//! The corpus that an operator reads: a fixed one, or the one that the turn names.

use std::sync::Arc;

use serde::Deserialize;

use super::OperatorError;
use super::{CorpusSnapshot, Snapshot};
use crate::document::{Chunk, Corpus};
use crate::record::Turn;

/// The corpus that a retriever reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorpusRef {
    /// The corpus of this name.
    Named(String),
    /// The corpus that the turn's `collection` names, by its name or an alias.
    FromTurn,
}

impl<'de> Deserialize<'de> for CorpusRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = CorpusRef;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a corpus's name in quotes, or FromTurn")
            }
            fn visit_str<E>(self, text: &str) -> Result<CorpusRef, E> {
                Ok(if text == "FromTurn" { CorpusRef::FromTurn } else { CorpusRef::Named(text.to_owned()) })
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl std::fmt::Display for CorpusRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CorpusRef::Named(name) => write!(f, "{name}"),
            CorpusRef::FromTurn => f.write_str("FromTurn"),
        }
    }
}

impl CorpusRef {
    /// The corpus for this turn.
    pub fn resolve<'a>(&self, turn: &Turn, snapshot: &'a Snapshot) -> Result<&'a Arc<CorpusSnapshot>, OperatorError> {
        let (name, found) = match self {
            CorpusRef::Named(name) => (name.as_str(), snapshot.corpora.get(name.as_str())),
            CorpusRef::FromTurn => {
                let name = turn.collection.as_deref().ok_or(OperatorError::NoCollection)?;
                (name, snapshot.corpus(name))
            }
        };
        found.ok_or_else(|| OperatorError::UnknownCorpus {
            name: name.to_owned(),
            known: snapshot.corpora.keys().map(|name| name.to_string()).collect::<Vec<_>>().join(", "),
        })
    }

    /// What its passages are known by, if corpora have different documents ([`Aliases::told_apart`](super::Aliases::told_apart)).
    pub fn told_apart(&self, turn: &Turn, snapshot: &Snapshot) -> Option<Corpus> {
        let name = snapshot.real_name(self, turn)?;
        snapshot.aliases.told_apart(&name).and_then(|name| Corpus::named(name))
    }

    /// Notes that these passages were found in this turn's corpus, if there are others with other documents: only then two may
    /// have one id. Every operator that finds passages in a corpus must do so before it merges or returns them.
    pub fn found<'a>(&self, turn: &Turn, snapshot: &Snapshot, passages: impl IntoIterator<Item = &'a Arc<Chunk>>) {
        let corpus = self.told_apart(turn, snapshot);
        passages.into_iter().for_each(|passage| passage.place.found_in(corpus));
    }
}
