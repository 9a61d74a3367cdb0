//! Starts of a cluster that serve what an earlier run has published until the source is read.

use super::members::Members;
use super::stored::{Place, asked, state_of};
use super::*;
use crate::corpus::CorpusState;
use crate::state::{PASSAGES, passages_of};

/// A place whose processes have state directories of their own.
impl Place {
    /// Writes this number of documents; every third has this version.
    fn write_version(&self, count: usize, version: usize) {
        let text = |number: usize| match number % 3 {
            0 => format!("text {number} of version {version}\nmore of {number}"),
            _ => format!("text {number}"),
        };
        let all: BTreeMap<String, String> = (0..count).map(|number| (format!("d{number}"), text(number))).collect();
        std::fs::write(self.path("d.json"), serde_json::to_vec(&all).unwrap()).unwrap();
    }

    fn start_all(&self, processes: usize) -> Members {
        self.start_all_with(&self.pipeline(), processes)
    }

    fn start_all_with(&self, pipeline: &str, processes: usize) -> Members {
        Members::start(plan_of, pipeline, processes, |process| {
            let (answer, stays, sources, corpora) = (true, true, TurnSources::None, Mode::Follow);
            let state = self.path(&process.to_string());
            Options { answer, stays, sources, sinks: false, corpora, ..options(&state) }
        })
    }

    /// The versions of the passages that `epoch.json` of a process names.
    fn versions(&self, process: usize) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.path(&format!("{process}/epoch.json"))).unwrap_or_default();
        let epoch: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let versions = epoch["indexes"]["docs"].as_object().into_iter().flatten();
        let stored = versions.filter(|(name, _)| name.starts_with("passages.lance"));
        stored.map(|(name, version)| (name.clone(), version.as_u64().unwrap())).collect()
    }

    /// Waits until the source is read and the version of each process is known.
    fn is_ready(&self, cluster: &Members) {
        self.may_be_read(true);
        cluster.engines.iter().for_each(|engine| engine.wait_ready().unwrap());
        // Passages that are just being stored anew are noted a little later; a start before that reads the source.
        until("the passages are stored and noted", || {
            let noted = self.versions(0);
            let others = (1..cluster.engines.len()).map(|process| (process, self.versions(process)));
            let is_noted = |(process, own): (usize, BTreeMap<String, u64>)| {
                noted.contains_key(&passages_of(process)) && noted.get(&passages_of(process)) == own.get(PASSAGES)
            };
            noted.contains_key(PASSAGES) && { others }.all(is_noted)
        });
        self.may_be_read(false);
    }
}

/// The texts that the processes serve, by passage. Each is served by one process.
pub(super) fn texts(cluster: &Members) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for engine in &cluster.engines {
        let current = engine.epochs().current();
        let part: Arc<Texts> = current.corpora["docs"].part("find").unwrap();
        for (id, text) in &*part {
            assert!(all.insert(id.to_string(), text.to_string()).is_none(), "{id} is served twice");
        }
    }
    all
}

/// Waits until callers are answered in all processes; returns the epoch.
fn epoch_of_callers(cluster: &Members) -> u64 {
    let epochs: BTreeSet<u64> = cluster.engines.iter().map(asked).collect();
    assert_eq!(epochs.len(), 1, "{epochs:?}");
    epochs.into_iter().next().unwrap()
}

#[test]
fn callers_of_all_processes_are_answered_before_the_source_is_read() {
    let place = Place::new();
    place.write_version(40, 1);
    let cluster = place.start_all(3);
    place.is_ready(&cluster);
    let first = texts(&cluster);
    assert_eq!(first.len(), 40 + 14);
    cluster.stop();
    // Some documents have changed, and one is gone.
    for version in 2..4 {
        place.write_version(39, version);
        let cluster = place.start_all(3);
        let epoch = epoch_of_callers(&cluster);
        assert_eq!(state_of(&cluster.engines[0]), CorpusState::Stored { epoch });
        let counts = |engine: &Engine| {
            let view = engine.epochs().current().corpora["docs"].clone();
            (view.documents, view.chunks)
        };
        let stored = texts(&cluster);
        match version {
            2 => assert_eq!(stored, first),
            // The changes of the run before are stored.
            _ => assert_eq!((stored.len(), &*stored["d3#0"]), (39 + 13, "text 3 of version 2")),
        }
        assert!(cluster.engines.iter().all(|engine| counts(engine).1 == stored.len()), "each knows how many there are");
        assert!(!cluster.engines[1].wait_ready_for(Duration::from_millis(20)).unwrap(), "turns of sources wait");
        place.is_ready(&cluster);
        until("the epoch of the changes", || epoch_of_callers(&cluster) > epoch);
        let now = texts(&cluster);
        assert_eq!((now.len(), now["d3#0"].clone()), (39 + 13, format!("text 3 of version {version}")));
        assert!(!now.contains_key("d39#0"));
        cluster.stop();
    }
    // Another number of processes has other parts: the source is read first.
    for processes in [2, 1, 3] {
        let cluster = place.start_all(processes);
        assert!(!cluster.engines[0].wait_ready_for(Duration::from_millis(100)).unwrap());
        assert_eq!(state_of(&cluster.engines[0]), CorpusState::Loading, "{processes}");
        place.is_ready(&cluster);
        assert_eq!(texts(&cluster).len(), 39 + 13);
        cluster.stop();
        let again = place.start_all(processes);
        let epoch = epoch_of_callers(&again);
        assert_eq!(state_of(&again.engines[0]), CorpusState::Stored { epoch });
        assert_eq!(texts(&again).len(), 39 + 13);
        again.stop();
    }
}

#[test]
fn a_part_that_is_not_that_of_the_epoch_is_not_served() {
    let place = Place::new();
    place.write_version(30, 1);
    let cluster = place.start_all(2);
    place.is_ready(&cluster);
    let file = place.path("1/corpora/docs/passages.lance");
    let older = (std::fs::read(&file).unwrap(), std::fs::read(place.path("1/epoch.json")).unwrap());
    cluster.stop();
    let (newer, lost) = (std::fs::read(&file).unwrap(), place.path("1/epoch.json"));
    for broken in 0..3 {
        match broken {
            // Process 1 has lost its disk.
            0 => std::fs::remove_dir_all(place.path("1")).unwrap(),
            // Its passages are damaged.
            1 => std::fs::write(&file, &newer[..newer.len() / 2]).unwrap(),
            // It has what it had before a change.
            _ => {
                std::fs::write(&file, &older.0).unwrap();
                std::fs::write(&lost, &older.1).unwrap();
            }
        }
        place.write_version(30, 2 + broken);
        let cluster = place.start_all(2);
        assert!(!cluster.engines[0].wait_ready_for(Duration::from_millis(100)).unwrap());
        assert_eq!(state_of(&cluster.engines[0]), CorpusState::Loading, "{broken}");
        place.is_ready(&cluster);
        let now = texts(&cluster);
        assert_eq!((now.len(), now["d3#0"].clone()), (40, format!("text 3 of version {}", 2 + broken)));
        cluster.stop();
    }
}

#[test]
fn a_reload_before_the_source_is_read_keeps_the_parts_of_all_processes() {
    for feed in [false, true] {
        let place = Place::new();
        place.write_version(30, 1);
        let found = "\"found\": Find(input: \"turns\", corpus: \"docs\")";
        let without = place.pipeline().replace(found, "");
        assert_ne!(without, place.pipeline());
        let cluster = place.start_all_with(&without, 3);
        place.is_ready(&cluster);
        cluster.stop();
        place.write_version(29, 2);
        let cluster = place.start_all_with(&without, 3);
        let epoch = epoch_of_callers(&cluster);
        assert_eq!(state_of(&cluster.engines[0]), CorpusState::Stored { epoch });
        // An index is added; the second time, the corpus is also cut anew, so the reload waits for the source.
        let fields = "chunk: Lines(), fields: {\"length\": Integer}";
        let other = if feed { place.pipeline().replace("chunk: Lines()", fields) } else { place.pipeline() };
        place.may_be_read(feed);
        cluster.reload(&other);
        if !feed {
            until("the epoch of the reload", || epoch_of_callers(&cluster) > epoch);
            let now = texts(&cluster);
            assert_eq!((now.len(), &*now["d3#0"]), (40, "text 3 of version 1"));
        }
        place.is_ready(&cluster);
        until("the changes", || texts(&cluster).get("d3#0").is_some_and(|text| text == "text 3 of version 2"));
        place.is_ready(&cluster);
        assert_eq!(texts(&cluster).len(), 39);
        cluster.stop();
        let cluster = place.start_all_with(&other, 3);
        let epoch = epoch_of_callers(&cluster);
        assert_eq!(state_of(&cluster.engines[0]), CorpusState::Stored { epoch });
        assert_eq!(texts(&cluster).len(), 39);
        cluster.stop();
    }
}

/// The directory of one process alone is not taken for the whole.
#[test]
fn a_part_alone_is_not_served() {
    let place = Place::new();
    place.write_version(30, 1);
    let cluster = place.start_all(2);
    place.is_ready(&cluster);
    cluster.stop();
    std::fs::remove_dir_all(place.path("0")).unwrap();
    std::fs::rename(place.path("1"), place.path("0")).unwrap();
    let alone = place.start_all(1);
    assert!(!alone.engines[0].wait_ready_for(Duration::from_millis(100)).unwrap());
    assert_eq!(state_of(&alone.engines[0]), CorpusState::Loading);
    place.is_ready(&alone);
    assert_eq!(texts(&alone).len(), 40);
    alone.stop();
}

/// A kill may come when another process has prepared more than the first one has published.
#[test]
fn a_process_that_is_ahead_serves_what_the_epoch_has() {
    let place = Place::new();
    place.write_version(30, 1);
    let cluster = place.start_all(2);
    place.is_ready(&cluster);
    let first = texts(&cluster);
    cluster.stop();
    let files = ["0/epoch.json", "0/corpora/docs/passages.lance"].map(|name| place.path(name));
    let before = files.clone().map(|path| std::fs::read(path).unwrap());
    place.write_version(29, 2);
    let cluster = place.start_all(2);
    place.is_ready(&cluster);
    until("the changes", || texts(&cluster).len() == 39);
    cluster.stop();
    for (path, bytes) in files.iter().zip(&before) {
        std::fs::write(path, bytes).unwrap();
    }
    let cluster = place.start_all(2);
    let epoch = epoch_of_callers(&cluster);
    assert_eq!(state_of(&cluster.engines[0]), CorpusState::Stored { epoch });
    assert_eq!(texts(&cluster), first);
    place.is_ready(&cluster);
    until("the changes", || texts(&cluster).len() == 39);
    cluster.stop();
}
