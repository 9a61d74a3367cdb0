//! Kills under load, and clients that read slowly.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{PIPELINE, Server};
use crate::support::PATIENCE;

/// What a writer knows of its documents: the text that is acknowledged, or `None` for a deletion. A document whose last
/// request was not answered may have either state and is left out.
type Known = BTreeMap<String, Option<String>>;

/// Requests of all writers that are acknowledged before a kill.
const ACKNOWLEDGED: usize = 100;

/// Puts, replaces and deletes documents, and asks, until the server is gone. Counts what is acknowledged.
async fn write(
    client: reqwest::Client,
    url: String,
    writer: usize,
    round: usize,
    mut known: Known,
    acknowledged: Arc<AtomicUsize>,
) -> Known {
    for number in 0.. {
        let id = format!("w{writer}/{}", number % 20);
        let at = format!("{url}/v1/documents/{id}");
        let text = format!("Writer {writer} wrote note{writer}x{round}x{number}.");
        let is_deletion = number % 7 == 6;
        let request = if is_deletion { client.delete(&at) } else { client.put(&at).json(&json!({ "text": text })) };
        let before = known.remove(&id);
        match request.send().await {
            Ok(response) => {
                let status = response.status().as_u16();
                let is_absent = status == 404 && is_deletion && before.is_none_or(|before| before.is_none());
                assert!(status == 200 || is_absent, "{id}: {status}");
                known.insert(id, Some(text).filter(|_| !is_deletion));
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Err(_) => break,
        }
        let question =
            json!({ "messages": [{ "role": "user", "content": format!("What did writer {writer} write?") }] });
        let _ = client.post(format!("{url}/v1/chat/completions")).json(&question).send().await;
    }
    known
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_lose_no_document_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (rate: 0.0))").unwrap();
    let mut known: Vec<Known> = vec![Known::new(); 4];
    for round in 0..4 {
        let mut server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[]);
        for (id, text) in known.iter().flatten() {
            let (status, body) = server.send("GET", &format!("/v1/documents/{id}"), None).await;
            match text {
                Some(text) => assert_eq!((status, &body["text"]), (200, &json!(text)), "{round} {id}"),
                None => assert_eq!(status, 404, "{round} {id}: {body}"),
            }
        }
        if round == 3 {
            // The index has them too, and nothing of what was replaced.
            let marked = server.ok("PUT", "/v1/documents/last?wait=true", Some(json!({ "text": "Last." }))).await;
            assert_eq!(marked["published"], true);
            for (id, text) in known.iter().flatten().filter_map(|(id, text)| Some((id, text.as_ref()?))) {
                let word = text.trim_end_matches('.').rsplit(' ').next().unwrap();
                let found = server.ok("GET", &format!("/v1/search?query={word}"), None).await;
                let hits = found["hits"].as_array().unwrap();
                assert!(hits.len() == 1 && hits[0]["document"] == json!(id), "{id}: {found}");
            }
            break;
        }
        let acknowledged = Arc::<AtomicUsize>::default();
        let writers: Vec<_> = std::mem::take(&mut known)
            .into_iter()
            .enumerate()
            .map(|(at, of)| {
                let (client, url) = (server.client.clone(), server.url.clone());
                tokio::spawn(write(client, url, at, round, of, acknowledged.clone()))
            })
            .collect();
        let enough = async {
            while acknowledged.load(Ordering::SeqCst) < ACKNOWLEDGED {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, enough).await.unwrap();
        server.child.kill().unwrap();
        for writer in writers {
            known.push(writer.await.unwrap());
        }
    }
}

/// Streams that nobody reads, and one that is read a byte at a time, hold up no other client.
#[tokio::test]
async fn a_client_that_reads_slowly_slows_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let long: String = (0..4000).map(|number| format!("Sentence {number} is about ferries. ")).collect();
    server.ok("PUT", "/v1/documents/long?wait=true", Some(json!({ "text": long }))).await;
    server.fill().await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let turn = json!({ "conversation_id": "slow", "turn": 1, "speaker": "user", "text": "ferries" });
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = turn.to_string();
        let head = "POST /v1/turns?trace=true HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nConnection: close\r\n";
        let length = body.len();
        let request = format!("{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        slow.push(stream);
    }
    let mut read = Vec::new();
    let mut byte = [0];
    for _ in 0..30 {
        slow[0].read_exact(&mut byte).unwrap();
        read.push(byte[0]);
        let answer = server.chat("What costs a ticket?").await;
        assert!(super::text(&answer).contains("four euros"), "{answer}");
    }
    // The slow client gets all of its answer.
    slow[0].read_to_end(&mut read).unwrap();
    let got = String::from_utf8(read).unwrap();
    assert!(got.starts_with("HTTP/1.1 200") && got.contains("event:"), "{got}");
    let last =
        got.rsplit("data: ").find_map(|data| serde_json::from_str::<Value>(data.split("\n\n").next()?.trim()).ok());
    assert!(last.is_some(), "{got}");
}
