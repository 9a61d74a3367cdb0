use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use socket2::{Domain, SockRef, Socket, Type};

use super::handshake::{Claim, Failure, Reply, Verdict, accept, call, random, secure};
use super::link::Message;
use super::*;

/// Longer than any test takes on any machine.
const LONG: Duration = Duration::from_secs(600);

const PAUSE: Duration = Duration::from_millis(5);

/// Free addresses. The sockets are bound but do not listen, so that nobody else gets the ports.
struct Addresses {
    hosts: Vec<String>,
    _sockets: Vec<Socket>,
}

impl Addresses {
    fn of(hosts: &[&str]) -> Self {
        let bound = |host: &&str| {
            let address: SocketAddr = format!("{host}:0").replace("localhost", "127.0.0.1").parse().unwrap();
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&address.into()).unwrap();
            let port = socket.local_addr().unwrap().as_socket().unwrap().port();
            (format!("{host}:{port}"), socket)
        };
        let (hosts, _sockets) = hosts.iter().map(bound).unzip();
        Self { hosts, _sockets }
    }

    fn new(processes: usize) -> Self {
        Self::of(&vec!["127.0.0.1"; processes])
    }

    fn member(&self, process: usize) -> Member {
        let secret = Some(Secret::new(b"a secret of the tests").unwrap());
        let (hosts, plan) = (self.hosts.clone(), "a plan".to_owned());
        Member { process, hosts, workers: 2, secret, certificates: None, plan }
    }
}

/// Both ends of an encrypted connection.
pub(in crate::cluster) fn pair() -> (Channel, Channel) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    let tls = Addresses::new(2).member(0).checked().unwrap();
    let ends = [(one, tls.connector(1).unwrap()), (other, tls.acceptor().unwrap())];
    let shaking = ends.map(|(stream, tls)| {
        thread::spawn(move || {
            let connection = secure(&stream, tls, Instant::now() + LONG).unwrap();
            stream.set_read_timeout(None).unwrap();
            stream.set_write_timeout(None).unwrap();
            Channel::new(stream, connection)
        })
    });
    shaking.map(|shaking| shaking.join().unwrap()).into()
}

type Started = JoinHandle<Result<Connected, ConnectError>>;

fn start(member: Member, generation: u64) -> Started {
    thread::spawn(move || {
        let connected = connect(&member, generation, LONG, &|| false)?;
        exchange(member.process, &connected);
        Ok(connected)
    })
}

fn start_cancellable(member: Member, generation: u64) -> (Started, Arc<AtomicBool>) {
    let cancel = Arc::new(AtomicBool::new(false));
    let cancelled = cancel.clone();
    let started = thread::spawn(move || connect(&member, generation, LONG, &|| cancelled.load(Ordering::Relaxed)));
    (started, cancel)
}

/// Sends to all at once, as timely does, then reads what all have sent.
fn exchange(process: usize, connected: &Connected) {
    let channels =
        || connected.channels.iter().enumerate().filter_map(|(other, channel)| Some((other, channel.as_ref()?)));
    assert_eq!(channels().count(), connected.channels.len() - 1);
    assert!(connected.channels[process].is_none());
    for (other, channel) in channels() {
        let sent: Vec<u8> = [process, other].into_iter().cycle().map(|number| number as u8).take(5000).collect();
        channel.write(&[&sent]).unwrap();
    }
    for (other, channel) in channels() {
        let received = read(channel, 5000);
        let expected: Vec<u8> = [other, process].into_iter().cycle().map(|number| number as u8).take(5000).collect();
        assert_eq!(received, expected);
        let socket = channel.socket();
        assert!(socket.nodelay().unwrap() && SockRef::from(socket).keepalive().unwrap());
        assert_eq!((socket.read_timeout().unwrap(), socket.write_timeout().unwrap()), (None, None));
    }
}

/// Reads exactly so many bytes.
fn read(channel: &Channel, length: usize) -> Vec<u8> {
    let (mut bytes, mut filled) = (vec![0; length], 0);
    while filled < length {
        match channel.read(&mut bytes[filled..]).unwrap() {
            0 => panic!("the connection ended after {filled} bytes"),
            more => filled += more,
        }
    }
    bytes
}

fn all(started: Vec<Started>) -> Vec<Connected> {
    started.into_iter().map(|started| started.join().unwrap().unwrap()).collect()
}

/// The error of a process for which the patience is over. On a slow machine, the patience is longer.
fn impatient(member: &Member, expected: &str) -> String {
    impatient_after(1, member, expected)
}

fn impatient_after(seconds: u64, member: &Member, expected: &str) -> String {
    for seconds in [1, 4, 16, 64, 256].map(|times| times * seconds) {
        let error = connect(member, 0, Duration::from_secs(seconds), &|| false).unwrap_err().to_string();
        if error.contains(expected) {
            assert!(error.contains(&format!("did not connect within {seconds} s: ")), "{error}");
            return error;
        }
    }
    panic!("no error has `{expected}`");
}

fn claim(member: &Member, generation: Option<u64>) -> Claim {
    Claim {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        process: member.process,
        processes: member.hosts.len(),
        workers: member.workers,
        plan: member.plan.clone(),
        generation,
        instance: u64::from_ne_bytes(random().unwrap()),
        secret: member.secret.as_ref().map(Secret::fingerprint),
    }
}

fn dial(address: &str) -> TcpStream {
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// A process that only does the handshake.
fn shake_hands(member: &Member, to: usize, claim: &Claim) -> Result<(Channel, Reply), Failure> {
    call(dial(&member.hosts[to]), &member.checked().unwrap(), to, claim, Instant::now() + LONG)
}

/// Shakes hands until the verdict is as expected.
fn shake_hands_until(member: &Member, to: usize, claim: &Claim, is_expected: impl Fn(&Verdict) -> bool) -> Channel {
    loop {
        match shake_hands(member, to, claim) {
            Ok((channel, reply)) if is_expected(&reply.verdict) => return channel,
            _ => thread::sleep(PAUSE),
        }
    }
}

fn is_accepted(verdict: &Verdict) -> bool {
    *verdict == Verdict::Accepted
}

/// A process that accepts one connection, and is then played by the test.
fn accept_one(listener: &TcpListener, member: &Member, claim: &Claim) -> Channel {
    let (stream, _) = listener.accept().unwrap();
    let caller = accept(stream, &member.checked().unwrap(), Instant::now() + LONG).unwrap();
    caller.answer(&Reply { claim: claim.clone(), verdict: Verdict::Accepted }).unwrap()
}

fn receive(channel: &Channel) -> Message {
    Message::decode(read(channel, 9).try_into().unwrap()).unwrap()
}

#[test]
fn processes_are_connected_to_all_others() {
    for processes in [1, 2, 4] {
        for _ in 0..5 {
            let addresses = Addresses::new(processes);
            // Only the generation of process 0 counts.
            let start = |process| start(addresses.member(process), 7 + process as u64);
            for connected in all((0..processes).rev().map(start).collect()) {
                assert_eq!((connected.generation, connected.channels.len()), (7, processes));
            }
        }
    }
}

#[test]
fn loopback_names_and_ipv6_need_no_secret() {
    let hosts: &[&str] = match TcpListener::bind("[::1]:0") {
        Ok(_) => &["localhost", "[::1]", "127.0.0.2"],
        Err(_) => &["localhost", "127.0.0.2"],
    };
    let addresses = Addresses::of(hosts);
    let member = |process| Member { secret: None, ..addresses.member(process) };
    all((0..hosts.len()).map(|process| start(member(process), 0)).collect());
}

#[test]
fn a_late_process_is_waited_for() {
    let addresses = Addresses::new(3);
    let early = [start(addresses.member(0), 3), start(addresses.member(2), 0)];
    // Process 2 is connected to process 0 when a second one with its number is refused.
    let member = addresses.member(2);
    let claim = claim(&member, None);
    shake_hands_until(&member, 0, &claim, |verdict| matches!(verdict, Verdict::SameNumber { .. }));
    let late = start(addresses.member(1), 0);
    assert!(all(early.into_iter().chain([late]).collect()).iter().all(|connected| connected.generation == 3));
}

#[test]
fn another_secret_is_refused_and_ends_nobody_else() {
    let addresses = Addresses::new(2);
    let first = start(addresses.member(0), 0);
    let other = Some(Secret::new(b"another secret of the tests").unwrap());
    for secret in [other, None] {
        impatient(&Member { secret, ..addresses.member(1) }, "it does not prove that it has the same secret");
    }
    all(vec![first, start(addresses.member(1), 0)]);
    // The other way round.
    let addresses = Addresses::new(2);
    let (stranger, cancel) = start_cancellable(Member { secret: None, ..addresses.member(1) }, 0);
    let error = impatient(&addresses.member(0), "it does not prove that it has the same secret");
    assert!(error.starts_with(&format!("process 1 ({})", addresses.hosts[1])), "{error}");
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(stranger.join().unwrap(), Err(ConnectError::Cancelled)));
}

#[test]
fn another_plan_and_another_version_may_heal() {
    let addresses = Addresses::new(2);
    let other = Member { plan: "another".to_owned(), ..addresses.member(1) };
    let (other_plan, cancel) = start_cancellable(other.clone(), 0);
    impatient(&addresses.member(0), "it runs another pipeline file");
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(other_plan.join().unwrap(), Err(ConnectError::Cancelled)));
    let first = start(addresses.member(0), 0);
    impatient(&other, "it runs another pipeline file");
    let member = addresses.member(1);
    let old = Claim { version: "0.0.0".to_owned(), workers: 9, ..claim(&member, None) };
    shake_hands_until(&member, 0, &old, |verdict| *verdict == Verdict::Refused);
    all(vec![first, start(member, 0)]);
}

#[test]
fn other_numbers_of_workers_and_processes_end_both_sides() {
    let addresses = Addresses::new(3);
    let more_workers = Member { workers: 3, ..addresses.member(1) };
    let mut fewer_processes = addresses.member(1);
    fewer_processes.hosts.pop();
    for (other, expected) in [(more_workers, "its number of workers is 3"), (fewer_processes, "has 2 processes")] {
        let (first, second) = (start(addresses.member(0), 0), start(other, 0));
        let error = first.join().unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Differs { process: 1, .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        let error = second.join().unwrap().unwrap_err();
        assert!(matches!(error, ConnectError::Differs { process: 0, .. }), "{error}");
    }
}

#[test]
fn one_of_two_processes_with_the_same_number_ends() {
    let (addresses, elsewhere) = (Addresses::new(3), Addresses::new(1));
    let mut moved = addresses.member(2);
    moved.hosts[2].clone_from(&elsewhere.hosts[0]);
    let mut started = vec![start(addresses.member(0), 0)];
    let mut twins = vec![start(addresses.member(2), 0), start(moved, 0)];
    let ended = loop {
        match twins.iter().position(JoinHandle::is_finished) {
            Some(ended) => break twins.remove(ended),
            None => thread::sleep(PAUSE),
        }
    };
    let error = ended.join().unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::SameNumber { process: 2, .. }), "{error}");
    started.extend(twins);
    started.push(start(addresses.member(1), 0));
    all(started);
}

#[test]
fn a_living_process_is_asked_once_at_a_time() {
    let addresses = Addresses::new(2);
    let (first, _) = start_cancellable(addresses.member(0), 0);
    let member = addresses.member(1);
    let [living, second, third] = [(); 3].map(|()| claim(&member, None));
    let stream = shake_hands_until(&member, 0, &living, is_accepted);
    let asks = {
        let member = member.clone();
        thread::spawn(move || shake_hands(&member, 0, &second).unwrap().1.verdict)
    };
    assert_eq!(receive(&stream), Message::Ping);
    stream.write(&[&Message::Complete(1).encode()]).unwrap();
    // On a slow machine, the second has the place already, and the third one waits in vain.
    let is_slow = shake_hands(&member, 0, &third).is_ok();
    let _ = stream.write(&[&Message::Pong.encode()]);
    let verdict = asks.join().unwrap();
    if !is_slow && matches!(verdict, Verdict::SameNumber { .. }) {
        assert_eq!(receive(&stream), Message::Go(1));
        stream.write(&[b"timely"]).unwrap();
        let connected = first.join().unwrap().unwrap();
        assert_eq!(read(connected.channels[1].as_ref().unwrap(), 6), b"timely");
    }
}

#[test]
fn a_process_at_a_wrong_address_is_told() {
    let (addresses, elsewhere) = (Addresses::new(3), Addresses::new(1));
    let (second, cancel) = start_cancellable(addresses.member(1), 0);
    drop(dial(&addresses.hosts[1]));
    let error = connect(&addresses.member(1), 0, LONG, &|| false).unwrap_err();
    assert!(error.to_string().contains("another process listens there"), "{error}");
    let mut same = addresses.member(1);
    same.hosts = vec![addresses.hosts[1].clone(), elsewhere.hosts[0].clone(), addresses.hosts[2].clone()];
    let error = connect(&same, 0, LONG, &|| false).unwrap_err();
    assert!(
        matches!(&error, ConnectError::SameNumber { process: 1, address } if *address == addresses.hosts[1]),
        "{error}"
    );
    let mut other = addresses.member(2);
    other.hosts.swap(0, 1);
    impatient(&other, "process 1 answers at this address");
    cancel.store(true, Ordering::Relaxed);
    assert!(second.join().unwrap().is_err());
}

#[test]
fn a_process_that_comes_again_takes_its_place() {
    let addresses = Addresses::new(4);
    let (zero, two) = (start(addresses.member(0), 0), start(addresses.member(2), 0));
    // It says that it is complete, and dies.
    let member = addresses.member(1);
    let dies = shake_hands_until(&member, 0, &claim(&member, None), is_accepted);
    dies.write(&[&Message::Complete(1).encode()]).unwrap();
    drop(dies);
    // It dies when it knows the generation, which it needs to accept process 3.
    let (dies, cancel) = start_cancellable(member.clone(), 0);
    let three = addresses.member(3);
    drop(shake_hands_until(&three, 1, &claim(&three, Some(0)), is_accepted));
    cancel.store(true, Ordering::Relaxed);
    assert!(dies.join().unwrap().is_err());
    // It hangs.
    let hangs = shake_hands_until(&member, 0, &claim(&member, None), is_accepted);
    all(vec![zero, two, start(member, 0), start(three, 0)]);
    drop(hangs);
}

#[test]
fn a_new_process_0_brings_a_new_generation() {
    let addresses = Addresses::new(3);
    let (dies, cancel) = start_cancellable(addresses.member(0), 5);
    let one = start(addresses.member(1), 0);
    let member = addresses.member(2);
    let accepted = shake_hands_until(&member, 1, &claim(&member, Some(5)), is_accepted);
    let (_, reply) = shake_hands(&member, 1, &claim(&member, Some(4))).unwrap();
    assert_eq!(reply.verdict, Verdict::OtherGeneration);
    cancel.store(true, Ordering::Relaxed);
    assert!(dies.join().unwrap().is_err());
    let zero = start(addresses.member(0), 6);
    for connected in all(vec![zero, one, start(member, 0)]) {
        assert_eq!(connected.generation, 6);
    }
    drop(accepted);
}

#[test]
fn no_byte_of_timely_is_read() {
    let addresses = Addresses::new(3);
    let [zero, one, two] = [0, 1, 2].map(|process| addresses.member(process));
    let listeners = [&zero, &one].map(|member| TcpListener::bind(&member.hosts[member.process]).unwrap());
    let (started, _) = start_cancellable(two, 0);
    let mut to_zero = accept_one(&listeners[0], &zero, &claim(&zero, Some(9)));
    // Process 1 was told to go first.
    let to_one = accept_one(&listeners[1], &one, &claim(&one, Some(9)));
    to_one.write(&[b"timely"]).unwrap();
    assert_eq!(receive(&to_zero), Message::Complete(1));
    // Process 0 is lost, and comes again.
    drop(to_zero);
    to_zero = accept_one(&listeners[0], &zero, &claim(&zero, Some(9)));
    assert_eq!(receive(&to_zero), Message::Complete(2));
    to_zero.write(&[&Message::Ping.encode(), &Message::Go(2).encode(), b"timely"]).unwrap();
    assert_eq!(receive(&to_zero), Message::Pong);
    let connected = started.join().unwrap().unwrap();
    for channel in connected.channels.iter().flatten() {
        assert_eq!(read(channel, 6), b"timely");
    }
}

#[test]
fn a_process_that_is_lost_at_the_last_moment_is_an_error() {
    let addresses = Addresses::new(3);
    let [zero, one, two] = [0, 1, 2].map(|process| addresses.member(process));
    let listeners = [&zero, &one].map(|member| TcpListener::bind(&member.hosts[member.process]).unwrap());
    let (started, _) = start_cancellable(two, 0);
    let to_zero = accept_one(&listeners[0], &zero, &claim(&zero, Some(9)));
    let to_one = accept_one(&listeners[1], &one, &claim(&one, Some(9)));
    assert_eq!(receive(&to_zero), Message::Complete(1));
    drop(to_one);
    assert_eq!(receive(&to_zero), Message::Incomplete);
    to_zero.write(&[&Message::Go(1).encode()]).unwrap();
    let error = started.join().unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::Lost { process: 1, .. }), "{error}");
}

#[test]
fn missing_processes_are_named() {
    let addresses = Addresses::new(3);
    let [zero, one, two] = [0, 1, 2].map(|process| &addresses.hosts[process]);
    let error = connect(&addresses.member(0), 0, Duration::from_millis(200), &|| false).unwrap_err();
    let expected = format!(
        "process 1 ({one}) did not connect within 0.2 s: nothing came from it; \
         process 2 ({two}) did not connect within 0.2 s: nothing came from it"
    );
    assert_eq!(error.to_string(), expected);
    let error = impatient(&addresses.member(2), "connection refused");
    assert!(error.starts_with(&format!("process 0 ({zero}) did")) && !error.contains(';'), "{error}");
    // A name that is not known yet, or never.
    let mut unknown = addresses.member(1);
    unknown.hosts[0] = "no-such-host.invalid:7100".to_owned();
    let error = connect(&unknown, 0, Duration::from_millis(200), &|| false).unwrap_err();
    assert!(error.to_string().starts_with("process 0 (no-such-host.invalid:7100) did not connect"), "{error}");
    // All is connected, but process 0 does not say "go".
    let addresses = Addresses::new(2);
    let zero = addresses.member(0);
    let listener = TcpListener::bind(&zero.hosts[0]).unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        loop {
            kept.push(accept_one(&listener, &zero, &claim(&zero, Some(0))));
        }
    });
    impatient(&addresses.member(1), "it waits for other processes");
}

#[test]
fn a_wait_can_be_cancelled() {
    let addresses = Addresses::new(2);
    for process in 0..2 {
        let (started, cancel) = start_cancellable(addresses.member(process), 0);
        thread::sleep(PAUSE);
        cancel.store(true, Ordering::Relaxed);
        assert!(matches!(started.join().unwrap(), Err(ConnectError::Cancelled)));
    }
}

#[test]
fn a_wrong_description_is_an_error() {
    let addresses = Addresses::new(2);
    let member = |hosts: &[&str]| Member {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        secret: None,
        ..addresses.member(0)
    };
    for host in ["10.0.0.3:7100", "node-3:7100", "0.0.0.0:7100", "[::]:7100", "[::ffff:10.0.0.3]:7100"] {
        let member = member(&["127.0.0.1:7100", host]);
        let error = connect(&member, 0, LONG, &|| false).unwrap_err();
        assert!(matches!(&error, ConnectError::Config(ConfigError::NoSecret(address)) if address == host), "{error}");
        assert_eq!(Member { secret: addresses.member(0).secret, ..member }.check(), Ok(()));
    }
    for host in ["127.0.0.1", ":7100", "127.0.0.1:0", "node:http", "::1:7100", "[::1]", "http://node:7100", "a b:1", ""]
    {
        assert_eq!(member(&[host]).check(), Err(ConfigError::Address(host.to_owned())));
    }
    let same = "localhost:7100";
    assert_eq!(member(&[same, same]).check(), Err(ConfigError::SameAddress(same.to_owned())));
    assert_eq!(member(&[]).check(), Err(ConfigError::Process { process: 0, processes: 0 }));
    assert_eq!(Member { workers: 0, ..member(&[same]) }.check(), Err(ConfigError::NoWorkers));
    assert!(matches!(Secret::new(b"short"), Err(ConfigError::ShortSecret(5))));
    assert_eq!(format!("{:?}", addresses.member(0).secret), "Some(Secret)");
    let mut foreign = addresses.member(0);
    foreign.hosts[0] = "192.0.2.1:7100".to_owned();
    let error = connect(&foreign, 0, LONG, &|| false).unwrap_err();
    assert_eq!(error.to_string(), "cannot listen on 192.0.2.1:7100: it is not an address of this machine");
}

mod certified;
mod strangers;
