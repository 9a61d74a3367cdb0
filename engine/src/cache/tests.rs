//! Tests of the inference cache.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use super::*;

#[test]
fn what_was_put_outlives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    {
        let cache = InferenceCache::open(Some(directory.path())).unwrap();
        assert_eq!(cache.get(&[1; 32]), None);
        cache.put([1; 32], vec![1, 2, 3]);
        assert_eq!(cache.get(&[1; 32]).as_deref(), Some(&[1, 2, 3][..]));
    }
    let cache = InferenceCache::open(Some(directory.path())).unwrap();
    assert_eq!(cache.get(&[1; 32]).as_deref(), Some(&[1, 2, 3][..]));
    assert_eq!(cache.get(&[2; 32]), None);
    assert_eq!(cache.counts(), (1, 1));
}

#[test]
fn a_file_that_is_no_store_is_put_aside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("memo.redb");
    drop(InferenceCache::open(Some(directory.path())).unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = 0x55);
    std::fs::write(&path, bytes).unwrap();
    match InferenceCache::open(Some(directory.path())) {
        Ok(cache) => assert_eq!(cache.get(&[1; 32]), None),
        Err(error) => assert!(error.to_string().contains("memo.redb"), "{error}"),
    }
}

#[tokio::test]
async fn only_what_is_missing_is_computed_and_once() {
    let cache = InferenceCache::open(None).unwrap();
    cache.put([1; 32], vec![10]);
    let keys = [[1; 32], [2; 32], [3; 32], [2; 32]];
    let run = |expected: Vec<usize>| {
        let cache = &cache;
        async move {
            cache
                .each(
                    &keys,
                    |bytes| bytes.first().copied(),
                    |value| vec![*value],
                    |missing| async move {
                        assert_eq!(missing, expected);
                        Ok(missing.iter().map(|at| *at as u8 * 10 + 10).collect())
                    },
                )
                .await
                .unwrap()
        }
    };
    assert_eq!(run(vec![1, 2]).await, [10, 20, 30, 20]);
    let again = cache.each(&keys, |bytes| bytes.first().copied(), |value| vec![*value], |_| async { unreachable!() });
    assert_eq!(again.await.unwrap(), [10, 20, 30, 20]);
}

#[test]
fn what_expires_is_not_in_memory_either_and_what_is_asked_for_stays() {
    let directory = tempfile::tempdir().unwrap();
    let limits = CacheLimits { days: 30, bytes: 1 };
    let cache = InferenceCache::open(Some(directory.path())).unwrap();
    cache.put([1; 32], vec![1]);
    drop(cache);
    let cache = InferenceCache::open(Some(directory.path())).unwrap();
    assert!(cache.get(&[1; 32]).is_some());
    let done = cache.expire(&limits).unwrap().unwrap();
    assert_eq!((done.did.len(), cache.get(&[1; 32])), (1, None));
    cache.put([2; 32], vec![2]);
    drop(cache);
    let done = InferenceCache::maintain(directory.path(), &CacheLimits { days: 30, bytes: 0 }).unwrap().unwrap();
    assert!(done.after.bytes <= done.before.bytes && done.after.files == 1);
    assert!(InferenceCache::open(Some(directory.path())).unwrap().get(&[2; 32]).is_some());
    assert!(InferenceCache::maintain(&directory.path().join("none"), &limits).unwrap().is_none());
}

/// What a disk may do to a file.
#[derive(Clone, Debug)]
enum Damage {
    Bit(Index, u8),
    Head(usize, u8),
    Cut(Index),
    Noise(Vec<(Index, u8)>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Damage::Bit(at, bit)),
        (0..512_usize, any::<u8>()).prop_map(|(at, byte)| Damage::Head(at, byte)),
        any::<Index>().prop_map(Damage::Cut),
        vec((any::<Index>(), any::<u8>()), 64).prop_map(Damage::Noise),
    ]
}

/// Random damage to the file causes no panic and no wrong output. Lost entries are computed again.
#[test]
fn a_file_that_is_damaged_anywhere_is_no_panic_and_no_other_output() {
    let directory = tempfile::tempdir().unwrap();
    let value = |n: u8| vec![n; 200 + usize::from(n)];
    let cache = InferenceCache::open(Some(directory.path())).unwrap();
    (0..100).for_each(|n| drop(cache.put([n; 32], value(n))));
    drop(cache);
    let path = directory.path().join("memo.redb");
    let good = std::fs::read(&path).unwrap();
    // Damage only used bytes: most of the file is empty.
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let (trials, lost) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&damage(), |damage| {
        let mut bytes = good.clone();
        match damage {
            Damage::Bit(at, bit) => bytes[*at.get(&used)] ^= 1 << bit,
            Damage::Head(at, byte) => bytes[at] = byte,
            Damage::Cut(at) => bytes.truncate(at.index(good.len())),
            Damage::Noise(noise) => noise.iter().for_each(|(at, byte)| bytes[*at.get(&used)] = *byte),
        }
        std::fs::write(&path, bytes).unwrap();
        let cache = InferenceCache::open(Some(directory.path()));
        let cache = cache.map_err(|error| TestCaseError::fail(format!("the cache must be recreated: {error}")))?;
        trials.set(trials.get() + 1);
        for n in 0..100 {
            match cache.get(&[n; 32]) {
                Some(found) => prop_assert_eq!(&*found, &*value(n)),
                None => {
                    lost.set(lost.get() + 1);
                    cache.put([n; 32], value(n));
                }
            }
        }
        let _ = cache.expire(&CacheLimits { days: 30, bytes: 1 << 30 });
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
    assert!(lost.get() < trials.get() * 100, "{} lost in {} trials", lost.get(), trials.get());
}
