//! Brings all processes of a cluster together: tries, accepts, and agrees on the moment to go.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::handshake::{self, Caller, Claim, Failure, Reply, plain};
use super::link::{Link, Message};
use super::sockets::{CannotListen, HANDSHAKE, Strangers, listen, open};
use super::tls::Tls;
use super::{ConnectError, Connected, Member, Missing, Secret};
use crate::cluster::channel::Channel;

/// How often connections are looked at.
const TICK: Duration = Duration::from_millis(10);

/// Maximum number of accepted connections in their handshake.
const GREETED: usize = 64;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);

enum Event {
    Listening(Result<TcpListener, CannotListen>),
    Called(Caller),
    Refused(SocketAddr, Failure),
    Reached(usize, Result<(Channel, Reply), Failure>),
}

pub(super) struct Peer {
    pub(super) link: Option<Link>,
    /// A second process with this number: whether it gets the place is known at this time at the latest.
    pub(super) contender: Option<(Caller, Instant)>,
    /// At process 0: the process has said that it has all its connections.
    pub(super) complete: Option<u64>,
    /// Why it is not connected.
    pub(super) reason: Option<String>,
    is_tried: bool,
    next_try: Instant,
    pause: Duration,
}

impl Peer {
    fn is_complete(&self) -> bool {
        self.complete.is_some() && self.contender.is_none()
    }
}

/// A process that waits for the others.
pub(super) struct Gathering<'a> {
    pub(super) member: &'a Member,
    tls: Arc<Tls>,
    pub(super) claim: Claim,
    pub(super) peers: Vec<Peer>,
    listener: Option<TcpListener>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    /// Has a clone for each accepted connection in its handshake.
    greeted: Arc<()>,
    strangers: Strangers,
    /// The number under which process 0 knows that this process has all its connections.
    pub(super) complete: Option<u64>,
    last_complete: u64,
}

impl<'a> Gathering<'a> {
    pub(super) fn new(member: &'a Member, tls: Tls, generation: u64) -> Result<Self, ConnectError> {
        let (sender, events) = crossbeam_channel::unbounded();
        let peer = |_| Peer {
            link: None,
            contender: None,
            complete: None,
            reason: None,
            is_tried: false,
            next_try: Instant::now(),
            pause: FIRST_RETRY,
        };
        let claim = Claim {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: member.process,
            processes: member.hosts.len(),
            workers: member.workers,
            plan: member.plan.clone(),
            generation: (member.process == 0).then_some(generation),
            instance: u64::from_ne_bytes(handshake::random().map_err(ConnectError::Random)?),
            secret: member.secret.as_ref().map(Secret::fingerprint),
        };
        Ok(Self {
            member,
            tls: Arc::new(tls),
            claim,
            peers: member.hosts.iter().map(peer).collect(),
            listener: None,
            sender,
            events,
            greeted: Arc::new(()),
            strangers: Strangers::default(),
            complete: None,
            last_complete: 0,
        })
    }

    pub(super) fn run(
        mut self,
        patience: Duration,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Connected, ConnectError> {
        let end = Instant::now().checked_add(patience);
        loop {
            if is_cancelled() {
                return Err(ConnectError::Cancelled);
            }
            self.greet();
            self.try_others();
            if let Ok(event) = self.events.recv_timeout(TICK) {
                self.handle(event)?;
            }
            while let Ok(event) = self.events.try_recv() {
                self.handle(event)?;
            }
            let go = self.look_at_links();
            self.settle();
            if self.is_over(go)? {
                return self.connected();
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return Err(self.missing(patience));
            }
        }
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let process = self.member.process;
        (0..self.peers.len()).filter(move |other| *other != process)
    }

    /// Starts the handshakes of those that connect to this process.
    fn greet(&mut self) {
        let Some(listener) = &self.listener else { return };
        // A flood of connections leaves time for the rest.
        for _ in 0..GREETED {
            let Ok((stream, address)) = listener.accept() else { return };
            if Arc::strong_count(&self.greeted) > GREETED {
                self.strangers.warn(address, &"there are too many connections at a time");
                continue;
            }
            let (tls, greeted, deadline) = (self.tls.clone(), self.greeted.clone(), Instant::now() + HANDSHAKE);
            let started = spawn(&self.sender, move || {
                let called = handshake::accept(stream, &tls, deadline);
                drop(greeted);
                called.map_or_else(|failure| Event::Refused(address, failure), Event::Called)
            });
            if let Err(error) = started {
                self.strangers.warn(address, &error);
            }
        }
    }

    /// Starts to listen, and to connect to the processes with lower numbers that are not connected.
    fn try_others(&mut self) {
        let own = self.member.process;
        for process in 0..=own {
            let is_wanted = match process {
                _ if process == own => self.listener.is_none() && self.peers.len() > 1,
                _ if self.peers[process].link.is_some() => false,
                // Process 0 says the generation first.
                _ => process == 0 || self.claim.generation.is_some(),
            };
            let peer = &mut self.peers[process];
            if !is_wanted || peer.is_tried || Instant::now() < peer.next_try {
                continue;
            }
            peer.is_tried = true;
            let (address, is_local) = (self.member.hosts[process].clone(), self.member.is_open());
            let (tls, claim) = (self.tls.clone(), self.claim.clone());
            let started = match process == own {
                true => spawn(&self.sender, move || Event::Listening(listen(&address, is_local))),
                false => spawn(&self.sender, move || {
                    let reached = open(&address, is_local)
                        .map_err(Failure::from)
                        .and_then(|(stream, deadline)| handshake::call(stream, &tls, process, &claim, deadline));
                    Event::Reached(process, reached)
                }),
            };
            if let Err(error) = started {
                self.retry(process, error.to_string());
            }
        }
    }

    fn retry(&mut self, process: usize, reason: String) {
        let peer = &mut self.peers[process];
        peer.is_tried = false;
        peer.next_try = Instant::now() + peer.pause;
        peer.pause = (peer.pause * 2).min(LAST_RETRY);
        self.note(process, reason);
    }

    pub(super) fn note(&mut self, process: usize, reason: String) {
        let peer = &mut self.peers[process];
        if peer.reason.as_ref() != Some(&reason) {
            let address = &self.member.hosts[process];
            tracing::info!(process, %address, %reason, "waiting for a process of the cluster");
            peer.reason = Some(reason);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), ConnectError> {
        let own = self.member.process;
        match event {
            Event::Listening(Ok(listener)) => self.listener = Some(listener),
            Event::Listening(Err(CannotListen::Unresolved(reason))) => self.retry(own, reason),
            Event::Listening(Err(CannotListen::Never(reason))) => return Err(self.cannot_listen(reason)),
            Event::Refused(address, failure) => self.strangers.warn(address, &failure),
            Event::Called(caller) => self.called(caller)?,
            Event::Reached(process, Err(failure)) => self.retry(process, failure.to_string()),
            Event::Reached(process, Ok((channel, reply))) => match self.judge(process, &reply)? {
                Some(reason) => self.retry(process, reason),
                None => {
                    let peer = &mut self.peers[process];
                    (peer.is_tried, peer.next_try, peer.pause) = (false, Instant::now() + FIRST_RETRY, FIRST_RETRY);
                    self.connect(process, channel, reply.claim.instance);
                }
            },
        }
        Ok(())
    }

    pub(super) fn connect(&mut self, process: usize, channel: Channel, instance: u64) {
        match Link::new(channel, instance) {
            Ok(link) => {
                tracing::debug!(process, address = %self.member.hosts[process], "a process is connected");
                self.peers[process].link = Some(link);
            }
            Err(error) => self.lose(process, &plain(&error)),
        }
        self.peers[process].complete = None;
        if process == 0 {
            self.complete = None;
        }
    }

    fn lose(&mut self, process: usize, why: &str) {
        let peer = &mut self.peers[process];
        (peer.link, peer.complete) = (None, None);
        if process == 0 {
            self.complete = None;
        }
        self.note(process, format!("the connection was lost ({why})"));
    }

    /// Drops the connections that are lost, and reads what process 0 and the others tell each other. Returns the number
    /// of process 0's "go".
    fn look_at_links(&mut self) -> Option<u64> {
        let mut go = None;
        for process in self.others() {
            if self.member.process != 0 && process != 0 {
                // The other process may have sent timely's bytes already: nothing is read.
                if self.peers[process].link.as_ref().is_some_and(|link| !link.is_open()) {
                    self.lose(process, "it was closed");
                }
                continue;
            }
            while go.is_none()
                && let Some(link) = &mut self.peers[process].link
            {
                match link.receive() {
                    Ok(None) => break,
                    Ok(Some(Message::Go(number))) => go = Some(number),
                    Ok(Some(message)) => self.told(process, message),
                    Err(error) => self.lose(process, &plain(&error)),
                }
            }
        }
        go
    }

    fn told(&mut self, process: usize, message: Message) {
        let peer = &mut self.peers[process];
        match message {
            Message::Complete(number) => peer.complete = Some(number),
            Message::Incomplete => peer.complete = None,
            Message::Pong => self.refuse_contender(process),
            // If it cannot be sent, the connection is lost, which is seen when it is read.
            Message::Ping => drop(peer.link.as_mut().map(|link| link.send(Message::Pong))),
            Message::Go(_) => {}
        }
    }

    /// Tells process 0 whether this process is complete; as process 0, tells all to go when all are complete.
    fn is_over(&mut self, go: Option<u64>) -> Result<bool, ConnectError> {
        let lost = self.others().find(|process| self.peers[*process].link.is_none());
        if self.member.process == 0 {
            if lost.is_some() || !self.others().all(|process| self.peers[process].is_complete()) {
                return Ok(false);
            }
            for (told, process) in self.others().enumerate() {
                let peer = &mut self.peers[process];
                let (Some(link), Some(number)) = (&mut peer.link, peer.complete) else { continue };
                match link.send(Message::Go(number)) {
                    Ok(()) => {}
                    Err(_) if told > 0 => return Err(self.lost(process)),
                    Err(error) => {
                        self.lose(process, &plain(&error));
                        return Ok(false);
                    }
                }
            }
            return Ok(true);
        }
        if let Some(go) = go {
            return match (lost, self.complete == Some(go)) {
                (None, true) => Ok(true),
                (lost, _) => Err(self.lost(lost.unwrap_or(0))),
            };
        }
        let told = match (lost, self.complete) {
            (None, None) => {
                self.last_complete += 1;
                self.complete = Some(self.last_complete);
                Some(Message::Complete(self.last_complete))
            }
            (Some(_), Some(_)) => {
                self.complete = None;
                Some(Message::Incomplete)
            }
            _ => None,
        };
        if let (Some(message), Some(link)) = (told, &mut self.peers[0].link)
            && let Err(error) = link.send(message)
        {
            self.lose(0, &plain(&error));
        }
        Ok(false)
    }

    fn connected(self) -> Result<Connected, ConnectError> {
        let mut channels = Vec::with_capacity(self.peers.len());
        let generation = self.claim.generation.unwrap_or_default();
        for (process, (peer, address)) in self.peers.into_iter().zip(&self.member.hosts).enumerate() {
            let channel = peer.link.map(Link::into_channel).transpose();
            channels.push(channel.map_err(|_| ConnectError::Lost { process, address: address.clone() })?);
        }
        Ok(Connected { channels, generation })
    }

    fn lost(&self, process: usize) -> ConnectError {
        ConnectError::Lost { process, address: self.member.hosts[process].clone() }
    }

    fn cannot_listen(&self, reason: String) -> ConnectError {
        ConnectError::Listen { address: self.member.hosts[self.member.process].clone(), reason }
    }

    fn missing(&self, patience: Duration) -> ConnectError {
        let own = self.member.process;
        if let (None, Some(reason)) = (&self.listener, &self.peers[own].reason) {
            return self.cannot_listen(reason.clone());
        }
        let mut missing: Vec<_> = self.others().filter(|process| self.peers[*process].link.is_none()).collect();
        if self.claim.generation.is_none() {
            // The others come after process 0.
            missing = vec![0];
        }
        let waits = missing.is_empty();
        if waits && own == 0 {
            missing = self.others().filter(|process| !self.peers[*process].is_complete()).collect();
        } else if waits {
            missing = vec![0];
        }
        let missing = missing.into_iter().map(|process| {
            let reason = match &self.peers[process].reason {
                _ if waits => "it waits for other processes".to_owned(),
                Some(reason) => reason.clone(),
                None if process < own => "no answer yet".to_owned(),
                None => self.strangers.last.clone().unwrap_or_else(|| "nothing came from it".to_owned()),
            };
            Missing { process, address: self.member.hosts[process].clone(), patience, reason }
        });
        ConnectError::Missing(missing.collect())
    }
}

/// Does what may take long on its own thread.
fn spawn(sender: &Sender<Event>, work: impl FnOnce() -> Event + Send + 'static) -> io::Result<()> {
    let sender = sender.clone();
    // If nobody waits any more, the event is dropped, and its connection closed.
    let thread = thread::Builder::new().name("connect".to_owned()).spawn(move || drop(sender.send(work())));
    thread.map(drop)
}
