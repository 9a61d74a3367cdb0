//! An index by content whose other parts are in other processes of a cluster.

use std::any::Any;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use turnflow_engine::cluster::{OtherParts, answered};
use turnflow_engine::component::OperatorError;
use turnflow_engine::document::ContentHash;
use turnflow_engine::record::{Hit, rank};

use super::index::BlockReader;
use super::rows::Stored;

/// A question to a part. `Q` is a query in the form in which the index is searched.
#[derive(Serialize, Deserialize)]
enum Question<Q> {
    /// The best passages for each of the queries.
    Nearest(Q),
    /// The encodings of contents.
    Encodings(Vec<ContentHash>),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Lists(Vec<Vec<Hit>>),
    /// As [`Stored::bytes`].
    Encodings(Vec<Option<Vec<u8>>>),
}

fn unexpected() -> OperatorError {
    OperatorError::Port("an answer of another kind from another process")
}

/// The best passages of all parts: those that `here` finds in this process, and those that the other parts find for the
/// same question, at most `top` in each list.
pub(crate) async fn nearest<Q: Serialize>(
    others: Option<&OtherParts>,
    question: Q,
    top: usize,
    here: impl Future<Output = Vec<Vec<Hit>>>,
) -> Result<Vec<Vec<Hit>>, OperatorError> {
    let Some(others) = others else { return Ok(here.await) };
    let question = Question::Nearest(question);
    // The others are asked first, and search while this part is searched.
    let (answers, mut lists) = futures::try_join!(others.ask::<_, Answer>(&question), here.map(Ok))?;
    for answer in answers {
        let Answer::Lists(found) = answer else { return Err(unexpected()) };
        lists.iter_mut().zip(found).for_each(|(list, found)| list.extend(found));
    }
    lists.iter_mut().for_each(|list| rank(list, top));
    Ok(lists)
}

/// The encodings of passages, from the part that has them; `None` where no part has one.
pub(crate) async fn encodings<V: Stored, D>(
    reader: Option<&BlockReader<V, D>>,
    others: Option<&OtherParts>,
    hits: &[Hit],
) -> Result<Vec<Option<V>>, OperatorError> {
    let here = |hit: &Hit| reader.and_then(|reader| reader.encoding(&hit.chunk));
    let mut found: Vec<Option<V>> = hits.iter().map(here).collect();
    let missing: Vec<usize> = (0..hits.len()).filter(|&at| found[at].is_none()).collect();
    if let Some(others) = others.filter(|_| !missing.is_empty()) {
        let hashes = missing.iter().map(|&at| hits[at].chunk.hash).collect();
        for answer in others.ask::<_, Answer>(&Question::<()>::Encodings(hashes)).await? {
            let Answer::Encodings(values) = answer else { return Err(unexpected()) };
            for (&at, value) in missing.iter().zip(values) {
                if let (Some(bytes), Some(reader), true) = (value, reader, found[at].is_none()) {
                    found[at] = V::of_bytes(&bytes, reader.dimension());
                }
            }
        }
    }
    Ok(found)
}

/// Answers a question of another process. `search` answers one for the best passages.
pub(crate) fn answer<V: Stored, D: Send + Sync + 'static, Q, F>(
    reader: Arc<dyn Any + Send + Sync>,
    question: Vec<u8>,
    search: impl FnOnce(Arc<BlockReader<V, D>>, Q) -> F + Send + 'static,
) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>>
where
    Q: for<'de> Deserialize<'de> + Send + 'static,
    F: Future<Output = Vec<Vec<Hit>>> + Send,
{
    async move {
        let Ok(reader) = reader.downcast::<BlockReader<V, D>>() else {
            return Err(OperatorError::Port("an index of another kind"));
        };
        let answer = async |question| {
            Ok(match question {
                Question::Nearest(question) => Answer::Lists(search(reader, question).await),
                Question::Encodings(hashes) => Answer::Encodings(reader.contents.bytes_of(&hashes)),
            })
        };
        answered(question, answer).await
    }
    .boxed()
}
