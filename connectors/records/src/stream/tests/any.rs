//! Logs of all that a message may say, in any order within the wait, doubled, and with restarts.

use super::*;

const ALL: &str = "{id, conversation: .c, speaker: .s, text: .t, time: .at, order: .at, version: .v, \
    removed: (.gone == true), merge: .m, fields: .f, starts: (.begin == true), rewind: (.back == true), \
    hand_over: .h, to_agent: (.bot == true)}";

/// Numbers that look random.
pub(super) struct Random(u64);

impl Random {
    pub fn of(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        // The first ones are alike.
        (0..5).for_each(|_| _ = random.below(2));
        random
    }

    pub fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// What a log may have beside questions and answers.
const KINDS: [&str; 9] =
    ["edits", "deletions", "starts", "rewinds", "hand-overs", "parts", "fields", "elsewhere", "people"];

/// A log with some of these.
fn log(random: &mut Random, kinds: &[&str]) -> String {
    let has = |kind: &str| kinds.contains(&kind);
    let mut lines: Vec<String> = Vec::new();
    let mut id = 0;
    let mut said: Vec<(u64, &str, u64)> = Vec::new();
    for at in 0..30_u64 {
        let conversation = if random.below(4) == 0 { "b" } else { "a" };
        id += 1;
        let head = format!("\"id\": {id}, \"c\": \"{conversation}\", \"at\": {at}");
        match random.below(12) {
            0 if has("starts") => lines.push(format!("{{{head}, \"begin\": true}}")),
            1 if has("rewinds") => lines.push(format!("{{{head}, \"back\": true}}")),
            2 if has("hand-overs") => lines.push(format!("{{{head}, \"h\": {}}}", random.below(2) == 0)),
            3 if has("people") => lines.push(format!("{{{head}, \"s\": \"person\", \"t\": \"p{at}\"}}")),
            4 | 5 if has("parts") => {
                let speaker = if random.below(2) == 0 { "user" } else { "agent" };
                lines.push(format!(
                    "{{{head}, \"s\": \"{speaker}\", \"t\": \"m{at}\", \"m\": \"{speaker}\", \"v\": 1}}"
                ));
                said.push((id, conversation, at));
            }
            other => {
                let speaker = if other < 9 { "user" } else { "agent" };
                lines.push(format!("{{{head}, \"s\": \"{speaker}\", \"t\": \"t{at}\", \"v\": 1}}"));
                said.push((id, conversation, at));
            }
        }
        // Something happens to a message of the last ones.
        let near: Vec<(u64, &str, u64)> = said.iter().rev().take(3).copied().collect();
        if near.is_empty() {
            continue;
        }
        let (of, conversation, place) = near[random.below(near.len() as u64) as usize];
        let head = match random.below(4) {
            0 => format!("\"id\": {of}"),
            1 => format!("\"id\": {of}, \"c\": \"{conversation}\""),
            2 => format!("\"id\": {of}, \"c\": \"{conversation}\", \"at\": {place}"),
            _ if has("elsewhere") => format!("\"id\": {of}, \"c\": \"other\""),
            _ => format!("\"id\": {of}"),
        };
        match random.below(10) {
            0 | 1 if has("edits") => lines.push(format!("{{{head}, \"t\": \"e{at}\", \"v\": {}}}", at + 2)),
            2 if has("deletions") => lines.push(format!("{{{head}, \"gone\": true}}")),
            3 if has("fields") => lines.push(format!("{{{head}, \"f\": {{\"x\": {at}}}, \"v\": {}}}", at + 2)),
            _ => {}
        }
    }
    lines.join("\n")
}

#[test]
fn all_orders_within_the_wait_give_the_same_turns() {
    let mut wrong = Vec::new();
    for seed in (1..40_u64).chain([45, 313, 369, 411, 437, 680, 2098]) {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random.below(2);
        let kinds: Vec<&str> = KINDS.into_iter().filter(|_| random.below(3) == 0).collect();
        let burst = [0, 0, 3][random.below(3) as usize];
        let options = format!(
            "#: {{\"burst_s\": {burst}, \"revise\": {}, \"until_hand_over\": {}, \"with_agent\": {}}}\n",
            random.below(2) == 0,
            random.below(2) == 0,
            random.below(3) == 0
        );
        let log = Log::of(&(options.clone() + ALL), &log(&mut random, &kinds));
        let expected = log.whole();
        let mut order = shuffled(log.lines.len(), 6, seed);
        for at in (0..order.len()).step_by(5).rev() {
            let late = (at + 1 + random.below(6) as usize).min(order.len());
            order.insert(late, order[at]);
        }
        let ends: Vec<usize> = (0..order.len()).filter(|_| random.below(4) == 0).collect();
        let late: Vec<usize> = order.iter().copied().chain(0..log.lines.len()).collect();
        // A question waits for the mark that takes it back.
        let settle = if kinds.contains(&"rewinds") { 50 } else { 30 };
        for (which, order, ends) in [("once", &order, &ends[..]), ("again", &late, &ends[..]), ("none", &order, &[])] {
            let (found, _) = log.streamed(order, settle, ends);
            if found != expected {
                let at = found.iter().zip(&expected).take_while(|(one, other)| one == other).count();
                wrong.push(format!(
                    "{seed} {which} {kinds:?} {options} at {at}: {:?} for {:?}",
                    found.get(at),
                    expected.get(at)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
