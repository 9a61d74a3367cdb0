//! Runs with a backup.

use super::catalog::UNREADABLE;
use super::*;
use crate::backup::tests::support::{Fault, Memory};

fn start(state: &Path, store: &Arc<Memory>) -> Result<Engine, RunError> {
    let plan = plan_of(&pipeline(r#"Listed(documents: {"a": "one"})"#));
    Engine::start(plan, Options { backup: Some(store.clone()), ..options(state) })
}

/// The directory of the index, and a run that copies this file in it.
fn copied(state: &Path, store: &Arc<Memory>, file: &str) -> PathBuf {
    let engine = start(state, store).unwrap();
    engine.wait_ready().unwrap();
    let index = state.join("corpora/docs/find");
    std::fs::create_dir_all(index.join("kept/versions")).unwrap();
    std::fs::write(index.join(file), "a model was called for this").unwrap();
    engine.join().unwrap();
    index
}

#[test]
fn an_index_whose_directory_is_missing_is_restored() {
    let (state, store) = (tempfile::tempdir().unwrap(), Arc::new(Memory::new(Fault::None)));
    let index = copied(state.path(), &store, "kept/versions/1");
    std::fs::remove_dir_all(&index).unwrap();
    let engine = start(state.path(), &store).unwrap();
    engine.wait_ready().unwrap();
    assert_eq!(std::fs::read(index.join("kept/versions/1")).unwrap(), b"a model was called for this");
    engine.join().unwrap();
}

/// Made again from nothing, it would replace its copy.
#[test]
fn a_restored_index_that_cannot_be_opened_stays() {
    let (state, store) = (tempfile::tempdir().unwrap(), Arc::new(Memory::new(Fault::None)));
    let index = copied(state.path(), &store, UNREADABLE);
    assert!(start(state.path(), &store).is_err());
    assert!(index.join(UNREADABLE).exists());
    std::fs::remove_dir_all(&index).unwrap();
    let keys = store.keys();
    assert!(start(state.path(), &store).is_err());
    assert!(index.join(UNREADABLE).exists());
    assert_eq!(store.keys(), keys);
}
