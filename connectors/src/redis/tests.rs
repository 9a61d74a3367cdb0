use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use redis::streams::StreamRangeReply;
use redis::{Commands, Connection};
use turnflow_engine::connector::{AnswerSink, Delivery, Mode};
use turnflow_engine::spec::from_str;

use super::sink::{RedisSink, RedisSinkConfig};
use super::turns::{RedisConfig, RedisTurns};
use crate::servers::{REDIS, Server, shared};
use crate::testing::{Turns, answer, context, runtime, turn};

pub(crate) fn is_there() -> bool {
    shared(REDIS).is_some()
}

fn client(port: u16) -> Connection {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap().get_connection().unwrap()
}

fn add(client: &mut Connection, stream: &str, line: &str) -> String {
    client.xadd::<_, _, _, _, Option<String>>(stream, "*", &[("record", line)]).unwrap().unwrap()
}

fn turns(port: u16, stream: &str, further: &str) -> RedisTurns {
    let ron = format!(r#"(url: "redis://127.0.0.1:{port}", stream: "{stream}"{further})"#);
    from_str::<RedisConfig>(&ron).unwrap().source(&context("turns"))
}

fn sink(port: u16, stream: &str) -> RedisSink {
    let ron = format!(r#"(input: "a", url: "redis://127.0.0.1:{port}", stream: "{stream}")"#);
    from_str::<RedisSinkConfig>(&ron).unwrap().sink().unwrap()
}

fn name(base: &Path) -> String {
    base.display().to_string()
}

/// For the cases of `conformance`.
pub(crate) fn turns_of(base: &Path, lines: &[u8]) -> RedisTurns {
    let port = shared(REDIS).unwrap();
    let mut client = client(port);
    if !client.exists::<_, bool>(name(base)).unwrap() {
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            client.xadd::<_, _, _, _, ()>(name(base), "*", &[("record", line)]).unwrap();
        }
    }
    turns(port, &name(base), "")
}

type ReadBack = Box<dyn Fn() -> Vec<u8>>;

pub(crate) fn sink_of(base: &Path) -> (Box<dyn AnswerSink>, ReadBack) {
    let (port, name) = (shared(REDIS).unwrap(), name(base));
    let read_back = {
        let name = name.clone();
        move || {
            let entries: StreamRangeReply = client(port).xrange_all(&name).unwrap();
            let lines = entries.ids.iter().map(|entry| entry.get::<Vec<u8>>("record").unwrap());
            lines.flat_map(|line| [&line[..], b"\n"].concat()).collect()
        }
    };
    (Box::new(sink(port, &name)), Box::new(read_back))
}

#[test]
fn turns_go_on_where_they_were_after_the_server_was_away() {
    let Some(mut server) = Server::start(REDIS) else { return };
    server.down();
    let running = Turns::run(turns(server.port, "t", ""), Mode::Follow);
    std::thread::sleep(Duration::from_millis(200));
    for round in 0..2 {
        server.up();
        let mut client = client(server.port);
        for number in 0..100 {
            add(&mut client, "t", &turn(&format!("{round}-{number}")));
        }
        for number in 0..100 {
            assert_eq!(running.text(), format!("{round}-{number}"));
        }
        server.down();
    }
    assert!(running.dead().is_empty());
    running.end(true).unwrap_err();
}

#[test]
fn a_server_that_is_silent_is_left_and_asked_again() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    add(&mut client, "t", &turn("one"));
    let running = Turns::run(turns(server.port, "t", ""), Mode::Follow);
    assert_eq!(running.text(), "one");
    let mut sink = sink(server.port, "a");
    let (answers, taken) = ([answer()], AtomicUsize::new(0));
    let deliver = |sink: &mut RedisSink| runtime().block_on(sink.deliver(Delivery::new(&answers, &taken)));
    deliver(&mut sink).unwrap();
    // The connections stay open, and no reply comes.
    server.freeze(true);
    let error = deliver(&mut sink).unwrap_err();
    assert!(crate::remote::may_pass(&error) && error.to_string().contains("has not replied for 1 s"), "{error}");
    server.freeze(false);
    add(&mut client, "t", &turn("two"));
    assert_eq!(running.text(), "two");
    deliver(&mut sink).unwrap();
    running.end(true).unwrap_err();
}

#[test]
fn an_entry_may_have_the_fields_of_the_record() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    let fields = [("conversation_id", "c"), ("turn", "3"), ("speaker", "user"), ("text", "7"), ("lang", "en")];
    client.xadd::<_, _, _, _, ()>("t", "5-1", &fields).unwrap();
    client.xadd::<_, _, _, _, ()>("t", "5-2", &[("text", &b"\xff"[..])]).unwrap();
    client.xadd::<_, _, _, _, ()>("t", "5-3", &[("text", "x".repeat(2 << 20))]).unwrap();
    let (turns, dead) = Turns::run(turns(server.port, "t", ""), Mode::Once).all();
    let record = &turns[0].record;
    assert_eq!((record.turn, &*record.text, &record.extra["lang"]), (3, "7", &"en".into()));
    assert_eq!((turns.len(), &*turns[0].position), (1, "t@5-1"));
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(dead[0].starts_with("t@5-2: `text` is not UTF-8"), "{dead:?}");
    assert!(dead[1].starts_with("t@5-3: the entry has 2097156 bytes"), "{dead:?}");
}

#[test]
fn a_stream_that_was_made_again_is_read_from_its_beginning() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    let add = |client: &mut Connection, id: &str, text: &str| {
        client.xadd::<_, _, _, _, ()>("t", id, &[("record", turn(text))]).unwrap();
    };
    add(&mut client, "100-0", "one");
    let running = Turns::run(turns(server.port, "t", ""), Mode::Once);
    let old = running.take().place.unwrap();
    running.wait();
    client.del::<_, ()>("t").unwrap();
    add(&mut client, "7-0", "again");
    let running = Turns::resume(turns(server.port, "t", ""), Mode::Once, Some(old.clone()));
    let turn = running.take();
    assert_eq!(&*turn.record.text, "again");
    assert!(turn.place.unwrap().order() > old.order());
    running.wait();
}

/// Why it exists: a stream that was made again was taken for the one that was read, and entries up to that id were lost.
#[test]
fn a_stream_that_was_made_again_with_the_same_ids_is_another_stream() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    let add = |client: &mut Connection, id: &str, text: &str| {
        client.xadd::<_, _, _, _, ()>("t", id, &[("record", turn(text))]).unwrap();
    };
    let again: [&[&str]; 4] = [&["5-0", "10-0", "20-0"], &["10-0", "15-0"], &["12-0", "15-0"], &["1-0", "30-0"]];
    for ids in again {
        client.del::<_, ()>("t").unwrap();
        ["10-0", "11-0", "20-0"].iter().for_each(|id| add(&mut client, id, "old"));
        let (read, _) = Turns::run(turns(server.port, "t", ""), Mode::Once).all();
        let place = read[2].place.clone().unwrap();
        // The same stream goes on.
        let (read, _) = Turns::resume(turns(server.port, "t", ""), Mode::Once, Some(place.clone())).all();
        assert_eq!(read.len(), 0);
        client.del::<_, ()>("t").unwrap();
        ids.iter().for_each(|id| add(&mut client, id, "new"));
        let (read, _) = Turns::resume(turns(server.port, "t", ""), Mode::Once, Some(place.clone())).all();
        assert_eq!(read.len(), ids.len(), "{ids:?}");
        assert!(read.iter().all(|turn| turn.place.as_ref().unwrap().generation == 1), "{ids:?}");
    }
}

#[test]
fn a_stream_that_is_made_again_while_it_is_read_is_read_from_its_beginning() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    let add = |client: &mut Connection, id: &str, text: &str| {
        client.xadd::<_, _, _, _, ()>("t", id, &[("record", turn(text))]).unwrap();
    };
    add(&mut client, "100-0", "old");
    let running = Turns::run(turns(server.port, "t", ""), Mode::Follow);
    assert_eq!(running.text(), "old");
    client.del::<_, ()>("t").unwrap();
    add(&mut client, "7-0", "new");
    assert_eq!(running.text(), "new");
    running.end(true).unwrap_err();
}

/// A trimmed stream, and one from which the entry that was read last was deleted, are the same streams.
#[test]
fn a_stream_from_which_entries_were_removed_goes_on() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    for ids in [&["20-0"][..], &["10-0", "20-0"], &["10-0"]] {
        client.del::<_, ()>("t").unwrap();
        for id in ["10-0", "11-0", "20-0", "21-0"] {
            client.xadd::<_, _, _, _, ()>("t", id, &[("record", turn(id))]).unwrap();
        }
        let (read, _) = Turns::run(turns(server.port, "t", ""), Mode::Once).all();
        let place = read[2].place.clone().unwrap();
        client.xdel::<_, _, ()>("t", ids).unwrap();
        let (read, _) = Turns::resume(turns(server.port, "t", ""), Mode::Once, Some(place.clone())).all();
        assert_eq!(read.len(), 1, "{ids:?}");
        redis::cmd("XTRIM").arg("t").arg("MAXLEN").arg(1).exec(&mut client).unwrap();
        let (read, _) = Turns::resume(turns(server.port, "t", ""), Mode::Once, Some(place)).all();
        assert_eq!((read.len(), &*read[0].record.text), (1, "21-0"), "{ids:?}");
    }
}

#[test]
fn covered_entries_are_removed_if_the_pipeline_says_so() {
    let Some(server) = Server::start(REDIS) else { return };
    let mut client = client(server.port);
    for text in ["one", "two", "three"] {
        add(&mut client, "t", &turn(text));
    }
    let running = Turns::run(turns(server.port, "t", ", trim: true"), Mode::Once);
    let read = [running.take(), running.take(), running.take()];
    running.wait();
    assert_eq!(client.xlen::<_, usize>("t").unwrap(), 3, "no checkpoint covers them");
    let running = Turns::resume(turns(server.port, "t", ", trim: true"), Mode::Once, read[1].place.clone());
    assert_eq!(running.text(), "three");
    running.wait();
    assert_eq!(client.xlen::<_, usize>("t").unwrap(), 1);
}

#[test]
fn answers_have_their_key_and_wait_for_the_server() {
    let Some(mut server) = Server::start(REDIS) else { return };
    let mut sink = sink(server.port, "a");
    let (answers, taken) = ([answer()], AtomicUsize::new(0));
    let deliver = |sink: &mut RedisSink| runtime().block_on(sink.deliver(Delivery::new(&answers, &taken)));
    deliver(&mut sink).unwrap();
    server.down();
    assert!(crate::remote::may_pass(&deliver(&mut sink).unwrap_err()));
    server.up();
    deliver(&mut sink).unwrap();
    let entries: StreamRangeReply = client(server.port).xrange_all("a").unwrap();
    let keys: Vec<String> = entries.ids.iter().map(|entry| entry.get("key").unwrap()).collect();
    assert_eq!(keys, ["k", "k"], "at least once, with the key");
}

#[test]
fn a_password_that_has_changed_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("password");
    std::fs::write(&secret, "first").unwrap();
    let Some(mut server) = Server::start(REDIS) else { return };
    let protect = |password: &str| {
        let mut client = client(server.port);
        redis::cmd("CONFIG").arg("SET").arg("requirepass").arg(password).exec(&mut client).unwrap();
    };
    protect("first");
    let authenticated = |port: u16, password: &str| {
        let url = format!("redis://:{password}@127.0.0.1:{port}");
        redis::Client::open(url).unwrap().get_connection().unwrap()
    };
    add(&mut authenticated(server.port, "first"), "t", &turn("one"));
    let running = Turns::run(turns(server.port, "t", &format!(", password: Some(File({secret:?}))")), Mode::Follow);
    assert_eq!(running.text(), "one");
    server.down();
    std::fs::write(&secret, "second").unwrap();
    server.up();
    let mut open = client(server.port);
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("second").exec(&mut open).unwrap();
    add(&mut authenticated(server.port, "second"), "t", &turn("two"));
    assert_eq!(running.text(), "two");
    running.end(true).unwrap_err();
}

/// A server that is away may come; a password that it has never accepted is wrong.
#[test]
fn a_wrong_password_is_an_error_at_the_start() {
    let Some(mut server) = Server::start(REDIS) else { return };
    let port = server.port;
    server.down();
    let running = Turns::run(turns(port, "t", ""), Mode::Follow);
    server.up();
    add(&mut client(port), "t", &turn("one"));
    assert_eq!(running.text(), "one");
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("other").exec(&mut client(port)).unwrap();
    let error = Turns::run(turns(port, "t", ""), Mode::Follow).end(false).unwrap_err().to_string();
    assert!(error.contains("the server refuses the credentials") && error.contains("NOAUTH"), "{error}");
    running.end(true).unwrap_err();
}
