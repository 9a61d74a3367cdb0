//! A standing turn.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use crate::ask::Caller;
use crate::durable::{StoredConversation, StoredTurn};
use crate::principal::{Renewed, principal_of};
use crate::record::{AnswerRecord, Turn};
use crate::turns::TurnsShared;
use crate::turns::watched::Slot;

pub(super) struct Entry {
    /// The turn and its records; `None`: they are in the store only.
    pub stored: Option<StoredTurn>,
    pub source: Arc<str>,
    /// Time of its first answer, in seconds since the Unix epoch.
    pub since: u64,
    /// Its number in the order in which turns began to stand.
    pub born: u64,
    /// The epoch at which it was last answered.
    pub epoch: u64,
    /// The turn's fields, if its principal may change.
    pub fields: Option<Box<Map<String, Json>>>,
    pub in_flight: bool,
    /// It is not answered again any more: what it answers is taken back.
    pub is_leaving: bool,
    pub waits: bool,
    /// Nothing is known of its principal: it waits until that is seen again.
    pub is_unknown: bool,
    /// What its answer depends on; `None`: nothing is known, and every change may reach it.
    pub slot: Option<Slot>,
    /// How often it has failed, one time after the other, since it was answered.
    pub failures: u32,
    /// The caller who is told when its answer changes. It is in no sink and in no store.
    pub follower: Option<Box<Follower>>,
}

/// A caller who follows an answer.
pub(super) struct Follower {
    pub caller: Caller,
    /// The answer that the caller has.
    pub record: AnswerRecord,
}

impl Entry {
    /// A turn of a source.
    pub fn new(stored: StoredTurn, waits: bool, born: u64, shared: &TurnsShared) -> Self {
        let (turn, since, epoch) = (&stored.turn, stored.since, stored.turn.epoch);
        let source = turn.source.clone();
        let has_principal = shared.principals.is_some() && principal_of(&turn.extra).is_some();
        let fields = has_principal.then(|| Box::new(turn.extra.clone()));
        let stored = (!shared.durable.keeps_standing()).then_some(stored);
        Self {
            stored,
            source,
            since,
            born,
            epoch,
            fields,
            in_flight: false,
            is_leaving: false,
            waits,
            is_unknown: false,
            slot: None,
            failures: 0,
            follower: None,
        }
    }

    /// A turn of a caller who follows its answer.
    pub fn followed(turn: &Arc<Turn>, follower: Follower, born: u64) -> Self {
        let since = StoredConversation::now();
        Self {
            stored: Some(StoredTurn { turn: turn.clone(), records: BTreeMap::new(), since }),
            source: turn.source.clone(),
            since,
            born,
            epoch: turn.epoch,
            fields: None,
            in_flight: false,
            is_leaving: false,
            waits: false,
            is_unknown: false,
            slot: None,
            failures: 0,
            follower: Some(Box::new(follower)),
        }
    }

    /// The turn and its records. `None`: it is not stored, or cannot be read.
    pub fn stored(&self, key: &Arc<str>, shared: &TurnsShared) -> Option<StoredTurn> {
        let stored = || {
            shared.durable.standing_turn(key).unwrap_or_else(|error| {
                tracing::error!(turn = %key, %error, "cannot read a standing turn; it is tried again with the next change");
                None
            })
        };
        self.stored.clone().or_else(stored)
    }

    /// Whether the principal is another one than when the turn was last answered.
    pub fn has_other_principal(&self, shared: &TurnsShared) -> bool {
        let renewed = self.fields.as_ref().map_or(Renewed::Same, |fields| shared.renewed(&self.source, fields));
        match renewed {
            Renewed::Same => self.is_unknown,
            Renewed::Changed { .. } => true,
            Renewed::Unknown => false,
        }
    }

    /// Whether it neither waits nor is being answered.
    pub fn is_idle(&self) -> bool {
        !self.in_flight && !self.waits && !self.is_leaving
    }
}
