//! A turn goes on when its client is gone, and is read again.

use serde_json::json;

use super::first::{embedder, files};
use super::*;

const TOKENS: (&str, &str) = ("TURNFLOW_TOKENS", "ann=secret-a,bob=secret-b");

impl Server {
    async fn send_as(&self, token: &str, method: &str, path: &str, body: Option<Value>) -> reqwest::Response {
        let request = self.client.request(method.parse().unwrap(), format!("{}{path}", self.url)).bearer_auth(token);
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        request.send().await.unwrap()
    }
}

fn question() -> Option<Value> {
    Some(json!({ "conversation_id": "c", "turn": 1, "speaker": "user", "text": "Ferry 7?" }))
}

/// A server that is ready, and the permits of its model, of which it has none left.
async fn ready(directory: &Path) -> (Server, std::sync::mpsc::Sender<()>) {
    let (url, permits) = embedder();
    let server = Server::start(directory, &files(directory, &url), &[], &[TOKENS]);
    permits.send(()).unwrap();
    permits.send(()).unwrap();
    until(async || server.client.get(format!("{}/readyz", server.url)).send().await.unwrap().status() == 200).await;
    (server, permits)
}

#[tokio::test]
async fn a_turn_goes_on_without_its_client_and_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let (server, permits) = ready(directory.path()).await;
    let path = "/v1/turns?stream=true&trace=true&resume=page-12345";
    let mut stream = server.send_as("secret-a", "POST", path, question()).await;
    let begun = stream.chunk().await.unwrap().unwrap();
    assert!(begun.starts_with(b"id: 1\nevent: started\n"), "{begun:?}");
    // The page is left while the model works.
    drop(stream);
    let again = server.send_as("secret-a", "POST", path, question()).await;
    assert_eq!(again.json::<Value>().await.unwrap()["error"]["code"], "turn_exists");
    let other = server.send_as("secret-b", "GET", "/v1/turns/page-12345", None).await;
    assert_eq!(other.status().as_u16(), 404);
    let reading = server.send_as("secret-a", "GET", "/v1/turns/page-12345", None).await;
    permits.send(()).unwrap();
    let events = reading.text().await.unwrap();
    assert!(events.starts_with("id: 1\nevent: started\n") && events.contains("event: answer\n"), "{events}");
    // It is there for a while after its end, too, and can be read from a number on.
    let later = server.send_as("secret-a", "GET", "/v1/turns/page-12345?after=1", None).await.text().await.unwrap();
    assert!(!later.contains("event: started") && later.contains("event: answer\n"), "{later}");
    let stopped = server.send_as("secret-a", "DELETE", "/v1/turns/page-12345", None).await;
    assert_eq!(stopped.json::<Value>().await.unwrap()["stopped"], true);
    assert_eq!(server.send_as("secret-a", "GET", "/v1/turns/page-12345", None).await.status().as_u16(), 404);
}

#[tokio::test]
async fn a_turn_that_is_stopped_ends_for_its_reader() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _permits) = ready(directory.path()).await;
    let path = "/v1/turns?stream=true&resume=page-12345";
    let stream = server.send_as("secret-a", "POST", path, question()).await;
    assert_eq!(server.send_as("secret-b", "DELETE", "/v1/turns/page-12345", None).await.status().as_u16(), 404);
    assert_eq!(server.send_as("secret-a", "DELETE", "/v1/turns/page-12345", None).await.status().as_u16(), 200);
    let events = stream.text().await.unwrap();
    assert!(!events.contains("event: answer"), "{events}");
    for (path, param) in [("/v1/turns?resume=page-12345", "resume"), ("/v1/turns?stream=true&resume=x", "resume")] {
        let wrong = server.send_as("secret-a", "POST", path, question()).await;
        assert_eq!(wrong.status().as_u16(), 400);
        assert_eq!(wrong.json::<Value>().await.unwrap()["error"]["param"], param);
    }
    let caller: Value = server.send_as("secret-b", "GET", "/v1/caller", None).await.json().await.unwrap();
    assert_eq!((&caller["name"], &caller["documents"]), (&json!("bob"), &json!("Write")), "{caller}");
}
