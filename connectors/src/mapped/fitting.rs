//! Which preset reads a record that is no turn.

use turnflow_records::{Item, Mapping, Message, Record, Source, decode, presets};

/// Names the preset that makes messages of a record, if one does.
pub(crate) fn fitting(record: &[u8]) -> Option<String> {
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
    let fits = |(name, code): &(&'static str, &str)| {
        let mapping = Mapping::of(code).ok()?;
        if mapping.options().decode.as_deref().is_some_and(|form| form != "jsonl") {
            return None;
        }
        let items = mapping.run(&record).ok()?;
        let number: usize = items.iter().map(turns).sum();
        (number > 0).then_some((*name, number))
    };
    // Of several, the one that finds most in it.
    let (name, _) = presets::PRESETS.iter().filter_map(fits).rev().max_by_key(|(_, number)| *number)?;
    Some(format!("the preset `{name}` reads this form: give the source `map: Preset(\"{name}\")`"))
}
