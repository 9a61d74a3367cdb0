//! A store in memory that fails when it is told to, and a dataset that changes as one of Lance does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;

use crate::backup::copy::{Place, Writer};
use crate::backup::write::{IndexCopy, Round, WriteError};
use crate::backup::{BackupStore, Body, StoreError, Tag, Tagged};
use crate::component::BackedUp;
use crate::metrics::Counter;

/// Which operations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// All from this one on, as after a crash.
    From(u64),
    /// This one, before it has done anything.
    Before(u64),
    /// This one, after it has been done: the reply is lost.
    After(u64),
}

#[derive(Debug)]
pub struct Memory {
    pub objects: Mutex<BTreeMap<String, (Vec<u8>, u64)>>,
    pub fault: Mutex<Fault>,
    operations: AtomicU64,
}

impl Memory {
    pub fn new(fault: Fault) -> Self {
        Self { objects: Mutex::default(), fault: Mutex::new(fault), operations: AtomicU64::new(0) }
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock() = fault;
        self.operations.store(0, Ordering::Relaxed);
    }

    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    pub fn keys(&self) -> BTreeSet<String> {
        self.objects.lock().keys().cloned().collect()
    }

    /// Does an operation, unless it is to fail.
    fn run<T>(&self, operation: impl FnOnce(&mut BTreeMap<String, (Vec<u8>, u64)>) -> T) -> Result<T, StoreError> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        let failed = || StoreError::Failed(format!("operation {number} fails"));
        match *self.fault.lock() {
            Fault::From(first) if number >= first => return Err(failed()),
            Fault::Before(at) if number == at => return Err(failed()),
            _ => {}
        }
        let done = operation(&mut self.objects.lock());
        if *self.fault.lock() == Fault::After(number) { Err(failed()) } else { Ok(done) }
    }
}

fn tag(number: u64) -> Tag {
    Tag { etag: Some(number.to_string()), version: None }
}

impl BackupStore for Memory {
    fn address(&self) -> &str {
        "memory"
    }

    fn read<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Tagged>, StoreError>> {
        let read = self.run(|objects| objects.get(key).map(|(bytes, number)| (bytes.clone(), tag(*number))));
        async { read }.boxed()
    }

    fn replace<'a>(
        &'a self,
        key: &'a str,
        bytes: Vec<u8>,
        expected: Option<&'a Tag>,
    ) -> BoxFuture<'a, Result<Tag, StoreError>> {
        let next = self.operations();
        let written = self.run(|objects| {
            if objects.get(key).map(|(_, number)| tag(*number)).as_ref() != expected {
                return Err(StoreError::Changed);
            }
            // Numbers of operations start again with each fault, so the content is part of the tag.
            let number = u64::from_le_bytes(blake3::hash(&bytes).as_bytes()[..8].try_into().unwrap()) ^ next;
            objects.insert(key.to_owned(), (bytes, number));
            Ok(tag(number))
        });
        async { written.flatten() }.boxed()
    }

    fn upload<'a>(&'a self, key: &'a str, bytes: u64, body: Body) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let content: Vec<Vec<u8>> = body.try_collect().await?;
            let content = content.concat();
            assert_eq!(content.len() as u64, bytes);
            self.run(|objects| drop(objects.insert(key.to_owned(), (content, 0))))
        }
        .boxed()
    }

    fn download<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Body>, StoreError>> {
        let found = self.run(|objects| objects.get(key).map(|(bytes, _)| bytes.clone()));
        async { Ok(found?.map(|bytes| stream::iter([Ok(bytes)]).boxed())) }.boxed()
    }

    fn list<'a>(&'a self, below: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        let below = format!("{below}/");
        let keys = self.run(|objects| objects.keys().filter(|key| key.starts_with(&below)).cloned().collect());
        async { keys }.boxed()
    }

    fn remove<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        let removed = self.run(|objects| drop(objects.remove(key)));
        async { removed }.boxed()
    }
}

pub const PART: BackedUp =
    BackedUp { directory: "set", versions: "set/versions", is_temporary: |name| name.starts_with('.') };

/// A dataset with versions: a manifest names the data files of its version.
pub struct Dataset {
    pub directory: PathBuf,
    version: u64,
    /// Data files of the newest version.
    files: BTreeSet<String>,
    made: u64,
}

impl Dataset {
    pub fn new(directory: &Path) -> Self {
        for below in ["set/versions", "set/data"] {
            std::fs::create_dir_all(directory.join(below)).unwrap();
        }
        Self { directory: directory.to_owned(), version: 0, files: BTreeSet::new(), made: 0 }
    }

    fn file(&mut self) -> String {
        // Names are never used again, as Lance's are not.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        self.made += 1;
        let name = format!("{:08}", NUMBER.fetch_add(1, Ordering::Relaxed));
        std::fs::write(self.directory.join("set/data").join(&name), name.repeat(1 + self.made as usize % 7)).unwrap();
        name
    }

    fn commit(&mut self) {
        self.version += 1;
        let text = self.files.iter().map(|name| format!("{name}\n")).collect::<String>();
        let (new, path) = (self.directory.join("set/versions/.new"), self.manifest(self.version));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, path).unwrap();
        // A file that each commit replaces.
        std::fs::write(self.directory.join("set/.hint"), self.version.to_string()).unwrap();
        std::fs::rename(self.directory.join("set/.hint"), self.directory.join("set/hint")).unwrap();
    }

    fn manifest(&self, version: u64) -> PathBuf {
        self.directory.join(format!("set/versions/{version:04}"))
    }

    pub fn append(&mut self) {
        let file = self.file();
        self.files.insert(file);
        self.commit();
    }

    /// One file instead of all; older versions are removed.
    pub fn compact(&mut self) {
        let (old, merged) = (std::mem::take(&mut self.files), self.file());
        self.files.insert(merged);
        self.commit();
        for version in 1..self.version {
            let _ = std::fs::remove_file(self.manifest(version));
        }
        for file in old {
            std::fs::remove_file(self.directory.join("set/data").join(file)).unwrap();
        }
    }

    /// Another dataset in its place, as after damage: its versions have the numbers of the old one.
    pub fn rebuild(&mut self) {
        let (path, aside) = (self.directory.join("set"), self.directory.join(format!("set.damaged-{}", self.made)));
        std::fs::rename(path, aside).unwrap();
        let made = self.made;
        *self = Self { made, ..Self::new(&self.directory.clone()) };
        self.append();
    }

    /// The data files of the newest version.
    pub fn newest(&self) -> BTreeSet<String> {
        self.files.clone()
    }
}

/// The newest version in a directory: all of its files are there, with their content.
pub fn newest_in(directory: &Path) -> BTreeSet<String> {
    let versions = std::fs::read_dir(directory.join("set/versions")).unwrap();
    let newest = versions.map(|entry| entry.unwrap().path()).max().expect("a version");
    let files: BTreeSet<String> = std::fs::read_to_string(newest).unwrap().lines().map(str::to_owned).collect();
    for file in &files {
        let content = std::fs::read_to_string(directory.join("set/data").join(file)).unwrap();
        assert!(content.starts_with(file) && content.len().is_multiple_of(file.len()), "{file}: {content}");
    }
    files
}

pub(in crate::backup) fn writer(state: &str, run: &str) -> Writer {
    Writer { state: state.into(), run: run.into() }
}

pub(in crate::backup) fn place() -> Place {
    Place { process: 0, corpus: "docs".into(), index: "dense".into() }
}

/// The copy of a dataset by one run.
pub struct Run {
    pub(in crate::backup) copy: IndexCopy,
    writer: Writer,
}

impl Run {
    pub fn new(directory: &Path, run: &str) -> Self {
        Self { copy: IndexCopy::new(place(), directory.to_owned(), PART), writer: writer("state", run) }
    }

    pub(in crate::backup) async fn round(&mut self, store: &Memory) -> Result<bool, WriteError> {
        let sent = Counter::default();
        self.copy.round(&Round { store, pipeline: "p", writer: &self.writer, sent: &sent }).await
    }
}
