//! Whatever fails, and wherever: what is in the store can be restored.

mod processes;
pub(crate) mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use self::support::{Dataset, Fault, Memory, Run, newest_in, place};
use super::StoreError;
use super::copy::{Copy, description, object};
use super::restore::{beside, restore};
use super::write::WriteError;

/// Restores the copy to a new directory; returns its newest version, if there is a copy.
async fn restored(store: &Memory) -> Option<BTreeSet<String>> {
    let place_of = tempfile::tempdir().unwrap();
    let target = place_of.path().join("docs/dense");
    let bytes = restore(store, &place().key("p"), &target, Duration::ZERO).await.unwrap();
    assert_eq!(bytes.is_some(), target.exists());
    assert!(!beside(&target).exists());
    bytes.map(|_| newest_in(&target))
}

/// The store has the description and the objects that it names, and nothing else.
fn assert_tidy(store: &Memory) {
    let key = place().key("p");
    let copy = Copy::parse(&store.objects.lock()[&description(&key)].0).unwrap();
    let mut named: BTreeSet<String> = copy.files.iter().map(|file| object(&key, &file.hash)).collect();
    named.insert(description(&key));
    assert_eq!(store.keys(), named);
}

/// A dataset grows, is compacted, and is replaced, with a round after each step. Returns the versions that a round may have
/// copied.
async fn history(dataset: &mut Dataset, run: &mut Run, store: &Memory) -> Vec<BTreeSet<String>> {
    let mut versions = Vec::new();
    let steps: [fn(&mut Dataset); 6] = [
        Dataset::append,
        |dataset| (0..3).for_each(|_| dataset.append()),
        Dataset::compact,
        Dataset::append,
        Dataset::rebuild,
        Dataset::append,
    ];
    for step in steps {
        step(dataset);
        versions.push(dataset.newest());
        let _ = run.round(store).await;
    }
    versions
}

#[tokio::test]
async fn wherever_a_run_is_killed_its_copy_can_be_restored_and_the_next_run_goes_on() {
    let counted = Memory::new(Fault::None);
    let place_of = tempfile::tempdir().unwrap();
    let mut dataset = Dataset::new(place_of.path());
    history(&mut dataset, &mut Run::new(place_of.path(), "1"), &counted).await;
    assert_eq!(restored(&counted).await, Some(dataset.newest()));
    assert_tidy(&counted);
    let operations = counted.operations();
    assert!(operations > 40, "{operations}");
    for first in 0..operations {
        let store = Memory::new(Fault::From(first));
        let place_of = tempfile::tempdir().unwrap();
        let mut dataset = Dataset::new(place_of.path());
        let versions = history(&mut dataset, &mut Run::new(place_of.path(), "1"), &store).await;
        store.set(Fault::None);
        match restored(&store).await {
            Some(version) => assert!(versions.contains(&version), "killed at {first}: {version:?}"),
            None => assert!(store.keys().iter().all(|key| key.contains("/files/")), "killed at {first}"),
        }
        Run::new(place_of.path(), "2").round(&store).await.unwrap();
        assert_eq!(restored(&store).await, Some(dataset.newest()), "killed at {first}");
        assert_tidy(&store);
    }
}

#[tokio::test]
async fn after_any_failure_the_next_round_completes_the_copy() {
    for fault in (0..60).flat_map(|at| [Fault::Before(at), Fault::After(at)]) {
        let store = Memory::new(fault);
        let place_of = tempfile::tempdir().unwrap();
        let mut dataset = Dataset::new(place_of.path());
        let mut run = Run::new(place_of.path(), "1");
        history(&mut dataset, &mut run, &store).await;
        store.set(Fault::None);
        run.round(&store).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!(restored(&store).await, Some(dataset.newest()), "{fault:?}");
        // What could not be removed goes with the next change.
        dataset.append();
        run.round(&store).await.unwrap();
        assert_tidy(&store);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_dataset_that_changes_all_the_time_is_one_of_its_versions() {
    let store = Memory::new(Fault::None);
    let place_of = tempfile::tempdir().unwrap();
    let directory = place_of.path().to_owned();
    let (sender, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut dataset = Dataset::new(&directory);
        let (mut versions, mut step) = (BTreeSet::new(), 0);
        while ended.try_recv().is_err() {
            step += 1;
            match step % 23 {
                22 => dataset.rebuild(),
                5 | 11 | 17 => dataset.compact(),
                _ => dataset.append(),
            }
            versions.insert(dataset.newest());
            std::thread::sleep(Duration::from_millis(step % 13));
        }
        (dataset, versions)
    });
    let mut run = Run::new(place_of.path(), "1");
    let (mut copied, mut moved, mut seen) = (0, 0, Vec::new());
    while copied < 40 {
        match run.round(&store).await {
            Ok(true) => {
                copied += 1;
                seen.extend(restored(&store).await);
            }
            Ok(false) => {}
            Err(WriteError::Store(StoreError::Moved)) => moved += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(moved < 10_000);
    }
    sender.send(()).unwrap();
    let (dataset, versions) = thread.join().unwrap();
    assert!(seen.iter().all(|version| versions.contains(version)));
    assert!(run.round(&store).await.unwrap());
    assert_eq!(restored(&store).await, Some(dataset.newest()));
    assert_tidy(&store);
}

#[tokio::test]
async fn of_two_runs_the_later_one_takes_over_and_the_first_one_stops() {
    let store = Memory::new(Fault::None);
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut first, mut second) = (Dataset::new(one.path()), Dataset::new(two.path()));
    let (mut run, mut later) = (Run::new(one.path(), "1"), Run::new(two.path(), "2"));
    first.append();
    assert!(run.round(&store).await.unwrap());
    second.append();
    assert!(later.round(&store).await.unwrap());
    assert_eq!(restored(&store).await, Some(second.newest()));
    // A run without changes does no harm.
    assert!(run.round(&store).await.unwrap());
    first.append();
    assert!(matches!(run.round(&store).await, Err(WriteError::Taken)));
    second.append();
    assert!(later.round(&store).await.unwrap());
    assert_eq!(restored(&store).await, Some(second.newest()));
}

#[tokio::test]
async fn a_restart_on_the_same_disk_sends_the_description_only() {
    let store = Memory::new(Fault::None);
    let place_of = tempfile::tempdir().unwrap();
    let mut dataset = Dataset::new(place_of.path());
    (0..5).for_each(|_| dataset.append());
    Run::new(place_of.path(), "1").round(&store).await.unwrap();
    store.set(Fault::None);
    let mut run = Run::new(place_of.path(), "2");
    run.round(&store).await.unwrap();
    assert_eq!(store.operations(), 3, "it reads and writes the description, and lists the objects");
    run.round(&store).await.unwrap();
    assert_eq!(store.operations(), 3, "nothing has changed");
}

#[tokio::test]
async fn a_restore_is_complete_or_there_is_none() {
    let store = Memory::new(Fault::None);
    let place_of = tempfile::tempdir().unwrap();
    let mut dataset = Dataset::new(place_of.path());
    (0..5).for_each(|_| dataset.append());
    Run::new(place_of.path(), "1").round(&store).await.unwrap();
    store.set(Fault::None);
    restored(&store).await.unwrap();
    let operations = store.operations();
    let to = tempfile::tempdir().unwrap();
    for first in 0..operations {
        // What the attempts before have fetched is used.
        let target = to.path().join("dense");
        store.set(Fault::From(first));
        let failed = restore(&store, &place().key("p"), &target, Duration::ZERO).await;
        if failed.is_err() {
            assert!(!target.exists(), "killed at {first}");
            continue;
        }
        assert_eq!(newest_in(&target), dataset.newest());
        std::fs::remove_dir_all(&target).unwrap();
    }
    // An object is damaged, or gone.
    let key = store.keys().into_iter().find(|key| key.contains("/files/")).unwrap();
    store.set(Fault::None);
    let target = to.path().join("damaged");
    store.objects.lock().get_mut(&key).unwrap().0[0] ^= 1;
    let failed = restore(&store, &place().key("p"), &target, Duration::ZERO).await;
    assert!(matches!(failed, Err(StoreError::Damaged(_))) && !target.exists(), "{failed:?}");
    store.objects.lock().remove(&key);
    let failed = restore(&store, &place().key("p"), &target, Duration::ZERO).await;
    assert!(matches!(failed, Err(StoreError::Damaged(_))) && !target.exists(), "{failed:?}");
}

#[tokio::test]
async fn a_damaged_copy_is_written_anew() {
    let store = Memory::new(Fault::None);
    let place_of = tempfile::tempdir().unwrap();
    let mut dataset = Dataset::new(place_of.path());
    (0..3).for_each(|_| dataset.append());
    Run::new(place_of.path(), "1").round(&store).await.unwrap();
    let damage = |store: &Memory| {
        let mut objects = store.objects.lock();
        objects.iter_mut().filter(|(key, _)| key.contains("/files/")).for_each(|(_, (bytes, _))| bytes[0] ^= 1);
    };
    damage(&store);
    // What was computed again may have the same content.
    let mut run = Run::new(place_of.path(), "2");
    run.copy.distrust();
    run.round(&store).await.unwrap();
    assert_eq!(restored(&store).await, Some(dataset.newest()));
    // Someone removes everything. The next change makes it again.
    store.objects.lock().clear();
    dataset.append();
    while run.round(&store).await.is_err() {}
    assert_eq!(restored(&store).await, Some(dataset.newest()));
    assert_tidy(&store);
}

#[tokio::test]
async fn a_restore_waits_for_a_store_that_is_away() {
    let store = Memory::new(Fault::None);
    let place_of = tempfile::tempdir().unwrap();
    let mut dataset = Dataset::new(place_of.path());
    dataset.append();
    Run::new(place_of.path(), "1").round(&store).await.unwrap();
    store.set(Fault::Before(0));
    let target = place_of.path().join("restored");
    restore(&store, &place().key("p"), &target, Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!(newest_in(&target), dataset.newest());
}
