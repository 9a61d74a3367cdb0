//! Peers that do not take part in the handshake as they should.

use super::*;

/// Plays an acceptor that answers each first message with these bytes, and returns what a process says of it.
fn answered(bytes: &'static [u8], after: u64, expected: &str) -> String {
    let addresses = Addresses::new(2);
    let listener = TcpListener::bind(&addresses.hosts[0]).unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut hello = [0; 20];
            if stream.read_exact(&mut hello).is_ok() {
                assert_eq!(&hello, b"\0\x12turnflow cluster\0\x03");
                let _ = stream.write_all(bytes);
                // An empty answer is that of a process which hangs.
                kept.extend(bytes.is_empty().then_some(stream));
            }
        }
    });
    impatient_after(after, &addresses.member(1), expected)
}

#[test]
fn a_process_of_an_earlier_version_is_told_and_named() {
    // It connects.
    let addresses = Addresses::new(2);
    let (waits, cancel) = start_cancellable(addresses.member(0), 0);
    let mut earlier = dial(&addresses.hosts[0]);
    earlier.write_all(b"\0\x32turnflow cluster\0\x0232 bytes that may mean anything.").unwrap();
    let mut answer = Vec::new();
    let _ = earlier.read_to_end(&mut answer);
    // The earlier version says: "it speaks version 3 of the protocol, this process version 2".
    assert_eq!(answer, [0, 3, 3, 0, 3]);
    cancel.store(true, Ordering::Relaxed);
    assert!(waits.join().unwrap().is_err());
    let (member, address, over) = (addresses.member(0), addresses.hosts[0].clone(), Arc::new(AtomicBool::new(false)));
    let is_over = over.clone();
    let calls = thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            if let Ok(mut earlier) = TcpStream::connect(&address) {
                let _ = earlier.write_all(b"\0\x32turnflow cluster\0\x0232 bytes that may mean anything.");
                let _ = earlier.read_to_end(&mut Vec::new());
            }
            thread::sleep(PAUSE);
        }
    });
    let expected = "it speaks version 2 of the protocol, without TLS, this process version 3: start all processes with the \
                    same version of turnflow";
    let error = impatient(&member, expected);
    assert!(error.contains("process 1") && error.contains("was refused"), "{error}");
    over.store(true, Ordering::Relaxed);
    calls.join().unwrap();
    // It is connected to.
    let error = answered(&[0, 3, 3, 0, 2], 1, expected);
    assert!(error.starts_with("process 0"), "{error}");
}

#[test]
fn acceptors_that_are_no_process_are_named() {
    answered(b"HTTP/1.1 400 Bad Request\r\n\r\n", 1, "it does not speak turnflow's protocol");
    answered(b"\x15\x03\x03\0\x02\x02\x28", 1, "it does not speak turnflow's protocol");
    // The handshake of TLS is answered with something else.
    answered(b"\0\x01\x01HTTP/1.1 400 Bad Request\r\n\r\n", 1, "the TLS handshake failed: ");
    // After the time of a handshake.
    answered(b"", 6, "no answer in time");
}

#[test]
fn connectors_that_stop_in_the_middle_are_sent_away() {
    let addresses = Addresses::new(2);
    let first = start(addresses.member(0), 0);
    let member = addresses.member(1);
    let hello = b"\0\x12turnflow cluster\0\x03";
    let mut connection = member.checked().unwrap().connector(0).unwrap();
    let mut client_hello = Vec::new();
    connection.write_tls(&mut client_hello).unwrap();
    let told = [hello.as_slice(), &client_hello].concat();
    let cuts = [1, 2, 10, 19, 20, 21, 25, 30, told.len() - 1, told.len()];
    let mut silent: Vec<_> = cuts
        .iter()
        .map(|cut| {
            let mut stream = dial(&addresses.hosts[0]);
            stream.write_all(&told[..*cut]).unwrap();
            stream
        })
        .collect();
    // A member that says nothing after the handshake of TLS.
    let mut stream = dial(&addresses.hosts[0]);
    stream.write_all(hello).unwrap();
    stream.read_exact(&mut [0; 3]).unwrap();
    let tls = member.checked().unwrap().connector(0).unwrap();
    let secured = secure(&stream, tls, Instant::now() + LONG).unwrap();
    for stream in &mut silent {
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    stream.set_read_timeout(Some(LONG)).unwrap();
    let channel = Channel::new(stream, secured);
    assert!(matches!(channel.read(&mut [0; 10]), Ok(0)));
    all(vec![first, start(member, 0)]);
}

#[test]
fn random_bytes_at_any_moment_hold_up_nobody() {
    let addresses = Addresses::new(2);
    let first = start(addresses.member(0), 0);
    let member = addresses.member(1);
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for round in 0..60 {
        let mut client_hello = Vec::new();
        member.checked().unwrap().connector(0).unwrap().write_tls(&mut client_hello).unwrap();
        let mut told = [b"\0\x12turnflow cluster\0\x03".as_slice(), &client_hello].concat();
        let from = [0, 20, 25, 60][round % 4];
        match round % 3 {
            0 => told.truncate(from),
            1 => drop(told.drain(..from)),
            _ => {}
        }
        for _ in 0..1 + random() % 20 {
            match told.len() {
                0 => told.push(random() as u8),
                length => told[(from + random() % length) % length] = random() as u8,
            }
        }
        told.extend((0..random() % 2000).map(|_| random() as u8));
        let mut stream = dial(&addresses.hosts[0]);
        let _ = stream.write_all(&told);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    all(vec![first, start(member, 0)]);
}

#[test]
fn strangers_hold_up_nobody() {
    let addresses = Addresses::new(2);
    let first = start(addresses.member(0), 0);
    let silent: Vec<_> = (0..10).map(|_| dial(&addresses.hosts[0])).collect();
    let mut http = dial(&addresses.hosts[0]);
    http.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut endless = dial(&addresses.hosts[0]);
    let endless = thread::spawn(move || while endless.write_all(&[1; 4096]).is_ok() {});
    let mut hello = dial(&addresses.hosts[0]);
    hello.write_all(b"\0\x32turnflow cluster\0\x03too short").unwrap();
    let mut other_protocol = dial(&addresses.hosts[0]);
    other_protocol.write_all(b"\0\x32turnflow cluster\0\x0232 bytes that may mean anything.").unwrap();
    let mut answer = Vec::new();
    // The connection may be reset after the answer.
    let _ = other_protocol.read_to_end(&mut answer);
    assert_eq!(answer, [0, 3, 3, 0, 3]);
    all(vec![first, start(addresses.member(1), 0)]);
    endless.join().unwrap();
    drop((silent, http, hello));
}

#[test]
fn silent_strangers_are_sent_away() {
    let addresses = Addresses::new(2);
    let first = start(addresses.member(0), 0);
    // More than may be there at a time.
    let silent: Vec<_> = (0..150).map(|_| dial(&addresses.hosts[0])).collect();
    for mut stranger in &silent {
        assert!(stranger.read(&mut [0]).is_ok_and(|read| read == 0));
    }
    all(vec![first, start(addresses.member(1), 0)]);
}

fn relay(mut from: TcpStream, mut to: TcpStream) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let (mut recorded, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            recorded.extend_from_slice(&buffer[..read]);
            to.write_all(&buffer[..read]).unwrap();
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
        recorded
    })
}

#[test]
fn a_recorded_handshake_is_worth_nothing() {
    let addresses = Addresses::new(2);
    let first = start(addresses.member(0), 0);
    let member = addresses.member(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    let behind = addresses.hosts[0].clone();
    let recorder = thread::spawn(move || {
        let (here, there) = (listener.accept().unwrap().0, dial(&behind));
        let back = relay(there.try_clone().unwrap(), here.try_clone().unwrap());
        (relay(here, there).join().unwrap(), back.join().unwrap(), listener)
    });
    let claim = claim(&member, None);
    let tls = member.checked().unwrap();
    let genuine = call(dial(&between), &tls, 0, &claim, Instant::now() + LONG).unwrap();
    assert_eq!(genuine.1.verdict, Verdict::Accepted);
    drop(genuine);
    let (of_connector, of_acceptor, listener) = recorder.join().unwrap();
    // To the acceptor.
    let mut replayed = dial(&addresses.hosts[0]);
    replayed.write_all(&of_connector).unwrap();
    let mut answer = Vec::new();
    let _ = replayed.read_to_end(&mut answer);
    // Its part of the handshake, which is another one, and an alert, but no claim.
    assert!(answer.len() < of_acceptor.len());
    assert_ne!(answer[..100], of_acceptor[..100]);
    // To the connector.
    let replay = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&of_acceptor).unwrap();
        stream
    });
    let failed = call(dial(&between), &tls, 0, &claim, Instant::now() + LONG);
    assert!(matches!(&failed, Err(Failure::Tls(reason)) if reason.contains("the TLS handshake failed")), "{failed:?}");
    drop(replay.join().unwrap());
    all(vec![first, start(member, 0)]);
}
