//! Documents that were put over HTTP are in the backup: copied while the server runs, and restored when the disk is lost.

use std::fs;

use super::*;

/// A server whose backup is in the folder `copies`.
fn served(directory: &Path) -> Server {
    let copies = directory.join("copies");
    fs::create_dir_all(&copies).unwrap();
    Server::start(directory, PIPELINE, &["--backup", &format!("file://{}", copies.display())], &[])
}

/// The ids of all documents.
async fn ids(server: &Server) -> Vec<String> {
    let list = server.ok("GET", "/v1/documents?limit=1000", None).await;
    list["data"].as_array().unwrap().iter().map(|document| document["id"].as_str().unwrap().to_owned()).collect()
}

/// Waits until all changes are copied.
async fn copied(server: &Server, directory: &Path, wanted: usize) {
    let parts = directory.join("state/components/docs/documents-copy/parts");
    let written = || {
        let list = fs::read_to_string(parts.join("current/list.json")).unwrap_or_default();
        let names: Vec<String> = serde_json::from_str(&list).unwrap_or_default();
        let texts = names.iter().map(|name| fs::read_to_string(parts.join(name)).unwrap_or_default());
        texts.map(|text| text.lines().count()).sum::<usize>()
    };
    let list = parts.join("current/list.json");
    until(async || written() == wanted).await;
    let at = fs::metadata(&list).unwrap().modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    until(async || {
        let status = server.ok("GET", "/v1/pipelines/demo/status", None).await;
        assert_eq!(status["backup"]["problem"], Value::Null, "{status}");
        status["backup"]["complete_s"].as_u64().unwrap_or_default() > at
    })
    .await;
}

#[tokio::test]
async fn documents_are_copied_while_they_change_and_restored_when_the_disk_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let state = path.join("state");
    let server = served(path);
    let put = async |server: &Server, id: &str, text: &str| {
        let body = json!({ "title": "Island", "text": text, "metadata": { "lang": "en" } });
        server.ok("PUT", &format!("/v1/documents/{id}?wait=true"), Some(body)).await
    };
    for number in 0..30 {
        put(&server, &format!("d{number:02}"), &format!("Ferry {number} leaves at ten. {}", "word ".repeat(3000)))
            .await;
    }
    put(&server, "notes/lamp.md", "The lamp of the keeper.").await;
    server.ok("DELETE", "/v1/documents/d07?wait=true", None).await;
    copied(&server, path, 30).await;
    let before = server.ok("GET", "/v1/documents/d03", None).await;
    // The disk is lost, without a stop.
    drop(server);
    fs::remove_dir_all(&state).unwrap();
    let server = served(path);
    let found = ids(&server).await;
    assert_eq!((found.len(), found.contains(&"d07".to_owned())), (30, false), "{found:?}");
    assert_eq!(server.ok("GET", "/v1/documents/d03", None).await, before);
    server.until_found("keeper", 1).await;
    // What a stop leaves is complete: the last change, and that everything was deleted.
    put(&server, "late", "The last boat.").await;
    let mut server = server;
    server.signal(libc::SIGTERM);
    assert!(server.ended().await.success());
    fs::remove_dir_all(&state).unwrap();
    let server = served(path);
    assert!(ids(&server).await.contains(&"late".to_owned()));
    // Documents that are there are not replaced by older ones of the copy.
    put(&server, "late", "The very last boat.").await;
    drop(server);
    let server = served(path);
    assert_eq!(server.ok("GET", "/v1/documents/late", None).await["text"], "The very last boat.");
    for id in ids(&server).await {
        server.ok("DELETE", &format!("/v1/documents/{}", id.replace('/', "%2F")), None).await;
    }
    copied(&server, path, 0).await;
    drop(server);
    let server = served(path);
    assert_eq!(ids(&server).await, Vec::<String>::new(), "what was deleted does not come back");
}

#[tokio::test]
async fn a_damaged_copy_of_documents_is_never_replaced_by_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = served(path);
    server.ok("PUT", "/v1/documents/a?wait=true", Some(json!({ "text": "The ferry." }))).await;
    copied(&server, path, 1).await;
    drop(server);
    fs::remove_dir_all(path.join("state")).unwrap();
    let objects = path.join("copies/demo/process-0/docs/documents-copy/files");
    let damaged: Vec<PathBuf> = fs::read_dir(&objects).unwrap().map(|entry| entry.unwrap().path()).collect();
    damaged.iter().for_each(|object| fs::write(object, "damaged").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    let url = format!("file://{}", path.join("copies").display());
    command.current_dir(path).args([
        "serve",
        "pipeline.ron",
        "--state",
        "state",
        "--listen",
        "127.0.0.1:0",
        "--backup",
        &url,
    ]);
    let ended = command.output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{told}");
    assert!(
        told.contains("documents that were put into the corpus `docs`") && told.contains("has none of them"),
        "{told}"
    );
    assert_eq!(fs::read(&damaged[0]).unwrap(), b"damaged");
}
