//! Calls of a model that repeat what was said, in any order within the wait, doubled, in several records, and with restarts.

use super::any::Random;
use super::wild::int;
use super::*;
use crate::message::{Call, Message};

/// Seeds that have found faults.
const OF_FAULTS: [u64; 6] = [88, 115, 304, 306, 360, 362];

/// How calls say of which conversation they are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Named {
    Name,
    Answer,
    Messages,
    Group,
}

struct Case {
    named: Named,
    options: Options,
    items: Vec<Item>,
    settle: u64,
    has_order: bool,
}

fn said(speaker: &str, text: String) -> Message {
    Message { speaker: Some(speaker.to_owned()), text: Some(text), ..Message::default() }
}

/// A log of calls, and of messages that follow their answers.
fn case(seed: u64) -> Case {
    let mut random = Random::of(seed);
    let named = [Named::Name, Named::Answer, Named::Messages, Named::Group][random.below(4) as usize];
    let (halves, parts, alike, has_order) = (random.one_in(3), random.one_in(3), random.one_in(3), !random.one_in(4));
    let (messages, only_new, chatty) = (random.one_in(3), random.one_in(3), random.one_in(3));
    let burst_s = [0.0, 0.0, 2.0][random.below(3) as usize];
    let options =
        Options { burst_s: if messages { 0.0 } else { burst_s }, revise: random.one_in(2), ..Options::default() };
    let settle = [40, 45, 1_000_000][random.below(3) as usize];
    let mut items: Vec<Item> = Vec::new();
    let mut chats: Vec<(Vec<Message>, Option<String>)> = vec![Default::default(); 3];
    for at in 0..20_u64 {
        let number = random.below(3) as usize;
        let (chat, last) = &mut chats[number];
        let round = chat.len();
        if messages && last.is_some() && random.one_in(5) {
            let name = (named == Named::Name).then(|| format!("c{number}"));
            let followed = last.clone().filter(|_| name.is_none());
            let message = Message {
                id: Some(format!("m{at}")),
                conversation: name,
                parent: followed,
                order: has_order.then(|| int(at)),
                time: Some(at as f64),
                ..said("user", format!("m{at}"))
            };
            items.push(Item::Message(Box::new(message)));
            continue;
        }
        let own = if alike && round < 2 { "hi".to_owned() } else { format!("{number}.{round}") };
        for _ in 0..if chatty { 1 + random.below(3) } else { 1 } {
            chat.push(said("user", format!("q{own}.{}", chat.len() - round)));
        }
        let from = if only_new && matches!(named, Named::Name | Named::Answer) { round } else { 0 };
        let mut asked: Vec<Message> = chat[from..].to_vec();
        if parts {
            for (place, message) in asked.iter_mut().enumerate() {
                message.id = Some(format!("{number}.{}", from + place));
                message.order = Some(int((from + place) as u64));
            }
        }
        let answer = Message { id: Some(format!("r{at}")), ..said("agent", format!("a{own}")) };
        let call = Call {
            id: Some(format!("call{at}")),
            conversation: (named == Named::Name).then(|| format!("c{number}")),
            parent: last.clone().filter(|_| named == Named::Answer),
            guess: matches!(named, Named::Messages | Named::Group),
            group: (named == Named::Group).then(|| format!("g{number}")),
            order: has_order.then(|| int(at)),
            time: Some(at as f64),
            ..Call::default()
        };
        let mut push = |call: Call| items.push(Item::Call(Box::new(call)));
        if parts {
            asked.iter().for_each(|message| push(Call { messages: vec![message.clone()], ..call.clone() }));
            push(Call { answer: Some(answer.clone()), ..call });
        } else if halves {
            push(Call { messages: asked, ..call.clone() });
            push(Call { answer: Some(answer.clone()), ..call });
        } else {
            push(Call { messages: asked, answer: Some(answer.clone()), ..call });
        }
        chat.push(Message { id: None, ..answer });
        *last = Some(format!("r{at}"));
    }
    let settle = if parts { 1_000_000 } else { settle };
    Case { named, options, items, settle, has_order }
}

#[test]
fn calls_give_the_same_turns_in_any_order() {
    let mut wrong = Vec::new();
    for seed in (1..60).chain(OF_FAULTS) {
        let case = case(seed);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        let (turns, left) = assemble(case.items.clone(), &case.options);
        let expected = shown(turns);
        let number = case.items.len();
        let plain: Vec<usize> = if case.has_order { shuffled(number, 6, seed) } else { (0..number).collect() };
        let mut order = plain.clone();
        for at in (0..order.len()).step_by(5).rev() {
            let late = (at + 1 + random.below(6) as usize).min(order.len());
            order.insert(late, order[at]);
        }
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        let again: Vec<usize> = order.iter().copied().chain(0..number).collect();
        for (which, order, ends) in [("plain", &plain, &[][..]), ("once", &order, &ends), ("again", &again, &ends)] {
            let items = order.iter().map(|number| vec![case.items[*number].clone()]);
            let (turns, left_found) = streamed(&case.options, items, case.settle, ends);
            let found = shown(turns);
            if found != expected {
                let at = found.iter().zip(&expected).take_while(|(one, other)| one == other).count();
                let (found, expected) = (found.get(at), expected.get(at));
                wrong.push(format!("{seed} {which} {:?} {}: {found:?} for {expected:?}", case.named, case.settle));
            }
            if which == "plain" && left != left_found {
                wrong.push(format!("{seed} {:?}: left out {left_found:?} for {left:?}", case.named));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// What there is no room for becomes a turn early, and nothing that is said is lost.
#[test]
fn calls_that_there_is_no_room_for_are_turns() {
    for seed in 1..60 {
        let case = case(seed);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        let texts = |turns: &[Turn]| turns.iter().flat_map(|turn| turn.text.lines().map(str::to_owned)).collect();
        let expected: HashSet<String> = texts(&assemble(case.items.clone(), &case.options).0);
        let known = if random.one_in(2) { 1 + random.below(40) as usize } else { usize::MAX };
        let bounds = Bounds { waiting: 1 + random.below(20) as usize, known };
        let order = shuffled(case.items.len(), 6, seed);
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        let items = order.iter().map(|number| vec![case.items[*number].clone()]);
        let (turns, _) = streamed_within(&case.options, items, case.settle, &ends, &bounds);
        let found: HashSet<String> = texts(&turns);
        assert_eq!(expected.difference(&found).collect::<Vec<_>>(), [""; 0], "{seed}");
    }
}

/// A call without an order comes after what came before it, so a message that came before it does not hurry it.
#[test]
fn a_call_without_an_order_waits_for_its_parts_beside_messages_with_one() {
    let part = |text: &str, order: u64| {
        let message = Message { id: Some(text.to_owned()), order: Some(int(order)), ..said("user", text.to_owned()) };
        let call = Call { id: Some("call".to_owned()), guess: true, messages: vec![message], ..Call::default() };
        vec![Item::Call(Box::new(call))]
    };
    let other = Message {
        id: Some("m".to_owned()),
        conversation: Some("other".to_owned()),
        order: Some(int(1)),
        ..said("user", "hello".to_owned())
    };
    let other = vec![Item::Message(Box::new(other))];
    let items = [other, vec![], part("second", 2), vec![], vec![], vec![], vec![], part("first", 1)];
    let expected = shown(assemble(items.iter().flatten().cloned().collect(), &Options::default()).0);
    let (turns, left_out) = super::streamed(&Options::default(), items.into_iter(), 6, &[]);
    assert_eq!((shown(turns), left_out), (expected, LeftOut::new()));
}
