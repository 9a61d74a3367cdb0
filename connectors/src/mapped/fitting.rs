//! Which preset reads a record that is no turn.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use turnflow_records::{Item, Mapping, Message, Record, Source, decode, presets};

/// The presets for records of JSON.
static COMPILED: LazyLock<Vec<(&str, Mapping)>> = LazyLock::new(|| {
    let compiled = |(name, code): &(&'static str, &str)| {
        let mapping = Mapping::of(code).ok()?;
        mapping.options().form().is_none_or(|form| form == "jsonl").then_some((*name, mapping))
    };
    presets::PRESETS.iter().filter_map(compiled).collect()
});

/// Number of records for which a preset was looked for.
static SOUGHT: AtomicU64 = AtomicU64::new(0);
/// After so many records, only some are looked at.
const ALL: u64 = 16;

/// Names the preset that makes messages of a record, if one does.
pub(crate) fn fitting(record: &[u8]) -> Option<String> {
    let number = SOUGHT.fetch_add(1, Ordering::Relaxed);
    if number > ALL && !number.is_power_of_two() {
        return None;
    }
    let value = decode::value(record, &mut turnflow_records::Odd::default()).ok()?;
    let record = Record { value, source: Source { path: "record".into(), number: 1 } };
    let is_turn = |message: &Message| {
        let speaks = matches!(message.speaker.as_deref(), Some("user" | "agent"));
        speaks && message.text.as_ref().is_some_and(|text| !text.trim().is_empty())
    };
    let turns = |item: &Item| match item {
        Item::Message(message) => {
            let is_placed = message.conversation.is_some() || message.parent.is_some() || message.id.is_some();
            usize::from(is_turn(message) && is_placed)
        }
        Item::Call(call) => call.messages.iter().chain(&call.answer).filter(|message| is_turn(message)).count(),
    };
    let fits = |(name, mapping): &'static (&'static str, Mapping)| {
        let items = mapping.run(&record).ok()?;
        let number: usize = items.iter().map(turns).sum();
        (number > 0).then_some((*name, number))
    };
    // Of several, the one that finds most in it.
    let (name, _) = COMPILED.iter().filter_map(fits).rev().max_by_key(|(_, number)| *number)?;
    Some(format!("the preset `{name}` reads this form: give the source `map: Preset(\"{name}\")`"))
}
