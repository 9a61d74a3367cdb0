//! An embedding server that is away, at the first start and later: the corpus is served without the passages that lack a
//! vector, how many these are is told, and they are added when the server is back, without an edit and without a restart.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use turnflow_engine::publish::CorpusProgress;
use turnflow_engine::run::{Engine, Options};

use crate::support::{Asked, answers, plan_of, until};

const WORDS: [&str; 6] = ["ferry", "bus", "train", "ten", "noon", "eleven"];
/// A text on which the server always fails.
const POISON: &str = "poison";

/// An embedding server. Its status is 200 while it is well.
struct Server {
    url: String,
    status: Arc<AtomicU16>,
    /// Number of failed requests.
    failed: Arc<AtomicU64>,
}

impl Server {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let status = Arc::new(AtomicU16::new(status));
        let failed = Arc::<AtomicU64>::default();
        let (told, counted) = (status.clone(), failed.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (told, counted) = (told.clone(), counted.clone());
                std::thread::spawn(move || drop(answer(stream, &told, &counted)));
            }
        });
        Self { url, status, failed }
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    fn set(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn pipeline(&self) -> String {
        format!(
            r#"Pipeline(
    models: {{ "m": OpenAiEmbedder(url: {:?}, model: "m", dimension: 7, retries: 0) }},
    corpora: {{ "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs"),
        "dense": Dense(input: "query", corpus: "docs", model: "m"),
        "hits": Append(inputs: ["dense", "lexical"]),
    }},
)"#,
            self.url
        )
    }
}

fn answer(mut stream: TcpStream, status: &AtomicU16, failed: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let asked: Value = serde_json::from_slice(&body)?;
        let inputs = asked["input"].as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Vec<&str> = inputs.iter().filter_map(Value::as_str).collect();
        let status = match status.load(Ordering::SeqCst) {
            200 if texts.iter().any(|text| text.contains(POISON)) => 500,
            status => status,
        };
        if status != 200 {
            failed.fetch_add(1, Ordering::SeqCst);
        }
        let vector = |(index, text): (usize, &&str)| {
            let counts = WORDS.iter().map(|word| text.to_lowercase().matches(word).count() as f64);
            json!({"index": index, "embedding": counts.chain([0.01]).collect::<Vec<_>>()})
        };
        let data: Vec<Value> = texts.iter().enumerate().map(vector).collect();
        let body = match status {
            // A language model, which repeats what it is asked.
            200 if asked["messages"].is_array() => {
                let said = asked["messages"].as_array().and_then(|messages| messages.last()).unwrap();
                json!({"choices": [{"message": {"content": said["content"]}, "finish_reason": "stop"}]}).to_string()
            }
            200 => json!({"data": data, "usage": {"prompt_tokens": null, "total_tokens": 3.0}}).to_string(),
            _ => r#"{"error":{"message":"away"}}"#.to_owned(),
        };
        write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    }
}

fn missing(asked: &Asked) -> u64 {
    CorpusProgress::get(&asked.engine.corpora()[0].1.missing)
}

#[test]
fn an_outage_delays_passages_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("ferry.txt"), "The ferry leaves at ten.").unwrap();
    fs::write(docs.join("bus.txt"), "The bus leaves at noon.").unwrap();
    let server = Server::start(503);
    let state = dir.path().join("state");
    let options = Options { state: Some(state.clone()), ..Options::default() };
    // The first start, while the server is away.
    let mut asked = Asked::start(plan_of(dir.path(), &server.pipeline()), options);
    until("both passages are counted as missing", || missing(&asked) == 2);
    let told = asked.engine.missing();
    assert_eq!((told.len(), &*told[0].0, told[0].1), (1, "docs", 2));
    assert!(told[0].2.contains("status 503") && told[0].2.contains("away"), "{}", told[0].2);
    server.set(200);
    until("both passages are there", || missing(&asked) == 0);
    let found = asked.ask_until("When does the ferry leave?", "it is found", |outcome| outcome.of("dense").len() == 2);
    assert_eq!(found.documents("dense")[0], "ferry.txt");
    // Later: what needs no server is found at once, and the rest is served.
    server.set(429);
    fs::write(docs.join("train.txt"), "The train leaves at eleven.").unwrap();
    until("the passage is missing", || missing(&asked) == 1);
    server.set(200);
    let found = asked.ask_until("The train?", "it is found", |outcome| outcome.of("dense").len() == 3);
    assert_eq!(found.documents("dense")[0], "train.txt");
    assert_eq!((missing(&asked), asked.engine.missing().len()), (0, 0));
    // A passage on which the server fails keeps back no other.
    fs::write(docs.join("bad.txt"), format!("The {POISON} train.")).unwrap();
    fs::write(docs.join("good.txt"), "The ferry leaves again at eleven.").unwrap();
    asked.ask_until("The ferry?", "the good passage is found", |outcome| {
        outcome.documents("dense").iter().any(|document| document == "good.txt")
    });
    assert_eq!(missing(&asked), 1);
    let warned = asked.ask("The ferry?").last.unwrap().warnings;
    assert!(warned.iter().any(|warning| warning.contains("1 passage is missing")), "{warned:?}");
    asked.engine.stop();
    asked.engine.join().unwrap();
    let letters = fs::read_to_string(state.join("dead-letters.jsonl")).unwrap_or_default();
    assert_eq!(letters, "", "an outage is no fault of a passage");
}

#[test]
fn a_standing_turn_that_fails_is_tried_again_without_a_further_edit() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("ferry.txt"), "The ferry leaves at noon.").unwrap();
    let turn = json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?"});
    fs::write(dir.path().join("turns.jsonl"), format!("{turn}\n")).unwrap();
    let server = Server::start(200);
    let pipeline = format!(
        r#"Pipeline(
    mode: Live(),
    models: {{ "m": OpenAi(url: {:?}, model: "m", retries: 0) }},
    corpora: {{ "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 3),
        "answer": Generate(input: "hits", model: "m"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    }},
)"#,
        server.url
    );
    let options = Options { state: Some(dir.path().join("state")), ..Options::default() };
    let engine = Engine::start(plan_of(dir.path(), &pipeline), options).unwrap();
    let says = |word: &str| {
        let all = answers(&dir.path().join("answers.jsonl"));
        all.last().is_some_and(|last| !last.retracted && last.answer.contains(word))
    };
    until("the first answer", || says("noon"));
    server.set(503);
    fs::write(docs.join("ferry.txt"), "The ferry leaves at ten.").unwrap();
    until("the model is asked and is away", || server.failed() > 0 && engine.standing().behind > 0);
    assert!(says("noon"), "the answer stands until there is another one");
    server.set(200);
    until("the answer is made again", || says("at ten"));
    until("nothing is behind", || engine.standing().behind == 0);
    engine.stop();
    engine.join().unwrap();
}

#[test]
fn what_is_deleted_or_edited_is_not_missing_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("good.txt"), "The ferry leaves at ten.").unwrap();
    for n in 0..3 {
        fs::write(docs.join(format!("bad{n}.txt")), format!("The {POISON} train {n}.")).unwrap();
    }
    let server = Server::start(200);
    let options = Options { state: Some(dir.path().join("state")), ..Options::default() };
    let plan = |pipeline: &str| plan_of(dir.path(), pipeline);
    let mut asked = Asked::start(plan(&server.pipeline()), options);
    until("the bad ones are missing", || missing(&asked) == 3);
    // The server still fails on them.
    fs::remove_file(docs.join("bad0.txt")).unwrap();
    fs::write(docs.join("bad1.txt"), "The bus leaves at noon.").unwrap();
    until("one is missing", || missing(&asked) == 1);
    // An index that a reload adds lacks it too, and is not published again for nothing.
    let lexical = server.pipeline().lines().filter(|line| !line.contains("dense")).collect::<Vec<_>>().join("\n");
    asked.engine.reload(plan(&lexical), &|| false).unwrap();
    until("the index has gone", || missing(&asked) == 0);
    asked.engine.reload(plan(&server.pipeline()), &|| false).unwrap();
    until("it is missing again", || missing(&asked) == 1);
    let publications = || CorpusProgress::get(&asked.engine.corpora()[0].1.publications);
    let (before, failed) = (publications(), server.failed());
    until("it was tried several times", || server.failed() >= failed + 3);
    assert!(publications() <= before + 1, "{} after {before}", publications());
    fs::remove_file(docs.join("bad2.txt")).unwrap();
    until("nothing is missing", || missing(&asked) == 0 && asked.engine.missing().is_empty());
    let found = asked.ask_until("The ferry?", "no warning", |outcome| {
        outcome.last.as_ref().is_some_and(|last| last.warnings.is_empty())
    });
    assert_eq!(found.of("dense").len(), 2);
    asked.engine.stop();
    asked.engine.join().unwrap();
}

/// Answers requests for a sitemap and its page with this status and text, each over a connection of its own.
fn serve_page(listener: TcpListener, page: Arc<Mutex<(u16, String)>>) {
    let address = listener.local_addr().unwrap();
    let sitemap = format!("<urlset><url><loc>http://{address}/a.txt</loc></url></urlset>");
    for mut stream in listener.incoming().map_while(Result::ok) {
        let mut line = String::new();
        let Ok(clone) = stream.try_clone() else { continue };
        let mut reader = BufReader::new(clone);
        let _ = reader.read_line(&mut line);
        let mut header = String::new();
        while reader.read_line(&mut header).is_ok_and(|read| read > 2) {
            header.clear();
        }
        let (status, text) = page.lock().unwrap().clone();
        let is_rules = line.contains("robots.txt");
        let status = if status == 200 && is_rules { 404 } else { status };
        let (kind, text) = match line.contains("sitemap.xml") {
            true => ("application/xml", sitemap.clone()),
            false => ("text/plain", text),
        };
        let _ = write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
    }
}

#[test]
fn a_source_that_is_away_is_told_and_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Nothing listens at the first start.
    drop(listener);
    let pipeline = format!(
        r#"Pipeline(
    corpora: {{ "site": Corpus(source: Web(sitemap: Some("http://{address}/sitemap.xml"), every_s: 0.1, delay_s: 0.0), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "site"),
    }},
)"#
    );
    let mut asked = Asked::begin(plan_of(dir.path(), &pipeline), Options::default());
    until("it is told that the site is away", || !asked.engine.away().is_empty());
    let told = asked.engine.away();
    assert!(told[0].0 == "site" && told[0].1.contains(&format!("cannot reach http://{address}")), "{told:?}");
    assert_eq!(asked.engine.status().corpora[0].away_because.as_deref(), Some(&*told[0].1));
    let page = Arc::new(Mutex::new((200, "The ferry leaves at ten.".to_owned())));
    let listener = TcpListener::bind(address).unwrap();
    let shown = page.clone();
    std::thread::spawn(move || serve_page(listener, shown));
    asked.engine.wait_ready().unwrap();
    assert_eq!(asked.ask("When does the ferry leave?").hits["hits"].len(), 1);
    until("the site can be read", || asked.engine.away().is_empty());
    // Later: what was read is served, and a change is read when the site is back.
    *page.lock().unwrap() = (503, String::new());
    until("the site is away again", || !asked.engine.away().is_empty());
    assert_eq!(asked.ask("When does the ferry leave?").hits["hits"].len(), 1);
    *page.lock().unwrap() = (200, "The train leaves at noon.".to_owned());
    let found = asked.ask_until("The train?", "the change is found", |outcome| !outcome.hits["hits"].is_empty());
    assert!(found.hits["hits"][0].chunk.text.contains("noon"));
    until("the site can be read again", || asked.engine.away().is_empty());
    asked.engine.stop();
    asked.engine.join().unwrap();
}
