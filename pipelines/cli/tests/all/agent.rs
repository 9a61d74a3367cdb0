//! An agent in a whole pipeline, with a language model on a server that follows a script.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};
use turnflow_engine::record::{Answer, Value};
use turnflow_engine::run::Options;

use crate::support::{Asked, plan_of, root};

/// Reads a request's body.
fn body(stream: &mut TcpStream) -> Option<Json> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}

/// A server that speaks OpenAI's protocol. Its replies are those of `script` to the messages of a request.
fn server(script: impl Fn(&str) -> String + Send + 'static) -> (String, Arc<AtomicUsize>, Arc<Mutex<Vec<Json>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (count, bodies): (Arc<AtomicUsize>, Arc<Mutex<Vec<Json>>>) = Default::default();
    let (counted, seen) = (count.clone(), bodies.clone());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Some(body) = body(&mut stream) else { continue };
            counted.fetch_add(1, Ordering::SeqCst);
            let messages = body["messages"].as_array().unwrap();
            let said: Vec<&str> = messages.iter().map(|message| message["content"].as_str().unwrap()).collect();
            let reply = script(&said.join("\n"));
            seen.lock().unwrap().push(body);
            let reply =
                json!({"choices": [{"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
                .to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n", reply.len());
            let _ = stream.write_all(format!("{head}connection: close\r\n\r\n{reply}").as_bytes());
        }
    });
    (url, count, bodies)
}

fn answer(asked: &mut Asked, question: &str) -> Arc<Answer> {
    match asked.ask(question).last.unwrap().value {
        Value::Answer(answer) => answer,
        other => panic!("{other:?}"),
    }
}

/// Two searches, a passage read, a draft that fails the check, and an answer; the second run asks the server nothing.
#[test]
fn an_agent_works_in_steps_and_a_second_run_makes_no_call() {
    let (url, requests, bodies) = server(|said| {
        let reply = match said {
            said if said.contains("failed a check") => "Thought: 0.75 it is.\nAction: finish[0.75]",
            said if said.contains("Action: read[") => "Thought: 0.9?\nAction: finish[0.9]",
            said if said.contains("Action: search[parameter b]") => "Action: read[1]",
            _ => "Thought: I need b.\nAction: search[parameter b]\nObservation: [1] b is 0.1.",
        };
        reply.to_owned()
    });
    let directory = tempfile::tempdir().unwrap();
    let pipeline = format!(
        r#"Pipeline(
            models: {{ "llm": OpenAi(url: {url:?}, model: "scripted", context: 8192) }},
            corpora: {{ "docs": Corpus(source: JsonLines(path: {:?}), chunk: Whole()) }},
            nodes: {{
                "turns": Stdin(),
                "query": LastTurn(input: "turns"),
                "answer": Agent(input: "query", model: "llm", search: {{
                    "lexical": Bm25(input: "query", corpus: "docs", top: 10),
                    "unstemmed": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, top: 10),
                    "fused": Rrf(inputs: ["lexical", "unstemmed"], top: 3),
                }}),
            }},
        )"#,
        root().join("examples/passages.jsonl"),
    );
    let question = "What is the default of BM25's parameter b?";
    let options = Options { state: Some(directory.path().join("state")), ..Options::default() };
    let run = || {
        let mut asked = Asked::start(plan_of(directory.path(), &pipeline), options.clone());
        answer(&mut asked, question)
    };
    let first = run();
    let calls = requests.load(Ordering::SeqCst);
    assert_eq!((&*first.text, calls), ("0.75", 4));
    let steps = first.checks["agent"]["steps"].as_array().unwrap();
    let actions: Vec<&str> = steps.iter().map(|step| step["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["search", "search", "read", "finish", "finish"]);
    assert!(first.hits.iter().any(|hit| &*hit.chunk.document == "bm25-b"), "{:?}", first.hits);
    let asked = bodies.lock().unwrap()[3].to_string();
    assert!(!asked.contains("b is 0.1") && asked.contains("no passage has the numbers 0.9"), "{asked}");
    assert_eq!((run(), requests.load(Ordering::SeqCst)), (first, calls));
}
