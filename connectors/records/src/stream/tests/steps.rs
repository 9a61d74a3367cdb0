//! A stream of items that come one after another, with restarts, and with as much room as a source has.

use super::*;

/// The turns of items of which some come in each second, and settle within `settle` seconds. Before each second of `ends`,
/// the process ends and another one goes on.
pub(super) fn streamed(
    options: &Options,
    items: impl Iterator<Item = Vec<Item>>,
    settle: u64,
    ends: &[usize],
) -> (Vec<Turn>, LeftOut) {
    let bounds = Bounds { waiting: usize::MAX, known: usize::MAX };
    streamed_within(options, items, settle, ends, &bounds)
}

/// How much a source has room for.
pub(super) struct Bounds {
    pub waiting: usize,
    pub known: usize,
}

/// The same, with as much room as a source has.
pub(super) fn streamed_within(
    options: &Options,
    items: impl Iterator<Item = Vec<Item>>,
    settle: u64,
    ends: &[usize],
    bounds: &Bounds,
) -> (Vec<Turn>, LeftOut) {
    let mut memory = Forgetful::default();
    let mut stream = Stream::new(options.clone(), BTreeMap::new(), 0);
    let (mut turns, mut left_out) = (Vec::new(), LeftOut::new());
    // What a source has stored.
    let mut stored: BTreeMap<u64, String> = BTreeMap::new();
    let mut take = |released: Released| {
        turns.extend(released.turns.into_iter().map(|(turn, _)| turn));
        released.left_out.into_iter().for_each(|(reason, number)| *left_out.entry(reason).or_default() += number);
    };
    for (second, items) in items.enumerate() {
        if ends.contains(&second) {
            let held = stored.iter().map(|(number, held)| (*number, serde_json::from_str(held).unwrap()));
            stream = Stream::new(options.clone(), held.collect(), stream.next);
        }
        let now = second as u64 * 1000;
        let new = stream.take(items, &format!("log:{second}"), now + settle * 1000);
        let excess = stream.waiting().saturating_sub(bounds.waiting);
        if excess > 0 {
            stream.hurry(excess + bounds.waiting / 10);
        }
        let released = stream.release(now, false, &mut memory);
        stored.retain(|number, _| released.done.binary_search(number).is_err());
        for number in new.chain(released.waiting.iter().copied()) {
            stored.extend(stream.held(number).map(|held| (number, serde_json::to_string(held).unwrap())));
        }
        take(released);
        memory.keep(bounds.known);
        assert!(stream.waiting() <= bounds.waiting.saturating_mul(2), "{} wait", stream.waiting());
        let first = stream.held.values().filter_map(|held| held.due).min();
        assert_eq!(stream.due(), first, "nothing that is due is overlooked");
    }
    take(stream.release(u64::MAX / 2, false, &mut memory));
    assert_eq!(stream.waiting(), stream.waiting_for_agents(), "nothing else keeps a message back");
    take(stream.release(0, true, &mut memory));
    assert_eq!(stream.waiting(), 0);
    (turns, left_out)
}

/// Remembers what was put last, as the store of a source does.
#[derive(Default)]
struct Forgetful {
    known: HashMap<String, (u64, String)>,
    ages: BTreeMap<u64, String>,
    next: u64,
}

impl Forgetful {
    /// Forgets what is oldest beyond a number.
    fn keep(&mut self, most: usize) {
        while self.known.len() > most {
            let (_, oldest) = self.ages.pop_first().unwrap();
            self.known.remove(&oldest);
        }
    }
}

impl Memory for Forgetful {
    fn get(&mut self, key: &str) -> Option<String> {
        self.known.get(key).map(|(_, value)| value.clone())
    }

    fn set(&mut self, key: &str, value: Option<String>) {
        self.known.remove(key).map(|(age, _)| self.ages.remove(&age));
        if let Some(value) = value {
            self.known.insert(key.to_owned(), (self.next, value));
            self.ages.insert(self.next, key.to_owned());
            self.next += 1;
        }
    }
}
