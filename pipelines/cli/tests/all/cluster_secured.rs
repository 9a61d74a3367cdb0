//! What can be read between the processes of a cluster: nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::cluster::{Cluster, LEXICAL, free_address, pipeline, said, signal, turnflow, write_documents, write_turns};
use crate::cluster_serving::Served;
use crate::support::{answers, model, until};

/// A random word that everything has which must not be read.
const MARK: &str = "quokkazeppelin";
const SECRET: &str = "quokkazeppelin as the secret of the cluster";
const TOKEN: &str = "quokkazeppelin-token";

/// Records what goes through it, both ways.
#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Vec<u8>>>);

impl Tap {
    /// An address from which everything goes to another one.
    fn before(&self, behind: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tap, behind) = (self.clone(), behind.to_owned());
        std::thread::spawn(move || {
            for here in listener.incoming() {
                // Nobody listens yet: the connection is closed, and tried again.
                let (Ok(here), Ok(there)) = (here, TcpStream::connect(&behind)) else { continue };
                let back = (there.try_clone().unwrap(), here.try_clone().unwrap());
                for (from, to) in [(here, there), back] {
                    let tap = tap.clone();
                    std::thread::spawn(move || tap.relay(from, to));
                }
            }
        });
        address
    }

    fn relay(&self, mut from: TcpStream, mut to: TcpStream) {
        from.set_nodelay(true).unwrap();
        let mut buffer = vec![0; 1 << 16];
        // Each direction is recorded by itself, so that a word is not torn.
        let mut recorded = Vec::new();
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            recorded.extend_from_slice(&buffer[..read]);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
        self.0.lock().unwrap().extend(recorded);
    }

    /// The addresses of the processes as one of them sees them: it reaches those with a lower number through the tap.
    fn seen_by(&self, process: usize, hosts: &[String]) -> Vec<String> {
        let seen = hosts.iter().enumerate();
        seen.map(|(other, host)| if other < process { self.before(host) } else { host.clone() }).collect()
    }

    /// Asserts that so many bytes at least were recorded, and that nothing in them can be read.
    fn assert_unreadable(&self, least: usize) {
        let recorded = self.0.lock().unwrap();
        assert!(recorded.len() >= least, "only {} bytes", recorded.len());
        // What is said in the clear is known.
        let has = |word: &[u8]| recorded.windows(word.len()).any(|window| window == word);
        assert!(has(b"turnflow cluster"));
        for word in [MARK.as_bytes(), &MARK.as_bytes()[..6], b"harbour", b"Bearer", b"bearer", b"lexical", b"documents"]
        {
            assert!(!has(word), "{:?} was read", String::from_utf8_lossy(word));
        }
        // Of text, a byte has less than seven bits; of what is encrypted, all eight.
        let mut counts = [0_usize; 256];
        recorded.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let share = |count: &usize| *count as f64 / recorded.len() as f64;
        let entropy: f64 =
            counts.iter().filter(|count| **count > 0).map(|count| -share(count) * share(count).log2()).sum();
        assert!(entropy > 7.5, "{entropy} bits in a byte");
    }
}

/// Makes an authority in a directory, and a certificate for each process of this machine.
fn certify(directory: &Path, processes: usize) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(directory.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    for process in 0..processes {
        let key = KeyPair::generate().unwrap();
        let of = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(directory.join(format!("{process}.pem")), of.signed_by(&key, &issuer).unwrap().pem()).unwrap();
        std::fs::write(directory.join(format!("{process}.key")), key.serialize_pem()).unwrap();
    }
}

/// The arguments of a process with a certificate.
fn certified(process: usize) -> Vec<String> {
    let (certificate, key) = (format!("{process}.pem"), format!("{process}.key"));
    let arguments = ["--cluster-cert", &certificate, "--cluster-key", &key, "--cluster-ca", "ca.pem"];
    arguments.map(str::to_owned).to_vec()
}

/// Three processes with the secret, in which everything is done that they do together.
#[tokio::test]
async fn no_word_of_a_document_a_question_or_a_token_can_be_read() {
    let pipeline = match model("minilm-int8") {
        Some(model) => pipeline(&model).replace(", access: \"groups\"", ""),
        None => LEXICAL.to_owned(),
    };
    let pipeline = pipeline.replace("JsonLines(path: \"corpus.jsonl\")", "Documents()");
    let pipeline = pipeline.replace("JsonLines(path: \"corpus.jsonl\", watch: true)", "Documents()");
    let pipeline = pipeline.replace("JsonLines(path: \"turns.jsonl\", follow: true)", "Stdin()");
    let pipeline = pipeline.replace("JsonLines(path: \"turns.jsonl\")", "Stdin()");
    let tap = Tap::default();
    let cluster = Served::start_by(&pipeline, TOKEN, |directory, process, hosts| {
        std::fs::write(directory.join("secret"), SECRET).unwrap();
        (tap.seen_by(process, hosts), ["--secret", "secret"].map(str::to_owned).to_vec())
    })
    .await;
    let send = async |request: reqwest::RequestBuilder| {
        let response = request.bearer_auth(TOKEN).send().await.unwrap();
        let (status, told) = (response.status().as_u16(), response.text().await.unwrap());
        assert!(status == 200 || status == 201, "{status}: {told}");
        serde_json::from_str::<Value>(&told).unwrap_or(Value::String(told))
    };
    for number in 0..30 {
        // Requests of the others are forwarded to process 0, with their token.
        cluster
            .put(
                number as usize % 3,
                number,
                &format!("The {MARK} sleeps in harbour {number}. A {MARK}{number} sails."),
            )
            .await;
    }
    for round in 0..5 {
        for process in 0..3 {
            // Edits, turns with their history, searches, answers with the text in parts, feedback and lists.
            cluster
                .put(process, round * 3, &format!("In harbour {round} the {MARK} of process {process} sails."))
                .await;
            let client = &cluster.client;
            let question = format!("Which {MARK} sails in harbour {round}?");
            let turn = json!({ "conversation_id": format!("{MARK}-{process}"), "turn": 1, "speaker": "user", "text": question,
                "part": round % 5 });
            let answer = send(client.post(cluster.url(process, "/v1/turns")).json(&turn)).await;
            assert!(answer["hits"].to_string().contains(MARK), "{answer}");
            let found = send(client.get(cluster.url(process, &format!("/v1/search?query={MARK}+harbour")))).await;
            assert!(found["hits"].to_string().contains(MARK), "{found}");
            let body = json!({ "messages": [{ "role": "user", "content": question }] });
            let answer = send(client.post(cluster.url(process, "/v1/chat/completions")).json(&body)).await;
            let said = json!({ "turn_id": answer["id"], "helpful": true, "comment": format!("a good {MARK}") });
            send(client.post(cluster.url(process, "/v1/feedback")).json(&said)).await;
            let document = send(client.get(cluster.url(process, "/v1/documents/d1"))).await;
            assert!(document.to_string().contains(MARK), "{document}");
        }
    }
    let wrong = cluster.client.get(cluster.url(1, "/v1/documents")).bearer_auth(format!("{MARK}-wrong"));
    assert_eq!(wrong.send().await.unwrap().status().as_u16(), 401);
    if pipeline.contains("minilm") {
        let mut calls = 0;
        for process in 0..3 {
            let metrics = cluster.client.get(cluster.url(process, "/metrics")).bearer_auth(TOKEN).send().await.unwrap();
            let metrics = metrics.text().await.unwrap();
            calls += metrics.lines().filter(|line| line.contains("\"models of process ")).count();
        }
        assert!(calls > 0, "no call of a model went to another process");
    }
    // A reload says the pipeline, and is followed.
    std::fs::write(cluster.directory.path().join("p.ron"), pipeline.replace("passages: 3", "passages: 2")).unwrap();
    signal(i32::try_from(cluster.processes[0].0.id()).unwrap(), libc::SIGHUP);
    cluster.put(1, 100, &format!("The last {MARK} is in the harbour.")).await;
    cluster.stop(1).await;
    until("the connections are recorded", || tap.0.lock().unwrap().len() > 100_000);
    tap.assert_unreadable(100_000);
}

/// Two processes with certificates, whose turns come from a log; one is killed.
#[test]
fn turns_of_a_log_cannot_be_read_between_processes_with_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), LEXICAL).unwrap();
    write_documents(directory, 0..60, 0);
    write_turns(directory, 5, 1..=4);
    certify(directory, 2);
    let hosts = [free_address(), free_address()];
    let tap = Tap::default();
    let start = |process: usize| {
        let (file, number, state) = (format!("hosts{process}"), process.to_string(), format!("s{process}"));
        std::fs::write(directory.join(&file), tap.seen_by(process, &hosts).join("\n")).unwrap();
        let log = std::fs::File::create(directory.join(format!("log{process}"))).unwrap();
        let mut command = turnflow(directory, &["run", "p.ron", "--workers", "1", "--hosts", &file]);
        command.args(["--process", &number, "--state", &state]).args(certified(process));
        Cluster(command.stderr(log).spawn().unwrap())
    };
    let log = |process: usize| std::fs::read_to_string(directory.join(format!("log{process}"))).unwrap();
    let count = || answers(&directory.join("answers.jsonl")).len();
    let mut both = [start(0), start(1)];
    until("every turn is answered", || directory.join("answers.jsonl").exists() && count() == 20);
    signal(i32::try_from(both[1].0.id()).unwrap(), libc::SIGKILL);
    until("both end", || both.iter_mut().all(|process| process.0.try_wait().unwrap().is_some()));
    assert!(both[0].0.wait().unwrap().code() == Some(4) && log(0).contains("lost process 1"), "{}", log(0));
    write_turns(directory, 5, 1..=6);
    let mut both = [start(0), start(1)];
    until("the new turns are answered", || count() == 30);
    signal(i32::try_from(both[0].0.id()).unwrap(), libc::SIGTERM);
    let ended = both.each_mut().map(|process| process.0.wait().unwrap());
    assert!(ended.iter().all(|status| status.success()), "{ended:?}: {} {}", log(0), log(1));
    assert_eq!(said(directory).len(), 30);
    until("the connections are recorded", || tap.0.lock().unwrap().len() > 20_000);
    tap.assert_unreadable(20_000);
}

#[test]
fn a_certificate_that_cannot_be_used_ends_the_start_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), LEXICAL).unwrap();
    write_documents(directory, 0..3, 0);
    write_turns(directory, 1, 1..=1);
    std::fs::write(directory.join("hosts"), format!("{}\n{}\n", free_address(), free_address())).unwrap();
    certify(directory, 2);
    let fails = |files: [&str; 3], code: i32, reasons: &[&str]| {
        let [certificate, key, authorities] = files;
        let mut command = turnflow(directory, &["run", "p.ron", "--process", "0", "--hosts", "hosts"]);
        command.args(["--cluster-cert", certificate, "--cluster-key", key, "--cluster-ca", authorities]);
        // Not waited for.
        let output = command.args(["--wait", "100000"]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(reasons.iter().all(|reason| told.contains(reason)), "{told}");
    };
    fails(["missing.pem", "0.key", "ca.pem"], 1, &["cannot use `missing.pem`", "No such file"]);
    fails(["p.ron", "0.key", "ca.pem"], 1, &["cannot use `p.ron`", "no certificate"]);
    fails(["0.pem", "1.key", "ca.pem"], 1, &["cannot use `1.key`", "not the key of the certificate in `0.pem`"]);
    certify(directory, 0);
    fails(["0.pem", "0.key", "ca.pem"], 1, &["cannot use `0.pem`", "no authority in `ca.pem` has signed it"]);
    let output =
        turnflow(directory, &["run", "p.ron", "--process", "0", "--hosts", "hosts", "--cluster-cert", "0.pem"]);
    let output = { output }.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--cluster-key"));
}
