//! Ids that several messages have, joins, and what there is no room for: the turns are those of the whole log, and each message
//! becomes a turn or is counted.

use super::any::Random;
use super::wild::{Case, int, streamed, whole};
use super::*;
use crate::message::Message;

/// Messages of which some have the id of another one: in its conversation or in another, with another text.
fn case(seed: u64, is_near: bool) -> Case {
    let mut random = Random::of(seed);
    let (is_versioned, deletes, edits, joins) =
        (random.one_in(2), random.one_in(2), random.one_in(2), random.one_in(3));
    let options = Options {
        revise: random.one_in(2),
        with_agent: random.one_in(3),
        once_by_content: random.one_in(4),
        ..Options::default()
    };
    let settle = if is_near { [40, 1_000_000][random.below(2) as usize] } else { random.below(4) };
    let mut messages: Vec<Message> = Vec::new();
    let mut whole: HashSet<u64> = HashSet::new();
    for at in 0..50_u64 {
        let reach = if is_near { 4 } else { at + 1 };
        let id = if random.one_in(3) { at.saturating_sub(random.below(reach)) } else { at };
        let conversation = ["a", "a", "b", "c"][random.below(4) as usize];
        let mut message = Message {
            id: Some(id.to_string()),
            conversation: Some(conversation.to_owned()),
            speaker: Some(if random.one_in(3) { "agent" } else { "user" }.to_owned()),
            text: Some(format!("t{at}")),
            order: Some(int(2 * at + 1)),
            time: Some(at as f64),
            version: is_versioned.then(|| int(at)),
            ..Message::default()
        };
        if whole.contains(&id) && deletes && random.one_in(3) {
            message = Message { id: message.id, removed: true, ..Message::default() };
        } else if whole.contains(&id) && edits && random.one_in(2) {
            message = Message { id: message.id, text: message.text, version: message.version, ..Message::default() };
        } else if joins && random.one_in(3) {
            // One of two records with a key names the conversation.
            let key = vec![format!("j{at}")];
            let first = Message {
                join: key.clone(),
                id: Some(format!("q{at}")),
                text: Some(format!("q{at}")),
                order: Some(int(2 * at)),
                ..message.clone()
            };
            messages.push(first);
            message = Message { join: key, conversation: None, ..message };
        }
        whole.insert(id);
        messages.push(message);
    }
    Case { kinds: vec![], options, messages, settle, may_shuffle: is_versioned, may_double: true }
}

/// Places of a log, some of them twice.
fn doubled(order: &[usize], random: &mut Random) -> Vec<usize> {
    let mut order = order.to_vec();
    for at in (0..order.len()).step_by(5).rev() {
        let late = (at + 1 + random.below(6) as usize).min(order.len());
        order.insert(late, order[at]);
    }
    order
}

#[test]
fn messages_with_one_id_give_the_same_turns_in_any_order() {
    let mut wrong = Vec::new();
    for seed in (1..60).chain([214, 363]) {
        let case = case(seed, true);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        let (expected, left) = whole(&case);
        let number = case.messages.len();
        let plain: Vec<usize> = if case.may_shuffle { shuffled(number, 6, seed) } else { (0..number).collect() };
        // Without a version, the last one that came counts.
        let order = if case.may_shuffle { doubled(&plain, &mut random) } else { plain.clone() };
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        for (which, order, ends) in [("plain", &plain, &[][..]), ("once", &order, &ends)] {
            let (turns, left_found) = streamed(&case, order, ends);
            let found = shown(turns);
            if found != expected {
                let at = found.iter().zip(&expected).take_while(|(one, other)| one == other).count();
                wrong.push(format!("{seed} {which} {}: {:?} for {:?}", case.settle, found.get(at), expected.get(at)));
            }
            if which == "plain" && left != left_found {
                wrong.push(format!("{seed}: left out {left_found:?} for {left:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// Number of messages that are a turn, or counted as none.
fn accounted(turns: &[Turn], left_out: &LeftOut) -> u64 {
    let deletions = left_out.get("deleted after it was a turn").copied().unwrap_or_default();
    let turns = turns.iter().filter(|turn| !turn.text.is_empty()).count() as u64;
    turns + left_out.values().sum::<u64>() - deletions
}

#[test]
fn each_message_is_a_turn_or_counted_however_late_another_one_has_its_id() {
    let mut wrong = Vec::new();
    for seed in 1..100 {
        let case = case(seed, false);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        let order = doubled(&shuffled(case.messages.len(), 6, seed), &mut random);
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        let (turns, left_out) = streamed(&case, &order, &ends);
        let said = order.iter().filter(|number| !case.messages[**number].removed).count() as u64;
        // What was counted as it did not say who speaks is counted once more when it is deleted.
        let twice = left_out.get("neither user nor agent").copied().unwrap_or_default();
        if !(said..=said + twice).contains(&accounted(&turns, &left_out)) {
            wrong.push(format!(
                "{seed}: {} of {said}: {left_out:?} {} {:?}",
                accounted(&turns, &left_out),
                case.settle,
                case.options.revise
            ));
        }
        if streamed(&case, &order, &[]) != (turns, left_out) {
            wrong.push(format!("{seed}: a restart changes something"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// Messages that there is no room for become turns early, and what is forgotten may become a turn again.
#[test]
fn each_message_is_a_turn_or_counted_also_if_there_is_little_room() {
    let mut wrong = Vec::new();
    for seed in 1..100 {
        let mut case = case(seed, false);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        case.settle = [3, 20, 1_000_000][random.below(3) as usize];
        let bounds = Bounds {
            waiting: 1 + random.below(20) as usize,
            known: if random.one_in(2) { 1 + random.below(40) as usize } else { usize::MAX },
        };
        let order = doubled(&shuffled(case.messages.len(), 6, seed), &mut random);
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        let items = order.iter().map(|number| vec![Item::Message(Box::new(case.messages[*number].clone()))]);
        let (turns, left_out) = streamed_within(&case.options, items, case.settle, &ends, &bounds);
        let said = order.iter().filter(|number| !case.messages[**number].removed).count() as u64;
        let twice = left_out.get("neither user nor agent").copied().unwrap_or_default();
        if !(said..=said + twice).contains(&accounted(&turns, &left_out)) {
            wrong.push(format!("{seed}: {} of {said}: {left_out:?}", accounted(&turns, &left_out)));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_version_of_another_speaker_or_with_another_key_is_of_the_conversation_of_the_first_one() {
    let log = Log::of(
        "#: {\"with_agent\": true}\n{id, conversation: \"c\", speaker: .s, text: .t, version: .v}",
        r#"{"id": 1, "s": "agent", "t": "One?", "v": 1}
{"id": 1, "s": "user", "t": "One?", "v": 2}"#,
    );
    assert_eq!(log.whole(), [""; 0]);
    assert_eq!(log.streamed(&[0, 1], 100, &[]).0, [""; 0]);
    let log = Log::of(
        "{id, join: .j, conversation: .c, speaker: .s, text: .t, version: .v}",
        r#"{"j": 1, "c": "a"}
{"j": 2, "c": "b"}
{"id": 1, "j": 1, "s": "user", "t": "One?", "v": 1}
{"id": 1, "j": 2, "s": "user", "t": "Two?", "v": 2}"#,
    );
    assert_eq!(log.whole(), ["a 1 user Two?"]);
    assert_eq!(log.streamed(&[0, 1, 3, 2], 100, &[]).0, ["a 1 user Two?"]);
}
