//! Edits and deletions that come after the turn was given: what a sink has at the end is what the whole log says.

use super::any::Random;
use super::wild::{Case, int, streamed};
use super::*;
use crate::message::Message;

/// What a sink has at the end, to which turns came that take back others.
fn at_end(turns: Vec<Turn>) -> Vec<String> {
    let mut kept: Vec<Turn> = Vec::new();
    for turn in turns {
        match turn.fields.get(crate::REMOVED).and_then(|hash| hash.as_str()) {
            Some(hash) => {
                let same = |one: &Turn| {
                    (&one.conversation_id, one.turn, one.speaker) == (&turn.conversation_id, turn.turn, turn.speaker)
                        && format!("{:x}", known::hash(&one.text)) == hash
                };
                let Some(at) = kept.iter().position(same) else {
                    kept.push(Turn { text: format!("NOTHING TO TAKE BACK {}", turn.text), ..turn });
                    continue;
                };
                if turn.text.is_empty() {
                    kept.remove(at);
                } else {
                    kept[at] = turn;
                }
            }
            None => kept.push(turn),
        }
    }
    kept.into_iter().map(|turn| format!("{} {} {}", turn.conversation_id, turn.speaker, turn.text)).collect()
}

#[test]
fn late_edits_give_what_the_whole_log_says() {
    let mut wrong = Vec::new();
    for seed in 1..100 {
        let mut random = Random::of(seed);
        let (deletes, vtypes, fields, elsewhere, doubles, ranks, later) = (
            random.one_in(2),
            random.one_in(2),
            random.one_in(2),
            random.one_in(4),
            random.one_in(2),
            random.one_in(3),
            random.one_in(3),
        );
        let options = Options { revise: true, with_agent: random.one_in(3) && !deletes, ..Options::default() };
        let settle = [0, 0, 3, 10][random.below(4) as usize];
        // Of each message: when, and what.
        let mut events: Vec<(u64, Message)> = Vec::new();
        for at in 0..12_u64 {
            let conversation = if random.one_in(3) { "b" } else { "a" };
            let speaker = if random.one_in(3) || at < 2 { "agent" } else { "user" };
            let conversation = if at < 2 { ["a", "b"][at as usize] } else { conversation };
            let is_later = later && random.one_in(4);
            let base = Message {
                id: Some(format!("{at}")),
                conversation: Some(conversation.to_owned()),
                speaker: Some(speaker.to_owned()),
                text: Some(format!("t{at}")).filter(|_| !is_later),
                order: Some(int(at)),
                time: Some(at as f64),
                version: (!vtypes).then(|| int(1)),
                ..Message::default()
            };
            events.push((at * 10, base));
            for number in 0..random.below(5) {
                let version = if vtypes && number > 1 { Val::from(format!("v{number}")) } else { int(number + 2) };
                let mut e = Message { id: Some(format!("{at}")), version: Some(version), ..Message::default() };
                match random.below(6) {
                    0 if deletes => e.removed = true,
                    1 if fields => e.fields = Some(Box::new([("x".to_owned(), at.into())].into_iter().collect())),
                    2 if ranks => {
                        e.rank = 1;
                        e.text = Some(format!("r{at}.{number}"));
                    }
                    _ => e.text = Some(format!("e{at}.{number}")),
                }
                if elsewhere && random.one_in(3) {
                    e.conversation = Some("other".to_owned());
                } else if random.one_in(2) {
                    e.conversation = Some(conversation.to_owned());
                    e.order = Some(int(at)).filter(|_| random.one_in(2));
                }
                if is_later && e.removed {
                    continue;
                }
                events.push((at * 10 + 1 + random.below(60), e));
            }
        }
        events.sort_by_key(|(now, _)| *now);
        let messages: Vec<Message> = events.iter().map(|(_, message)| message.clone()).collect();
        let case = Case { kinds: vec![], options, messages, settle, may_shuffle: true, may_double: true };
        let items = case.messages.iter().map(|message| Item::Message(Box::new(message.clone()))).collect();
        let mut expected = at_end(assemble(items, &case.options).0);
        expected.sort();
        let mut order: Vec<usize> = (0..events.len()).collect();
        if doubles {
            for at in (0..order.len()).step_by(3).rev() {
                let late = (at + 1 + random.below(20) as usize).min(order.len());
                order.insert(late, order[at]);
            }
        }
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        let (turns, left_out) = streamed(&case, &order, &ends);
        let mut found = at_end(turns);
        found.sort();
        if found != expected {
            let at = found.iter().zip(&expected).take_while(|(one, other)| one == other).count();
            wrong.push(format!("{seed}: {:?} for {:?}, {left_out:?}", found.get(at), expected.get(at)));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn late_marks_and_deletions_give_what_the_whole_log_says() {
    for seed in 1..100 {
        let mut random = Random::of(seed);
        let options = Options { revise: true, ..Options::default() };
        let (mut messages, mut last_mark): (Vec<Message>, u64) = (Vec::new(), 0);
        for at in 1..30_u64 {
            let id = Some(at.to_string());
            let conversation = Some(if random.one_in(3) { "b" } else { "a" }.to_owned());
            let order = Some(int(at));
            let speaker = Some(if random.one_in(3) { "agent" } else { "user" }.to_owned());
            let message = Message { id, conversation, order, ..Message::default() };
            messages.push(match random.below(6) {
                0 => {
                    last_mark = at;
                    Message { rewind: true, ..message }
                }
                // What a mark has taken back is not deleted.
                1 if at > last_mark + 1 => {
                    let of = last_mark + 1 + random.below(at - last_mark - 1);
                    Message { id: Some(of.to_string()), removed: true, ..Message::default() }
                }
                _ => Message { speaker, text: Some(format!("t{at}")), ..message },
            });
        }
        let settle = random.below(4);
        let case = Case { kinds: vec![], options, messages, settle, may_shuffle: false, may_double: true };
        let number = case.messages.len();
        let items = case.messages.iter().map(|message| Item::Message(Box::new(message.clone()))).collect();
        let mut expected = at_end(assemble(items, &case.options).0);
        let ends: Vec<usize> = (0..number).filter(|_| random.one_in(4)).collect();
        // Marks come later than what they take back.
        let late = |at: usize| if case.messages[at].rewind { at + (seed % 6) as usize } else { at };
        let mut order: Vec<usize> = (0..number).collect();
        order.sort_by_key(|at| late(*at));
        let mut found = at_end(streamed(&case, &order, &ends).0);
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{seed}");
    }
}
