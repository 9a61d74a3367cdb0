use futures::stream;
use turnflow_engine::backup::BackupStore;

use super::*;
use crate::bucket::tests::bucket;
use crate::servers::{S3, Server};
use crate::testing::runtime;

fn body(pieces: Vec<Result<Vec<u8>, StoreError>>) -> Body {
    stream::iter(pieces).boxed()
}

async fn content(store: &ObjectBackup, key: &str) -> Option<Vec<u8>> {
    let body = store.download(key).await.unwrap()?;
    Some(body.try_collect::<Vec<_>>().await.unwrap().concat())
}

/// What the engine expects of a store.
async fn keeps_what_is_expected(store: &ObjectBackup) {
    assert!(store.list("p").await.unwrap().is_empty());
    assert!(store.read("p/a/copy.json").await.unwrap().is_none());
    assert!(store.download("p/a/copy.json").await.unwrap().is_none());
    store.remove("p/a/copy.json").await.unwrap();
    // A description is replaced only by who knows the present one.
    let first = store.replace("p/a/copy.json", b"one".to_vec(), None).await.unwrap();
    let again = store.replace("p/a/copy.json", b"two".to_vec(), None).await;
    assert!(matches!(again, Err(StoreError::Changed)), "{again:?}");
    assert_eq!(store.read("p/a/copy.json").await.unwrap(), Some((b"one".to_vec(), first.clone())));
    let second = store.replace("p/a/copy.json", b"three".to_vec(), Some(&first)).await.unwrap();
    let late = store.replace("p/a/copy.json", b"four".to_vec(), Some(&first)).await;
    assert!(matches!(late, Err(StoreError::Changed)), "{late:?}");
    assert_eq!(store.read("p/a/copy.json").await.unwrap(), Some((b"three".to_vec(), second.clone())));
    // Objects of all sizes; a large one has several parts.
    let large: Vec<u8> = (0..17 << 20).map(|at: usize| (at / 1000) as u8).collect();
    let pieces = large.chunks(1 << 20).map(|piece| Ok(piece.to_vec())).collect();
    store.upload("p/a/files/large", large.len() as u64, body(pieces)).await.unwrap();
    assert!(content(store, "p/a/files/large").await.unwrap() == large);
    store.upload("p/a/files/small", 4, body(vec![Ok(b"sm".to_vec()), Ok(b"al".to_vec())])).await.unwrap();
    store.upload("p/a/files/empty", 0, body(Vec::new())).await.unwrap();
    assert_eq!(content(store, "p/a/files/small").await.unwrap(), b"smal");
    assert_eq!(content(store, "p/a/files/empty").await.unwrap(), b"");
    // A file that changes while it is read leaves nothing.
    for bytes in [10, 20 << 20] {
        let pieces = vec![Ok(vec![1; 9]), Err(StoreError::Moved)];
        let failed = store.upload("p/a/files/moved", bytes, body(pieces)).await;
        assert!(matches!(failed, Err(StoreError::Moved)), "{failed:?}");
        assert!(content(store, "p/a/files/moved").await.is_none());
    }
    let mut keys = store.list("p").await.unwrap();
    keys.sort();
    assert_eq!(keys, ["p/a/copy.json", "p/a/files/empty", "p/a/files/large", "p/a/files/small"]);
    assert_eq!(store.list("p/a/files").await.unwrap().len(), 3);
    assert!(store.list("p/b").await.unwrap().is_empty());
    store.remove("p/a/copy.json").await.unwrap();
    let gone = store.replace("p/a/copy.json", b"five".to_vec(), Some(&second)).await;
    assert!(matches!(gone, Err(StoreError::Changed)), "{gone:?}");
    store.remove("p/a/files/small").await.unwrap();
    assert_eq!(store.list("p").await.unwrap().len(), 2);
}

#[test]
fn a_directory_keeps_a_backup() {
    let place = tempfile::tempdir().unwrap();
    let url = format!("file://{}/deep/backup", place.path().display());
    // A disk that is not mounted must not pass for an empty backup.
    assert!(ObjectBackup::open(&url).unwrap_err().to_string().contains("no such directory"));
    std::fs::create_dir_all(place.path().join("deep/backup")).unwrap();
    runtime().block_on(keeps_what_is_expected(&ObjectBackup::open(&url).unwrap()));
}

#[test]
fn a_bucket_keeps_a_backup() {
    let Some(server) = Server::start(S3) else { return };
    let store = bucket(server.port, "copies");
    let of = |prefix: &str| {
        let (address, store, prefix) = (format!("s3://copies/{prefix}"), store.clone(), Key::from(prefix));
        ObjectBackup { address, store, prefix }
    };
    runtime().block_on(async {
        keeps_what_is_expected(&of("a/b")).await;
        keeps_what_is_expected(&of("")).await;
    });
}

#[test]
fn a_bucket_that_is_missing_refuses_and_a_server_that_is_away_fails() {
    let Some(mut server) = Server::start(S3) else { return };
    let other = bucket(server.port, "other");
    let store = crate::bucket::tests::client(server.port, "missing");
    let missing = ObjectBackup { address: "s3://missing".into(), store, prefix: Key::default() };
    let other = ObjectBackup { address: "s3://other".into(), store: other, prefix: Key::default() };
    runtime().block_on(async {
        assert!(matches!(missing.list("p").await, Err(StoreError::Refused(_))));
        let refused = missing.replace("p/copy.json", Vec::new(), None).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
        server.down();
        let failed = other.read("p").await;
        assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
    });
}

#[test]
fn urls_are_checked() {
    for url in ["", "backup", "/backup", "https://example.org/x", "s3://", "file://host/x"] {
        let error = ObjectBackup::open(url).unwrap_err().to_string();
        assert!(error.contains("cannot keep a backup"), "{error}");
    }
    for url in ["s3://me:secret@bucket/x", "s3://me:secret@bucket", "az://container/x?sig=secret"] {
        let error = ObjectBackup::open(url).unwrap_err().to_string();
        assert!(error.contains("come from the environment") && !error.contains("secret@"), "{error}");
        assert!(!error.contains("sig="), "{error}");
    }
}
