//! Tests of the inference cache.

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
    let mut state = 7_u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    // Damage only used bytes: most of the file is empty.
    let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
    let (mut lost, mut other) = (0, 0);
    for trial in 0..60 {
        let mut bytes = good.clone();
        match trial % 4 {
            0 => bytes[used[below(used.len())]] ^= 1 << below(8),
            1 => bytes[below(512)] = below(256) as u8,
            2 => bytes.truncate(below(good.len())),
            _ => (0..64).for_each(|_| bytes[used[below(used.len())]] = below(256) as u8),
        }
        std::fs::write(&path, bytes).unwrap();
        let cache = match InferenceCache::open(Some(directory.path())) {
            Ok(cache) => cache,
            Err(error) => panic!("the cache must be recreated: {error}"),
        };
        for n in 0..100 {
            match cache.get(&[n; 32]) {
                Some(found) if *found == *value(n) => {}
                Some(_) => other += 1,
                None => {
                    lost += 1;
                    cache.put([n; 32], value(n));
                }
            }
        }
        let _ = cache.expire(&CacheLimits { days: 30, bytes: 1 << 30 });
        drop(cache);
    }
    println!("{lost} of 6000 lost, {other} wrong");
    assert!(lost < 6000 && other == 0);
}
