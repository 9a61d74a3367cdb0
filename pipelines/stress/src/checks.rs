//! Checks after a run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde_json::Value;
use turnflow_engine::wording::count;

use crate::names::text_of;
use crate::world::{WARM, World};

/// Checks the answers in the files of all sinks. Returns the broken promises.
pub(crate) fn answers(world: &World) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for sink in ["answers", "second", "late"] {
        let lines = lines(world, sink)?;
        if sink == "answers" || !lines.is_empty() {
            let found = if sink == "late" { of_late(world, &lines) } else { of_sink(world, &lines) };
            wrong.extend(found.into_iter().map(|what| format!("{sink}: {what}")));
        }
    }
    Ok(wrong)
}

/// The lines of a sink, in the order in which they were written.
fn lines(world: &World, sink: &'static str) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for path in world.files(sink) {
        lines.extend(text_of(&path)?.lines().map(str::to_owned));
    }
    Ok(lines)
}

/// Checks the late sink: it has no answer twice, and an answer to each turn asked since it was added.
fn of_late(world: &World, lines: &[String]) -> Vec<String> {
    let mut times: BTreeMap<(String, u32), usize> = BTreeMap::new();
    for answer in lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let conversation = answer["conversation_id"].as_str().unwrap_or_default().to_owned();
        if answer["retracted"] != true && answer["revision"] == 0 && !conversation.starts_with(WARM) {
            *times.entry((conversation, answer["turn"].as_u64().unwrap_or_default() as u32)).or_default() += 1;
        }
    }
    let mut wrong = Vec::new();
    for key in world.asked() {
        let (conversation, turn) = &key;
        match times.get(&key).copied().unwrap_or_default() {
            0 if world.is_after_late(conversation, *turn) => {
                wrong.push(format!("turn {turn} of {conversation} is not answered"));
            }
            0 | 1 => {}
            times => wrong.push(format!("turn {turn} of {conversation} is answered {times} times")),
        }
    }
    wrong
}

/// Checks that each turn is answered exactly once, in order, with the correct history.
fn of_sink(world: &World, lines: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut times: BTreeMap<(String, u32), usize> = BTreeMap::new();
    let mut last: BTreeMap<String, u32> = BTreeMap::new();
    let mut stands: BTreeMap<(String, u32), (u64, bool)> = BTreeMap::new();
    let mut replies: BTreeMap<(String, u32), String> = BTreeMap::new();
    let mut revised = 0;
    let mut warm: BTreeMap<String, usize> = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        let Ok(answer) = serde_json::from_str::<Value>(line) else {
            wrong.push(format!("line {} of the answers is not JSON", at + 1));
            continue;
        };
        let conversation = answer["conversation_id"].as_str().unwrap_or_default().to_owned();
        if conversation.starts_with(WARM) {
            // Each log has the same question, which is answered for each of them. After a loss of power, an answer to the one
            // can pass for that to another.
            let is_first = answer["revision"] == 0 && answer["retracted"] != true;
            *warm.entry(conversation).or_default() += usize::from(is_first);
            continue;
        }
        let turn = answer["turn"].as_u64().unwrap_or_default() as u32;
        let key = (conversation.clone(), turn);
        let revision = answer["revision"].as_u64().unwrap_or_default();
        let withdrawn = answer["retracted"] == true;
        // The state of a reader: revisions are consecutive, and each follows the retraction of the
        // previous one.
        let follows = match stands.insert(key.clone(), (revision, !withdrawn)) {
            None => revision == 0 && !withdrawn,
            Some((before, true)) => withdrawn && revision == before,
            Some((before, false)) => !withdrawn && revision == before + 1,
        };
        if world.live && !follows {
            wrong
                .push(format!("line {}: revision {revision} of turn {turn} of {conversation} is out of order", at + 1));
        }
        revised += usize::from(revision > 0 && !withdrawn);
        if withdrawn || (world.live && revision > 0) {
            continue;
        }
        *times.entry(key.clone()).or_default() += 1;
        if answer["status"] == "failed" {
            wrong.push(format!("turn {turn} of {conversation} failed: {}", answer["error"]));
            continue;
        }
        replies.insert(key, answer["answer"].as_str().unwrap_or_default().to_owned());
        let before = last.insert(conversation.clone(), turn).unwrap_or_default();
        if before >= turn {
            wrong.push(format!("turn {turn} of {conversation} is answered after turn {before}"));
        }
        let reply = |before| replies.get(&(conversation.clone(), before)).cloned().unwrap_or_default();
        let expected = world.query(&conversation, turn, reply);
        if answer["query"] != expected.as_str() {
            wrong.push(format!("turn {turn} of {conversation} asked {} and not {expected:?}", answer["query"]));
        }
    }
    for (conversation, turn) in world.asked() {
        match times.remove(&(conversation.clone(), turn)) {
            Some(1) => {}
            Some(times) => wrong.push(format!("turn {turn} of {conversation} is answered {times} times")),
            None => wrong.push(format!("turn {turn} of {conversation} is not answered")),
        }
    }
    let several = warm.iter().filter(|(_, times)| !(1..=world.logs).contains(*times));
    wrong.extend(several.map(|(conversation, times)| format!("{conversation} is answered {times} times")));
    let withdrawn = stands.iter().filter(|(_, (_, stands))| !stands);
    wrong.extend(withdrawn.map(|((conversation, turn), _)| format!("turn {turn} of {conversation} is retracted")));
    if world.live {
        println!("{} revised", count(revised, "answer"));
    }
    wrong.extend(times.keys().map(|(conversation, turn)| format!("turn {turn} of {conversation} was never asked")));
    wrong
}

/// Runs a turnflow command on the same pipeline and state. Returns its output and whether it succeeded.
pub(crate) fn turnflow(world: &World, state: &Path, arguments: &[&str]) -> anyhow::Result<(String, bool)> {
    let (first, rest) = arguments.split_first().context("a command")?;
    let output = Command::new(crate::turnflow()?)
        .arg(first)
        .arg(world.pipeline())
        .args(rest)
        .arg("--state")
        .arg(state)
        .output()
        .context("cannot run turnflow")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok((text, output.status.success()))
}

/// Checks that the indexes equal a rebuild and that a restart embeds nothing. Returns the broken promises.
pub(crate) fn indexes(world: &World, state: &Path) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    let (text, well) = turnflow(world, state, &["index"])?;
    if !well {
        wrong.push(format!("the indexes cannot be opened: {text}"));
    }
    wrong.extend(restart(world, state)?);
    let (text, well) = turnflow(world, state, &["verify"])?;
    if !well {
        wrong.push(format!("`verify` finds differences: {}", text.trim()));
    }
    Ok(wrong)
}

/// Checks that a restart embeds nothing. Returns the broken promises.
pub(crate) fn restart(world: &World, state: &Path) -> anyhow::Result<Vec<String>> {
    let (text, well) = turnflow(world, state, &["index"])?;
    let nothing = well && text.contains(" 0 chunks embedded");
    Ok((!nothing).then(|| format!("a restart embeds something: {}", text.trim())).into_iter().collect())
}

/// Prints the broken promises; fails if there are any.
pub(crate) fn verdict(wrong: &[String]) -> anyhow::Result<()> {
    for one in wrong.iter().take(20) {
        eprintln!("{one}");
    }
    match wrong.len() {
        0 => Ok(()),
        broken => anyhow::bail!(count(broken, "broken promise")),
    }
}
