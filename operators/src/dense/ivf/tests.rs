//! Tests of the approximate index.

use turnflow_engine::component::Delta;

use super::super::codes::Codes;
use super::super::index::tests::{Hashed, chunk, seen};
use super::*;
use crate::content::open;

/// Lists that are all read find what the exact search finds, while passages come and go after they were made.
#[tokio::test(flavor = "multi_thread")]
async fn all_lists_and_what_is_outside_are_all_passages() {
    let encoder = Arc::new(Hashed(48));
    let mut index = open::<Vector, Codes>(None, encoder.clone()).await.unwrap();
    let all: Vec<_> = (0..2600).map(chunk).collect();
    let queries: Vec<Vector> = (0..20).map(|n| encoder.vector(&all[n * 131].text)).collect();
    let queries: Vec<&Vector> = queries.iter().collect();
    let approximate = Arc::new(Approximate::new(0.9));
    let first = Delta { added: all[..2400].to_vec(), removed: Vec::new(), whole: true };
    let reader = index.apply(&first).await.unwrap().downcast::<DenseReader>().unwrap();
    let exact = search(&reader, &queries, 10, &Permitted::All);
    let before = approximate.search(&reader, &queries, 10, &Permitted::All);
    assert!(before.iter().zip(&exact).all(|(found, exact)| seen(found) == seen(exact)), "exact until they are made");
    while approximate.lists().is_none() {
        approximate.search(&reader, &queries, 10, &Permitted::All);
        tokio::task::yield_now().await;
    }
    let lists = approximate.lists().unwrap();
    assert!(lists.recall >= 0.9 && lists.read >= 1, "{} with {}", lists.recall, lists.read);
    let mut readers = vec![reader];
    for (added, removed) in [(2400..2401, 7..8), (2401..2600, 100..300), (7..8, 2400..2401)] {
        let delta = Delta { added: all[added].to_vec(), removed: all[removed].to_vec(), whole: false };
        readers.push(index.apply(&delta).await.unwrap().downcast::<DenseReader>().unwrap());
    }
    for reader in readers.iter().chain(&readers) {
        let outside = lists.outside(reader);
        for every in [1, 3] {
            let permitted = match every {
                1 => Permitted::All,
                _ => Permitted::Only(Arc::new((0..2600).filter(|number| number % every == 0).collect())),
            };
            let exact = search(reader, &queries, 30, &permitted);
            for (query, exact) in queries.iter().zip(&exact) {
                let (found, _) = lists.search(reader, query, 30, &permitted, f32::INFINITY, &outside);
                assert_eq!(seen(&found), seen(exact));
            }
        }
    }
    // The permitted passages are of one kind, and most queries are near to others.
    let one_kind = Permitted::Only(Arc::new((0..2600).filter(|number| number % 5 == 0).collect()));
    for found in approximate.search(&readers[0], &queries, 30, &one_kind) {
        assert_eq!(found.len(), 30);
    }
    assert_eq!(lists.outside(&readers[2]).len(), 200);
    assert_eq!(lists.outside(&readers[3]).len(), 199);
}
