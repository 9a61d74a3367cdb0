//! Logs of messages as forms may give them, with what `any.rs` leaves out: marks with texts, messages without an id, a time or an
//! order, keys, branches, ranks and versions of several types. What is left out is counted as in the whole log, too.

use super::any::Random;
use super::*;
use crate::assemble::has_text;
use crate::message::Message;

pub(super) fn int(number: u64) -> Val {
    Val::from(number as isize)
}

/// Seeds that have found faults.
const OF_FAULTS: [u64; 11] = [93, 144, 744, 1304, 1857, 4036, 4357, 7553, 7710, 17489, 31598];

/// What a log may have beside questions and answers.
const KINDS: [&str; 19] = [
    "edits",
    "deletions",
    "starts",
    "rewinds",
    "hand-overs",
    "parts",
    "fields",
    "elsewhere",
    "people",
    "texts of marks",
    "no texts",
    "no ids",
    "no times",
    "no order",
    "joins",
    "turns",
    "ranks",
    "versions of types",
    "gaps",
];

pub(super) struct Case {
    pub kinds: Vec<&'static str>,
    pub options: Options,
    pub messages: Vec<Message>,
    pub settle: u64,
    pub may_shuffle: bool,
    pub may_double: bool,
}

/// A log with some of these.
fn case(seed: u64) -> Case {
    let mut random = Random::of(seed);
    let rate = 2 + random.below(5);
    let mut kinds: Vec<&'static str> = KINDS.into_iter().filter(|_| random.one_in(rate)).collect();
    // Without marks, which branches have no place for.
    let branch = random.one_in(8) && !kinds.contains(&"starts");
    if kinds.contains(&"no ids") {
        kinds.retain(|kind| *kind != "deletions");
    }
    if kinds.contains(&"ranks") {
        kinds.retain(|kind| *kind != "no texts");
    }
    let is_small = kinds.contains(&"rewinds") || random.one_in(2);
    let n = if is_small { 25 } else { 70 };
    let has = |kind: &str| kinds.contains(&kind);
    let once = has("no ids") && random.one_in(2);
    let options = Options {
        burst_s: [0.0, 0.0, 3.0, 1.0][random.below(4) as usize],
        revise: random.one_in(2),
        until_hand_over: random.one_in(2),
        with_agent: random.one_in(3),
        once_by_content: once,
        branch,
        ..Options::default()
    };
    let names: &[&str] =
        [&["a"][..], &["a", "b"], &["1", "2", "3"], &["a", "a", "a", "b", "c"]][random.below(4) as usize];
    let mut messages: Vec<Message> = Vec::new();
    // (line, message, versions)
    let mut said: Vec<(usize, Message, u64)> = Vec::new();
    let mut last_of: HashMap<String, String> = HashMap::new();
    let mut time = 0.0;
    for at in 0..n {
        time += if has("gaps") { random.below(4) as f64 } else { 1.0 };
        let conversation = names[random.below(names.len() as u64) as usize].to_owned();
        let id = (at + 1).to_string();
        let mut m = Message {
            id: Some(id.clone()),
            conversation: Some(conversation.clone()),
            time: (!has("no times") || !random.one_in(3)).then_some(time),
            order: (!has("no order")).then(|| int(at)),
            ..Message::default()
        };
        let speaker = if random.one_in(3) { "agent" } else { "user" };
        let with_text = has("texts of marks") && random.one_in(2);
        let mut is_said = false;
        if with_text {
            m.speaker = Some(speaker.to_owned());
            m.text = Some(if has("no texts") && random.one_in(3) { " ".to_owned() } else { format!("k{at}") });
        }
        match random.below(12) {
            0 if has("starts") => m.starts = true,
            1 if has("rewinds") => m.rewind = true,
            2 if has("hand-overs") => m.hand_over = Some(random.one_in(2)),
            other => {
                is_said = true;
                m.speaker = Some(if other == 3 && has("people") { "person".to_owned() } else { speaker.to_owned() });
                m.text = Some(format!("t{at}"));
                m.version = (!has("versions of types")).then(|| int(1));
                if has("no texts") && random.one_in(5) {
                    m.text = [None, Some(String::new()), Some(" ".to_owned())][random.below(3) as usize].clone();
                }
                if other < 6 && has("parts") {
                    m.merge = Some(if random.one_in(2) { speaker.to_owned() } else { format!("{speaker}{}", at / 3) });
                }
                if has("turns") {
                    m.turn = Some(at as u32 / 2 + 1);
                }
                if has("fields") && random.one_in(3) {
                    m.fields = Some(Box::new([("x".to_owned(), at.into())].into_iter().collect()));
                }
                m.to_agent = random.one_in(10);
                if has("no ids")
                    && !has("joins")
                    && random.one_in(2)
                    && m.text.as_ref().is_some_and(|text| !text.trim().is_empty())
                {
                    m.id = None;
                }
                if has("joins") && random.one_in(3) {
                    m.join = vec![format!("j{at}")];
                    messages.push(Message {
                        join: vec![format!("j{at}")],
                        conversation: m.conversation.take(),
                        time: m.time.filter(|_| random.one_in(2)),
                        ..Message::default()
                    });
                }
            }
        }
        if branch {
            m.parent = last_of.get(&conversation).cloned().filter(|_| !random.one_in(10));
        }
        if let Some(id) = m.id.as_ref().filter(|_| !branch || !random.one_in(4)) {
            last_of.insert(conversation.clone(), id.clone());
        }
        messages.push(m.clone());
        if is_said && m.id.is_some() {
            said.push((messages.len(), m.clone(), 1));
        }
        let length = messages.len();
        let near: Vec<usize> = (0..said.len()).rev().take(3).filter(|at| length - said[*at].0 < 8).collect();
        if near.is_empty() {
            continue;
        }
        let of = near[random.below(near.len() as u64) as usize];
        let (_, whole, versions) = &mut said[of];
        let mut e = Message { id: whole.id.clone(), ..Message::default() };
        match random.below(4) {
            0 => {}
            1 => e.conversation = whole.conversation.clone(),
            2 => {
                e.conversation = whole.conversation.clone();
                e.order = whole.order.clone();
                e.time = whole.time;
            }
            _ if has("elsewhere") => e.conversation = Some("other".to_owned()),
            _ => e.time = Some(time + 0.5).filter(|_| random.one_in(2)),
        }
        *versions += 1;
        e.version = Some(if has("versions of types") && *versions > 3 {
            Val::from(format!("v{versions}"))
        } else {
            int(*versions)
        });
        if has("ranks") && random.one_in(3) {
            e.rank = *versions as i64;
        }
        match random.below(10) {
            0 | 1 if has("edits") => e.text = Some(format!("e{at}")),
            2 if has("deletions") => e.removed = true,
            3 if has("fields") => e.fields = Some(Box::new([("x".to_owned(), at.into())].into_iter().collect())),
            4 if has("edits") && has("ranks") => {
                e = Message { version: e.version, rank: 1, text: Some(format!("r{at}")), ..whole.clone() };
            }
            _ => continue,
        }
        messages.push(e);
    }
    // Questions without a time are one if they wait together.
    let is_together = branch || has("no times") && options.burst_s > 0.0;
    let settle =
        if is_together || longest(&messages) > 28 { 1_000_000 } else { [40, 45, 1_000_000][random.below(3) as usize] };
    let may_shuffle = !has("no order");
    let may_double = !has("no ids") || once;
    Case { kinds, options, messages, settle, may_shuffle, may_double }
}

/// How far the first part of a message is from its last one at most: the first one has to wait for all.
fn longest(messages: &[Message]) -> usize {
    let home = |message: &Message| Some((message.join.first()?.clone(), message.conversation.clone()?));
    let homes: HashMap<String, String> = messages.iter().filter_map(home).collect();
    let mut firsts: HashMap<&str, (Option<&str>, usize)> = HashMap::new();
    let mut longest = 0;
    for (at, message) in messages.iter().enumerate().filter(|(_, message)| message.merge.is_some() || has_text(message))
    {
        let home = message.join.first().and_then(|key| homes.get(key));
        let name = message.conversation.as_ref().or(home).filter(|_| message.speaker.is_some());
        let Some(name) = name else { continue };
        let first = firsts.entry(name).or_insert((None, at));
        if message.merge.is_none() || message.merge.as_deref() != first.0 {
            *first = (message.merge.as_deref(), at);
        }
        longest = longest.max(at - first.1);
    }
    longest
}

/// The turns of all of them.
pub(super) fn whole(case: &Case) -> (Vec<String>, LeftOut) {
    let items = case.messages.iter().map(|message| Item::Message(Box::new(message.clone()))).collect();
    let (turns, left_out) = assemble(items, &case.options);
    (shown(turns), left_out)
}

/// The turns of messages of which one comes each second.
pub(super) fn streamed(case: &Case, order: &[usize], ends: &[usize]) -> (Vec<Turn>, LeftOut) {
    let items = order.iter().map(|number| vec![Item::Message(Box::new(case.messages[*number].clone()))]);
    super::streamed(&case.options, items, case.settle, ends)
}

#[test]
fn all_that_messages_may_say_gives_the_same_turns_in_any_order() {
    let mut wrong = Vec::new();
    for seed in (1..40).chain(OF_FAULTS) {
        let case = case(seed);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        let (expected, left) = whole(&case);
        let number = case.messages.len();
        let plain: Vec<usize> = if case.may_shuffle { shuffled(number, 6, seed) } else { (0..number).collect() };
        let mut order = plain.clone();
        if case.may_double {
            for at in (0..order.len()).step_by(5).rev() {
                let late = (at + 1 + random.below(6) as usize).min(order.len());
                order.insert(late, order[at]);
            }
        }
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        let again: Vec<usize> = order.iter().copied().chain(0..number).collect();
        let mut runs = vec![("plain", &plain, &[][..]), ("once", &order, &ends)];
        // A branch that was left may be taken up again.
        if case.may_double && !case.options.branch {
            runs.push(("again", &again, &ends));
        }
        for (which, order, ends) in runs {
            let (turns, left_found) = streamed(&case, order, ends);
            let found = shown(turns);
            let at = found.iter().zip(&expected).take_while(|(one, other)| one == other).count();
            if found != expected {
                wrong.push(format!("{seed} {which} {:?}: {:?} for {:?}", case.kinds, found.get(at), expected.get(at)));
            }
            // What comes twice is counted twice.
            if which == "plain" && left != left_found {
                wrong.push(format!("{seed} {:?}: left out {left_found:?} for {left:?}", case.kinds));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// Messages that do not wait for all that belongs to them give other turns, but the same ones however often the process ends.
#[test]
fn restarts_change_nothing_if_the_wait_is_short() {
    for seed in 1..60 {
        let mut case = case(seed);
        let mut random = Random::of(seed.wrapping_mul(77_777));
        case.settle = random.below(12);
        let mut order = shuffled(case.messages.len(), 6, seed);
        for at in (0..order.len()).step_by(5).rev() {
            order.insert((at + 1 + random.below(20) as usize).min(order.len()), order[at]);
        }
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.one_in(4)).collect();
        assert_eq!(streamed(&case, &order, &ends), streamed(&case, &order, &[]), "{seed}");
    }
}
