//! Logs in files.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use turnflow_eval::random::Random;

use super::{Log, PROGRAM};

/// How long a message waits for those that belong before it, in seconds.
const SETTLE_S: f64 = 0.2;

/// A log that grows. As many, it is rotated, and what was rotated is packed.
pub(super) struct Files {
    directory: PathBuf,
    rotates: bool,
    /// The number of the last log that was rotated, and of the first one that is not packed.
    last: u32,
    unpacked: u32,
}

impl Files {
    pub fn new(dir: &Path, rotates: bool) -> anyhow::Result<Self> {
        let directory = dir.join("logs");
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("chat.jsonl"), "")?;
        Ok(Self { directory, rotates, last: 0, unpacked: 1 })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Log for Files {
    fn source(&self) -> String {
        let what = format!("map: Jq({PROGRAM:?}), conversations: (settle_s: {SETTLE_S:?})");
        match self.rotates {
            true => format!("Files(glob: \"logs/*\", every_s: 0.1, quiet_s: 0.2, {what})"),
            false => format!("JsonLines(path: \"logs/chat.jsonl\", {what})"),
        }
    }

    fn write(&mut self, records: &[Value]) -> anyhow::Result<()> {
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        let mut log = OpenOptions::new().create(true).append(true).open(self.path("chat.jsonl"))?;
        Ok(log.write_all(lines.as_bytes())?)
    }

    fn disturb(&mut self, random: &mut Random) -> anyhow::Result<bool> {
        if !self.rotates {
            return Ok(false);
        }
        if random.below(2) == 0 && self.unpacked <= self.last {
            let name = format!("chat-{:04}.jsonl", self.unpacked);
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&fs::read(self.path(&name))?)?;
            // As programs that pack do: under another name at first, which is not read.
            fs::write(self.path(".packing"), packed.finish()?)?;
            fs::rename(self.path(".packing"), self.path(&format!("{name}.gz")))?;
            fs::remove_file(self.path(&name))?;
            self.unpacked += 1;
        } else {
            self.last += 1;
            fs::rename(self.path("chat.jsonl"), self.path(&format!("chat-{:04}.jsonl", self.last)))?;
            fs::write(self.path("chat.jsonl"), "")?;
        }
        Ok(true)
    }
}
