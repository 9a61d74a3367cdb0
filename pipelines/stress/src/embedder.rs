//! An embedding server that comes and goes: it speaks as much of OpenAI's API as turnflow asks for, on a port that stays
//! the same. The vector of a text depends on its words only.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use turnflow_eval::random::Random;

/// The dimension of the vectors.
const DIMENSION: usize = 24;
/// How often threads look whether the server has changed.
const STEP: Duration = Duration::from_millis(10);
/// The longest request.
const LONGEST: usize = 16 << 20;

/// What the server does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mood {
    /// It answers.
    Well,
    /// Nothing listens on the port, and connections are closed.
    Refuses,
    /// It answers 503.
    Unavailable,
    /// It answers 429.
    Busy,
    /// It reads requests and is silent.
    Hangs,
    /// It closes the connection in the middle of its answer.
    CutsOff,
}

const MOODS: [Mood; 6] = [Mood::Well, Mood::Refuses, Mood::Unavailable, Mood::Busy, Mood::Hangs, Mood::CutsOff];

struct Shared {
    mood: AtomicU8,
    ends: AtomicBool,
    /// Number of texts that were embedded.
    texts: AtomicU64,
}

impl Shared {
    fn mood(&self) -> Mood {
        MOODS[usize::from(self.mood.load(Ordering::Acquire))]
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }
}

/// The server.
pub(crate) struct Embedder {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// How often it went away.
    pub absences: u32,
}

impl Embedder {
    /// Starts it, on a free port.
    pub fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        let port = listener.local_addr()?.port();
        let shared =
            Arc::new(Shared { mood: AtomicU8::new(0), ends: AtomicBool::new(false), texts: AtomicU64::new(0) });
        let of = shared.clone();
        let thread = Some(thread::spawn(move || listen(port, listener, &of)));
        Ok(Self { port, shared, thread, absences: 0 })
    }

    /// The model of a pipeline.
    pub fn model(&self) -> String {
        format!(
            "OpenAiEmbedder(url: \"http://127.0.0.1:{}/v1\", model: \"words\", dimension: {DIMENSION}, batch: 8, \
             timeout_s: 0.4, retries: 1, pause_s: 0.05)",
            self.port
        )
    }

    /// Has it answer, or not.
    pub fn set(&mut self, mood: Mood) {
        self.absences += u32::from(mood != Mood::Well && self.is_well());
        self.shared.mood.store(mood as u8, Ordering::Release);
    }

    /// Whether it answers.
    pub fn is_well(&self) -> bool {
        self.shared.mood() == Mood::Well
    }

    /// Has it go away in one of the ways.
    pub fn go_away(&mut self, random: &mut Random) {
        self.set(MOODS[1 + random.below(MOODS.len() - 1)]);
    }

    /// Number of texts that were embedded.
    pub fn texts(&self) -> u64 {
        self.shared.texts.load(Ordering::Relaxed)
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens while it does not refuse connections.
fn listen(port: u16, listener: TcpListener, shared: &Arc<Shared>) {
    let mut listener = Some(listener);
    while !shared.ends() {
        if shared.mood() == Mood::Refuses {
            listener = None;
        } else if listener.is_none() {
            // A connection of another program may have the port for a moment.
            listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        }
        let came = listener.as_ref().map(|listener| listener.set_nonblocking(true).and_then(|()| listener.accept()));
        match came {
            Some(Ok((stream, _))) => {
                let shared = shared.clone();
                thread::spawn(move || serve(&stream, &shared));
            }
            _ => thread::sleep(STEP),
        }
    }
}

/// Answers the requests of a connection until it closes.
fn serve(stream: &TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(STEP)).ok()?;
    let mut reader = BufReader::new(Patient { stream, shared });
    let mut writer = stream;
    loop {
        let body = request(&mut reader)?;
        let mood = shared.mood();
        let (status, answer) = match mood {
            Mood::Well | Mood::CutsOff => ("200 OK", embedded(&body, shared)?),
            Mood::Unavailable => ("503 Service Unavailable", json!({"error": {"message": "no worker is free"}})),
            Mood::Busy => ("429 Too Many Requests", json!({"error": {"message": "too many requests"}})),
            Mood::Refuses => return None,
            Mood::Hangs => {
                while shared.mood() == Mood::Hangs && !shared.ends() {
                    thread::sleep(STEP);
                }
                return None;
            }
        };
        let answer = answer.to_string();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", answer.len());
        writer.write_all(head.as_bytes()).ok()?;
        let end = if mood == Mood::CutsOff { answer.len() / 2 } else { answer.len() };
        writer.write_all(&answer.as_bytes()[..end]).ok()?;
        if mood == Mood::CutsOff {
            return None;
        }
    }
}

/// Reads the body of the next request.
fn request(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.by_ref().take(8192).read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok().filter(|length| *length <= LONGEST)?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

/// A connection that waits for bytes until the server ends or refuses connections.
struct Patient<'a> {
    stream: &'a TcpStream,
    shared: &'a Shared,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&mut &*self.stream).read(buffer) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.shared.ends() || self.shared.mood() == Mood::Refuses {
                        return Ok(0);
                    }
                }
                read => return read,
            }
        }
    }
}

/// The answer to a request for embeddings.
fn embedded(body: &[u8], shared: &Shared) -> Option<Value> {
    let asked: Value = serde_json::from_slice(body).ok()?;
    let texts: Vec<&str> = match &asked["input"] {
        Value::String(text) => vec![text],
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    shared.texts.fetch_add(texts.len() as u64, Ordering::Relaxed);
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"object": "embedding", "index": index, "embedding": vector(text)}))
        .collect();
    Some(json!({"object": "list", "model": "words", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}))
}

/// How often words of each kind occur in a text; the kinds are of a hash.
fn vector(text: &str) -> Vec<f32> {
    let mut vector = vec![0.01_f32; DIMENSION];
    for word in text.split_whitespace() {
        let hash = word.bytes().fold(17_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
        vector[hash % DIMENSION] += 1.0;
    }
    vector
}
