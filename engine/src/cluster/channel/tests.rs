use std::sync::Arc;
use std::thread;

use super::*;
use crate::cluster::connect::tests::pair;

fn bytes(length: usize, from: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at % 251) as u8).collect()
}

fn read_all(channel: &Channel) -> Vec<u8> {
    let (mut found, mut buffer) = (Vec::new(), vec![0; 10_007]);
    loop {
        match channel.read(&mut buffer).unwrap() {
            0 => return found,
            read => found.extend_from_slice(&buffer[..read]),
        }
    }
}

#[test]
fn both_sides_send_much_at_the_same_time_and_nobody_waits_for_the_other() {
    let (one, other) = pair();
    // More than the buffers of the system have room for.
    const LENGTH: usize = 20_000_000;
    let ends = [(Arc::new(one), 0), (Arc::new(other), 7)];
    let writing = ends.clone().map(|(channel, from)| {
        thread::spawn(move || {
            bytes(LENGTH, from).chunks(60_000).for_each(|chunk| channel.write(&[&chunk[..1], &chunk[1..]]).unwrap());
            // New keys, as after very many bytes.
            channel.connection.lock().refresh_traffic_keys().unwrap();
            channel.write(&[b"", b"the end"]).unwrap();
            channel.close().unwrap();
            assert_eq!(channel.write(&[b"more"]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        })
    });
    let reading = ends.map(|(channel, from)| {
        thread::spawn(move || assert!(read_all(&channel) == [&*bytes(LENGTH, 7 - from), b"the end"].concat()))
    });
    writing.into_iter().chain(reading).for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_change_on_the_way_and_an_end_that_comes_early_are_noticed() {
    for changed in [false, true] {
        let (one, other) = pair();
        one.write(&[b"a question"]).unwrap();
        let mut buffer = [0; 64];
        assert_eq!(other.read(&mut buffer).unwrap(), 10);
        match changed {
            true => {
                let forged = [23, 3, 3, 0, 32].into_iter().chain([9; 32]).collect::<Vec<_>>();
                (&one.socket).write_all(&forged).unwrap();
                assert_eq!(other.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
                assert_eq!(other.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
            }
            // As when a process is killed.
            false => {
                drop(one);
                assert_eq!(other.read(&mut buffer).unwrap(), 0);
            }
        }
    }
}

#[test]
fn what_is_read_and_written_without_waiting_goes_on_later() {
    let (one, other) = pair();
    other.socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4];
    assert_eq!(other.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    one.write(&[b"0123456789"]).unwrap();
    let mut found = Vec::new();
    while found.len() < 10 {
        match other.read(&mut buffer) {
            Ok(read) => found.extend_from_slice(&buffer[..read]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    assert_eq!(found, b"0123456789");
    assert_eq!(other.read(&mut []).unwrap(), 0);
}
