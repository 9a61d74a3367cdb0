//! Chains of messages: what they follow, from the first one on. Chains may be long, come in any order, and go in circles.

use std::collections::HashMap;

use crate::message::Message;

/// The places of the messages with an id.
fn places(messages: &[Message]) -> HashMap<&str, usize> {
    messages.iter().enumerate().filter_map(|(at, message)| Some((message.id.as_deref()?, at))).collect()
}

/// For each message that of these which it follows.
fn parents(messages: &[Message]) -> Vec<Option<usize>> {
    let places = places(messages);
    messages.iter().map(|message| places.get(message.parent.as_deref()?).copied()).collect()
}

/// Finds something of each message at the end of its chain, in linear time. `known` is what a message has itself, which
/// ends its chain; `end` is for a message at which the chain ends otherwise: because it follows none, or goes in a circle.
fn at_ends<T: Clone>(
    parents: &[Option<usize>],
    known: impl Fn(usize) -> Option<T>,
    end: impl Fn(usize) -> T,
) -> Vec<T> {
    let mut found: Vec<Option<T>> = vec![None; parents.len()];
    // The walk that has come by last, by its first message.
    let mut walks = vec![usize::MAX; parents.len()];
    let mut chain = Vec::new();
    for first in 0..parents.len() {
        let mut at = first;
        let value = loop {
            if let Some(value) = found[at].clone().or_else(|| known(at)) {
                chain.push(at);
                break value;
            }
            walks[at] = first;
            chain.push(at);
            match parents[at] {
                None => break end(at),
                Some(next) if walks[next] == first => break end(at),
                Some(next) => at = next,
            }
        };
        chain.drain(..).for_each(|at| found[at] = Some(value.clone()));
    }
    found.into_iter().flatten().collect()
}

/// Gives messages without a conversation that of their parents, or the id of the first message of their chain.
pub(crate) fn with_conversations(mut messages: Vec<Message>) -> Vec<Message> {
    if messages.iter().all(|message| message.conversation.is_some()) {
        return messages;
    }
    let found = at_ends(
        &parents(&messages),
        |at| messages[at].conversation.clone().map(Some),
        // What is not there was said before what is known.
        |at| messages[at].parent.clone().or_else(|| messages[at].id.clone()),
    );
    for (message, found) in messages.iter_mut().zip(found) {
        message.conversation = message.conversation.take().or(found);
    }
    messages
}

/// Of each tree of messages the branch on which its conversation ends, as the last record says, or that has the latest one.
/// Messages that follow one that is not there are of one tree. Messages are in their order. Also those of other branches.
pub(crate) fn branch(messages: Vec<Message>) -> (Vec<Message>, Vec<Message>) {
    let parents = parents(&messages);
    let root = |at: usize| match &messages[at].parent {
        Some(parent) => (Some(&**parent), 0),
        None => (None, at),
    };
    let roots = at_ends(&parents, |_| None, root);
    let mut ends: HashMap<(Option<&str>, usize), (u64, usize)> = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        let said = if message.last { message.at.max(message.again) } else { 0 };
        let end = ends.entry(roots[at]).or_default();
        *end = (*end).max((said, at));
    }
    let mut kept = vec![false; messages.len()];
    for (_, end) in ends.into_values() {
        let mut at = Some(end);
        while let Some(next) = at.filter(|next| !kept[*next]) {
            kept[next] = true;
            at = parents[next];
        }
    }
    let (mut of_branch, mut others) = (Vec::new(), Vec::new());
    for (message, is_kept) in messages.into_iter().zip(kept) {
        if is_kept { &mut of_branch } else { &mut others }.push(message);
    }
    (of_branch, others)
}
