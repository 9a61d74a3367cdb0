//! A cluster whose network is cut, in network namespaces of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cluster::{Cluster, LEXICAL, said, signal, write_documents, write_turns};
use crate::support::{answers, until};

/// Two network namespaces with a cable between them, removed with the value.
struct Network {
    names: [String; 2],
}

impl Network {
    /// `None`, with the reason, where namespaces cannot be made.
    fn make() -> Option<Self> {
        let id = std::process::id();
        let names = [format!("turnflow-a-{id}"), format!("turnflow-b-{id}")];
        let network = Self { names };
        let [a, b] = &network.names;
        let (end_a, end_b) = (format!("tfa{id}"), format!("tfb{id}"));
        let commands = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {end_a} netns {a} type veth peer name {end_b} netns {b}"),
            format!("-n {a} addr add 10.213.7.1/24 dev {end_a}"),
            format!("-n {b} addr add 10.213.7.2/24 dev {end_b}"),
            format!("-n {a} link set {end_a} up"),
            format!("-n {b} link set {end_b} up"),
        ];
        for command in commands {
            match Command::new("ip").args(command.split(' ')).output() {
                Ok(done) if done.status.success() => {}
                Ok(done) => {
                    println!("skipped: `ip {command}`: {}", String::from_utf8_lossy(&done.stderr).trim());
                    return None;
                }
                Err(error) => {
                    println!("skipped: `ip`: {error}");
                    return None;
                }
            }
        }
        Some(network)
    }

    /// Plugs the cable in or pulls it out.
    fn cable(&self, state: &str) {
        let end = format!("tfa{}", std::process::id());
        let done = Command::new("ip").args(["-n", &self.names[0], "link", "set", &end, state]).status().unwrap();
        assert!(done.success());
    }

    /// Starts a process of the cluster in its namespace.
    fn start(&self, directory: &Path, process: usize) -> Cluster {
        let log = std::fs::File::create(directory.join(format!("log{process}"))).unwrap();
        let (number, state) = (process.to_string(), format!("s{process}"));
        let mut command = Command::new("ip");
        command.current_dir(directory).args(["netns", "exec", &self.names[process], env!("CARGO_BIN_EXE_turnflow")]);
        command.args(["run", "p.ron", "--workers", "1", "--state", &state, "--process", &number]);
        command.args(["--hosts", "hosts", "--secret", "secret"]).stdin(Stdio::null()).stderr(log);
        Cluster(command.spawn().unwrap())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn a_network_that_is_cut_ends_both_sides_and_they_go_on_when_it_is_back() {
    let Some(network) = Network::make() else { return };
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), LEXICAL).unwrap();
    std::fs::write(directory.join("hosts"), "10.213.7.1:7100\n10.213.7.2:7100\n").unwrap();
    std::fs::write(directory.join("secret"), "a secret of sixteen bytes or more\n").unwrap();
    write_documents(directory, 0..40, 0);
    write_turns(directory, 5, 1..=1);
    let log = |process: usize| std::fs::read_to_string(directory.join(format!("log{process}"))).unwrap();
    let count = || answers(&directory.join("answers.jsonl")).len();
    let mut both = [network.start(directory, 0), network.start(directory, 1)];
    until("the turns are answered", || directory.join("answers.jsonl").exists() && count() == 5);
    // Nothing is said on a cable that is pulled out: the other side can only fall silent.
    network.cable("down");
    until("both processes end", || both.iter_mut().all(|process| process.0.try_wait().unwrap().is_some()));
    for (process, ended) in both.iter_mut().enumerate() {
        let other = format!("lost process {}", 1 - process);
        assert_eq!(ended.0.wait().unwrap().code(), Some(4), "{}", log(process));
        assert!(log(process).contains(&other) && !log(process).contains("panic"), "{}", log(process));
    }
    let all = std::fs::read_to_string(directory.join("turns.jsonl")).unwrap();
    write_turns(directory, 5, 2..=2);
    let new = std::fs::read_to_string(directory.join("turns.jsonl")).unwrap();
    std::fs::write(directory.join("turns.jsonl"), all + &new).unwrap();
    network.cable("up");
    let mut both = [network.start(directory, 0), network.start(directory, 1)];
    until("the new turns are answered", || count() == 10);
    signal(i32::try_from(both[1].0.id()).unwrap(), libc::SIGTERM);
    let ended = both.each_mut().map(|process| process.0.wait().unwrap());
    assert!(ended.iter().all(|status| status.success()), "{ended:?}: {} {}", log(0), log(1));
    assert_eq!(said(directory).len(), 10);
}
