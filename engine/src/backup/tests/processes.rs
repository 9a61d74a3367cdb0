//! Several processes, and what becomes of the copies of those that are gone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::support::{Dataset, Fault, Memory, PART, newest_in};
use crate::backup::Backup;
use crate::cluster::Shape;
use crate::metrics::Metrics;
use crate::state::StateDirectory;

fn shape(process: usize, processes: usize) -> Shape {
    Shape { process, processes, workers: 1 }
}

/// A process with a state directory.
struct Process {
    state: StateDirectory,
    backup: Arc<Backup>,
    metrics: Metrics,
}

impl Process {
    fn start(store: &Arc<Memory>, state: &Path, shape: Shape) -> Self {
        let state = StateDirectory::open(state).unwrap();
        let metrics = Metrics::default();
        let backup = Backup::open(store.clone(), &state, "p", shape, &metrics).unwrap();
        Self { state, backup, metrics }
    }

    /// Opens an index. Returns whether it was restored.
    async fn open(&self, corpus: &str) -> bool {
        let directory = self.state.index_path(corpus, "dense");
        self.backup.open_index(corpus, "dense", &directory, PART, true).await.unwrap()
    }

    fn dataset(&self, corpus: &str) -> Dataset {
        Dataset::new(&self.state.index_path(corpus, "dense"))
    }

    /// Copies everything, and ends.
    async fn end(self) -> String {
        tokio::spawn(self.backup.clone().work());
        self.finish().await
    }

    /// Waits for the last round.
    async fn finish(self) -> String {
        let handle = tokio::runtime::Handle::current();
        let backup = self.backup.clone();
        tokio::task::spawn_blocking(move || backup.finish(&handle, true)).await.unwrap();
        self.metrics.to_text()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_process_gets_the_copies_of_processes_that_are_gone() {
    let store = Arc::new(Memory::new(Fault::None));
    let disks = tempfile::tempdir().unwrap();
    let mut newest = Vec::new();
    for number in 0..2 {
        let process = Process::start(&store, &disks.path().join(number.to_string()), shape(number, 2));
        assert!(!process.open("docs").await);
        let mut dataset = process.dataset("docs");
        dataset.append();
        newest.push(dataset.newest());
        let metrics = process.end().await;
        assert!(!metrics.contains("turnflow_backup_complete_time_seconds{component=\"backup\"} 0"), "{metrics}");
    }
    // Both disks are lost, and one process is left.
    let alone = Process::start(&store, &disks.path().join("new"), shape(0, 1));
    assert!(alone.open("docs").await);
    let own = alone.state.index_path("docs", "dense");
    assert_eq!(newest_in(&own), newest[0]);
    assert_eq!(alone.backup.restore_former("docs", "dense").await, [1]);
    assert_eq!(alone.backup.restore_former("other", "dense").await, [0_usize; 0]);
    let former = StateDirectory::of_process(alone.state.path(), 1).join("corpora/docs/dense");
    assert_eq!(newest_in(&former), newest[1]);
    let of_former = |store: &Memory| store.keys().iter().any(|key| key.starts_with("p/process-1/"));
    // The copy of the former process stays until the own one has its encodings.
    store.set(Fault::From(0));
    alone.backup.forget_former(&[former]);
    assert!(of_former(&store));
    store.set(Fault::None);
    alone.end().await;
    assert!(!of_former(&store), "{:?}", store.keys());
    assert!(store.keys().contains("p/process-0/docs/dense/copy.json"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_an_obsolete_process_stays_while_the_own_index_has_nothing() {
    let store = Arc::new(Memory::new(Fault::None));
    let disks = tempfile::tempdir().unwrap();
    let process = Process::start(&store, &disks.path().join("1"), shape(1, 2));
    process.open("docs").await;
    process.dataset("docs").append();
    process.end().await;
    let alone = Process::start(&store, &disks.path().join("0"), shape(0, 1));
    alone.open("docs").await;
    assert_eq!(alone.backup.restore_former("docs", "dense").await, [1]);
    alone.backup.forget_former(&[StateDirectory::of_process(alone.state.path(), 1).join("corpora/docs/dense")]);
    alone.end().await;
    assert!(store.keys().contains("p/process-1/docs/dense/copy.json"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_was_removed_leaves_the_backup_and_one_that_was_lost_does_not() {
    let store = Arc::new(Memory::new(Fault::None));
    let disks = tempfile::tempdir().unwrap();
    let disk = disks.path().join("0");
    let process = Process::start(&store, &disk, Shape::alone(1));
    for corpus in ["docs", "old"] {
        process.open(corpus).await;
        process.dataset(corpus).append();
    }
    process.end().await;
    // The pipeline no longer has the corpus `old`. A new disk has nothing of it either.
    let process = Process::start(&store, &disks.path().join("new"), Shape::alone(1));
    assert!(process.open("docs").await);
    process.end().await;
    assert!(store.keys().iter().any(|key| key.contains("/old/")));
    // On the disk that had it, it is still there.
    let process = Process::start(&store, &disk, Shape::alone(1));
    process.open("docs").await;
    process.end().await;
    assert!(store.keys().iter().any(|key| key.contains("/old/")));
    std::fs::remove_dir_all(disk.join("corpora/old")).unwrap();
    let process = Process::start(&store, &disk, Shape::alone(1));
    process.open("docs").await;
    process.end().await;
    assert!(!store.keys().iter().any(|key| key.contains("/old/")), "{:?}", store.keys());
    assert!(store.keys().iter().any(|key| key.contains("/docs/")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_with_its_indexes_needs_no_store() {
    let store = Arc::new(Memory::new(Fault::From(0)));
    let disks = tempfile::tempdir().unwrap();
    let process = Process::start(&store, disks.path(), Shape::alone(1));
    process.dataset("docs").append();
    assert!(!process.open("docs").await);
    tokio::spawn(process.backup.clone().work());
    // A reload that adds an index whose copy cannot be read fails, and does not replace the copy.
    let missing = process.state.index_path("new", "dense");
    assert!(process.backup.open_index("new", "dense", &missing, PART, false).await.is_err());
    store.set(Fault::None);
    let metrics = process.finish().await;
    assert!(store.keys().contains("p/process-0/docs/dense/copy.json"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_whose_opening_was_cancelled_is_copied_once_it_is_opened() {
    let store = Arc::new(Memory::new(Fault::From(0)));
    let disks = tempfile::tempdir().unwrap();
    let process = Process::start(&store, disks.path(), Shape::alone(1));
    let missing = process.state.index_path("docs", "dense");
    let opening = process.backup.open_index("docs", "dense", &missing, PART, true);
    assert!(tokio::time::timeout(Duration::from_millis(50), opening).await.is_err());
    store.set(Fault::None);
    assert!(!process.open("docs").await);
    process.dataset("docs").append();
    let backup = process.backup.clone();
    process.end().await;
    assert!(store.keys().contains("p/process-0/docs/dense/copy.json"), "{:?}", store.keys());
    let status = backup.status();
    assert!(status.complete_s.is_some() && status.bytes > 0 && status.problem.is_none(), "{status:?}");
}
