//! Decides which other process fits, as the connector and as the acceptor.

use std::time::{Duration, Instant};

use super::ConnectError;
use super::gather::Gathering;
use super::handshake::{Caller, Claim, Reply, Verdict};
use super::link::Message;
use crate::cluster::channel::Channel;

/// A process that does not answer within this time may be replaced by another one with its number.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

impl Gathering<'_> {
    /// Why a process that this one has reached does not fit, if so. Learns the generation from process 0.
    pub(super) fn judge(&mut self, process: usize, reply: &Reply) -> Result<Option<String>, ConnectError> {
        let (claim, own) = (&reply.claim, self.member.process);
        let same_number = |address: &String| ConnectError::SameNumber { process: own, address: address.clone() };
        if claim.process == own && claim.instance != self.claim.instance {
            return Err(same_number(&self.member.hosts[process]));
        }
        if claim.process != process {
            return Ok(Some(format!("process {} answers at this address", claim.process)));
        }
        if let Some(reason) = self.difference(claim, &self.member.hosts[process])? {
            return Ok(Some(reason));
        }
        match &reply.verdict {
            Verdict::SameNumber { address } => Err(same_number(address)),
            Verdict::NotReady => Ok(Some("it waits for process 0".to_owned())),
            Verdict::Refused => Ok(Some("it refuses this process".to_owned())),
            Verdict::Accepted if process == 0 && claim.generation.is_some() => {
                if self.claim.generation != claim.generation {
                    self.claim.generation = claim.generation;
                    self.peers.iter_mut().for_each(|peer| peer.link = None);
                }
                Ok(None)
            }
            Verdict::Accepted if process != 0 && claim.generation == self.claim.generation => Ok(None),
            Verdict::Accepted | Verdict::OtherGeneration => Ok(Some(self.other_generation(claim))),
        }
    }

    fn other_generation(&self, claim: &Claim) -> String {
        let name = |generation: Option<u64>| generation.map_or("none".to_owned(), |generation| generation.to_string());
        format!("its generation is {}, this process's {}", name(claim.generation), name(self.claim.generation))
    }

    /// How another process's settings differ from this one's, if a restart of that process may change it; an error
    /// otherwise.
    fn difference(&self, claim: &Claim, address: &str) -> Result<Option<String>, ConnectError> {
        let own = &self.claim;
        let differs = |difference: String| ConnectError::Differs {
            process: claim.process,
            address: address.to_owned(),
            difference,
        };
        if claim.version != own.version {
            return Ok(Some(format!("it runs turnflow {}, this process {}", claim.version, own.version)));
        }
        if claim.processes != own.processes {
            let (theirs, ours) = (claim.processes, own.processes);
            return Err(differs(format!("its cluster has {theirs} processes, this process's {ours}")));
        }
        if claim.workers != own.workers {
            let (theirs, ours) = (claim.workers, own.workers);
            return Err(differs(format!("its number of workers is {theirs}, this process's {ours}")));
        }
        if claim.secret != own.secret {
            return Ok(Some("it has another secret, or only one of the two processes has one".to_owned()));
        }
        let hash = |plan: &str| plan.split(' ').next().map(str::to_owned);
        Ok((claim.plan != own.plan).then(|| match hash(&claim.plan) == hash(&own.plan) {
            true => "it has other files of a model, or lacks another optional model".to_owned(),
            false => "it runs another pipeline file, or another version of it".to_owned(),
        }))
    }

    /// Decides about a process that has connected to this one.
    pub(super) fn called(&mut self, caller: Caller) -> Result<(), ConnectError> {
        let (process, own) = (caller.claim.process, self.member.process);
        let address = self.member.hosts.get(process).cloned().unwrap_or_else(|| caller.address());
        let difference = match self.difference(&caller.claim, &address) {
            Ok(difference) => difference,
            Err(error) => {
                self.answer(caller, Verdict::Refused);
                return Err(error);
            }
        };
        if process <= own || process >= self.peers.len() {
            let from = caller.address();
            tracing::warn!(process, %from, "a process with a lower number, or with the same one, is refused");
            self.answer(caller, Verdict::Refused);
        } else if let Some(difference) = difference {
            self.note(process, difference);
            self.answer(caller, Verdict::Refused);
        } else if own == 0 {
            self.admit_or_ask(caller);
        } else if self.claim.generation.is_none() {
            self.answer(caller, Verdict::NotReady);
        } else if caller.claim.generation != self.claim.generation {
            self.note(process, self.other_generation(&caller.claim));
            self.answer(caller, Verdict::OtherGeneration);
        } else {
            // Process 0 has already made sure that there is no other one with this number.
            self.admit(caller);
        }
        Ok(())
    }

    pub(super) fn answer(&self, caller: Caller, verdict: Verdict) -> Option<Channel> {
        let from = caller.address();
        let answered = caller.answer(&Reply { claim: self.claim.clone(), verdict });
        answered.inspect_err(|error| tracing::debug!(%error, %from, "a process did not wait for its answer")).ok()
    }

    /// Process 0 asks the process that has this number already, if there is one, whether it is alive.
    fn admit_or_ask(&mut self, caller: Caller) {
        let peer = &mut self.peers[caller.claim.process];
        match &mut peer.link {
            Some(link) if link.instance != caller.claim.instance => {
                // One question at a time: no answer may be on its way when timely gets the connection. A third process
                // is not answered, and tries again later.
                if peer.contender.is_none() {
                    // If it cannot be sent, the connection is lost, which is seen when it is read.
                    let _ = link.send(Message::Ping);
                    peer.contender = Some((caller, Instant::now() + SIGN_OF_LIFE));
                }
            }
            _ => self.admit(caller),
        }
    }

    /// Tells the other side that this one has the connection, and takes it before anything else is done.
    pub(super) fn admit(&mut self, caller: Caller) {
        let (process, instance) = (caller.claim.process, caller.claim.instance);
        if let Some(channel) = self.answer(caller, Verdict::Accepted) {
            self.connect(process, channel, instance);
        }
    }

    /// The process that has the number is alive.
    pub(super) fn refuse_contender(&mut self, process: usize) {
        let peer = &mut self.peers[process];
        if let (Some((caller, _)), Some(link)) = (peer.contender.take(), &peer.link) {
            let (from, address) = (caller.address(), link.address());
            tracing::warn!(process, %from, %address, "a second process with the same number is refused");
            self.answer(caller, Verdict::SameNumber { address });
        }
    }

    /// Gives the place of a process that shows no sign of life to the one that wants it.
    pub(super) fn settle(&mut self) {
        for process in self.others() {
            let peer = &mut self.peers[process];
            let is_free = peer.link.is_none();
            if let Some((caller, _)) = peer.contender.take_if(|(_, end)| is_free || Instant::now() >= *end) {
                // Its late answer must not come when timely has the connection.
                peer.link = None;
                self.admit(caller);
            }
        }
    }
}
