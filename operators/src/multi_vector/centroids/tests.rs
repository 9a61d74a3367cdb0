//! Tests of the index of centroids.

use turnflow_engine::component::Delta;
use turnflow_engine::inference::InferenceError;

use super::*;
use crate::content::{Encode, open};

const DIMENSION: usize = 16;

/// Token vectors of a text, for each of its words: words with the same first letter are near to each other.
struct Hashed;

impl Hashed {
    fn tokens(text: &str) -> TokenVectors {
        let mut values = Vec::new();
        for word in text.split(' ') {
            let value = |seed: u64, at: usize| {
                let mixed =
                    (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
                (mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
            };
            let number: u64 = word[1..].parse().unwrap();
            let topic = u64::from(word.as_bytes()[0]);
            let vector: Vec<f32> = (0..DIMENSION).map(|at| value(topic, at) + 0.4 * value(number + 1000, at)).collect();
            let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
            values.extend(vector.iter().map(|value| value / length));
        }
        TokenVectors { dimension: DIMENSION, values: values.into() }
    }
}

impl Encode<Codes> for Hashed {
    fn dimension(&self) -> usize {
        DIMENSION
    }
    fn encode(&self, texts: Vec<String>) -> futures::future::BoxFuture<'static, Result<Vec<Codes>, InferenceError>> {
        let codes = texts.iter().map(|text| Codes::of(&Self::tokens(text))).collect();
        Box::pin(async move { Ok(codes) })
    }
}

fn text(number: usize) -> String {
    let word = |at: usize| {
        format!("{}{}", char::from(b'a' + ((number * 7 + at * at * 3) % 26) as u8), (number * 31 + at) % 500)
    };
    (0..3 + number % 9).map(word).collect::<Vec<_>>().join(" ")
}

fn chunk(number: usize) -> Arc<Chunk> {
    let chunk = Chunk::new(format!("p{number:05}").into(), "d".into(), "".into(), text(number).into());
    chunk.place.assign(number as u32);
    Arc::new(chunk)
}

fn seen(hits: &[Hit]) -> Vec<(Arc<str>, u32)> {
    hits.iter().map(|hit| (hit.chunk.id.clone(), hit.score.to_bits())).collect()
}

/// Without a limit, a search finds what the exact one finds, while passages come and go after the centroids were learned;
/// with one, it finds the wanted share.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_is_exact_without_a_gap_and_enough_with_one() {
    let mut index = open::<Codes, ()>(None, Arc::new(Hashed)).await.unwrap();
    let all: Vec<_> = (0..2600).map(chunk).collect();
    let first = Delta { added: all[..2400].to_vec(), removed: Vec::new(), whole: true };
    let reader = index.apply(&first).await.unwrap().downcast::<MultiVectorReader>().unwrap();
    let queries: Vec<TokenVectors> = (0..80).map(|number| Hashed::tokens(&text(number * 29 + 5))).collect();
    let queries: Vec<&TokenVectors> = queries.iter().collect();
    let approximate = Approximate::new(0.9);
    let exact = search(&reader, &queries, 10, &Permitted::All);
    let before = approximate.search(&reader, &queries, 10, &Permitted::All);
    assert!(before.iter().zip(&exact).all(|(found, exact)| seen(found) == seen(exact)), "exact until they are learned");
    while approximate.measured().is_none() {
        approximate.search(&reader, &queries[..1], 10, &Permitted::All);
        tokio::task::yield_now().await;
    }
    let (recall, passages, scored) = approximate.measured().unwrap();
    assert!(recall >= 0.9 && passages == 2400 && scored < 1200, "{recall} by scoring {scored} of {passages}");
    let learned = approximate.background.made().unwrap();
    let mut readers = vec![reader];
    for (added, removed) in [(2400..2401, 7..8), (2401..2600, 100..300), (7..8, 2400..2401)] {
        let delta = Delta { added: all[added].to_vec(), removed: all[removed].to_vec(), whole: false };
        readers.push(index.apply(&delta).await.unwrap().downcast::<MultiVectorReader>().unwrap());
    }
    assert_eq!(learned.outside(&readers[2]), 200);
    let same = |readers: &[Arc<MultiVectorReader>]| {
        for reader in readers {
            for every in [1, 3] {
                let permitted = match every {
                    1 => Permitted::All,
                    _ => Permitted::Only(Arc::new((0..2600).filter(|number| number % every == 0).collect())),
                };
                let exact = search(reader, &queries[..20], 30, &permitted);
                for (query, exact) in queries.iter().zip(&exact) {
                    let (found, _) = learned.search(reader, query, 30, &permitted, f32::INFINITY);
                    assert_eq!(seen(&found), seen(exact));
                }
            }
        }
    };
    same(&readers);
    // The search after a large change has the new passages looked up.
    while learned.outside(&readers[2]) > 0 {
        approximate.search(&readers[2], &queries[..1], 10, &Permitted::All);
        tokio::task::yield_now().await;
    }
    same(&readers);
    let exact = search(&readers[2], &queries, 10, &Permitted::All);
    let found = approximate.search(&readers[2], &queries, 10, &Permitted::All);
    let shared: usize = exact
        .iter()
        .zip(&found)
        .map(|(exact, found)| {
            exact.iter().filter(|hit| seen(found).contains(&(hit.chunk.id.clone(), hit.score.to_bits()))).count()
        })
        .sum();
    assert!(shared >= 80 * 10 * 8 / 10, "{shared} of 800");
}
