//! The file of alerts: each record is in it once.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::record::{Record, Told};
use crate::rule::State;

/// Bytes at the end of the file in which its last record is looked for.
const END: u64 = 4 << 20;
/// All records begin with so many equal bytes.
const BEGIN: usize = 8;

/// Appends records to the file, except those that it has: a process was killed after it wrote them.
pub(crate) fn append<'a>(path: &Path, records: impl Iterator<Item = &'a Record>) -> io::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(END);
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    (&mut file).take(END).read_to_end(&mut end)?;
    // A torn line is one that comes now.
    let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let begin = end[..whole.saturating_sub(1)].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let last: Option<Record> = serde_json::from_slice(&end[begin..whole]).ok();
    let mut bytes = Vec::new();
    for record in records {
        let is_there = |last: &Record| last.conversation_id == record.conversation_id && last.turn >= record.turn;
        if !last.as_ref().is_some_and(is_there) {
            serde_json::to_writer(&mut bytes, record)?;
            bytes.push(b'\n');
        }
    }
    let torn = &end[whole..];
    if !bytes.is_empty() && !bytes.starts_with(&torn[..torn.len().min(BEGIN)]) {
        return Err(io::Error::other("what follows its last line is no record of this program: move the file away"));
    }
    if (whole > 0 || start == 0) && start + (whole as u64) < length {
        file.set_len(start + whole as u64)?;
    }
    file.write_all(&bytes)?;
    file.sync_data()
}

/// The states of the rules as the file tells them, and the number of its last record: for a run that has lost its own
/// state.
pub(crate) fn recover(path: &Path, node: &str) -> io::Result<(u32, BTreeMap<String, State>)> {
    let (mut last, mut states) = (0, BTreeMap::new());
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((last, states)),
        Err(error) => return Err(error),
    };
    let (mut reader, mut bytes) = (BufReader::new(file), Vec::new());
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        if let Ok(record) = serde_json::from_slice::<Record>(&bytes)
            && *record.conversation_id == *node
        {
            let Record { turn, rule, because, since, .. } = record;
            last = last.max(turn);
            match record.state {
                Told::Firing => drop(states.insert(rule, State::Firing { because, since, alert: turn, back: None })),
                Told::Cleared => drop(states.remove(&rule)),
            }
        }
        bytes.clear();
    }
    Ok((last, states))
}
