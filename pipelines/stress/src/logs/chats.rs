//! A file a chat, which its program writes anew with each message.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use turnflow_eval::random::Random;

use super::Log;

/// Chats, some of which are packed. A message for such a one has the chat written unpacked again, beside its packed form.
pub(super) struct Chats {
    directory: PathBuf,
    said: BTreeMap<String, Vec<Value>>,
    known: BTreeSet<u64>,
}

impl Chats {
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let directory = dir.join("chats");
        fs::create_dir_all(&directory)?;
        Ok(Self { directory, said: BTreeMap::new(), known: BTreeSet::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Log for Chats {
    fn source(&self) -> String {
        // Without ids, what is read twice is answered twice.
        let program = "{conversation: $source.name, speaker: .s, text: .t}";
        format!("Files(glob: \"chats/*\", every_s: 0.1, quiet_s: 0.1, map: Jq({program:?}))")
    }

    fn write(&mut self, records: &[Value]) -> anyhow::Result<()> {
        let mut changed = BTreeSet::new();
        for record in records {
            let chat = record["c"].as_str().unwrap_or_default();
            if self.known.insert(record["id"].as_u64().unwrap_or_default()) {
                self.said.entry(chat.to_owned()).or_default().push(record.clone());
                changed.insert(chat.to_owned());
            }
        }
        for chat in changed {
            let text = serde_json::to_string_pretty(&self.said[&chat])?;
            // A reader that comes between sees the old one or the new one.
            fs::write(self.path(".writing"), text)?;
            fs::rename(self.path(".writing"), self.path(&format!("{chat}.json")))?;
        }
        Ok(())
    }

    fn disturb(&mut self, random: &mut Random) -> anyhow::Result<bool> {
        let chats: Vec<&String> = self.said.keys().collect();
        if chats.is_empty() {
            return Ok(false);
        }
        let chat = chats[random.below(chats.len())];
        let plain = self.path(&format!("{chat}.json"));
        let Ok(text) = fs::read(&plain) else { return Ok(false) };
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&text)?;
        let packed = packed.finish()?;
        let path = self.path(&format!("{chat}.json.gz"));
        if random.below(2) == 0 {
            // Over the one that is there.
            fs::write(path, packed)?;
        } else {
            fs::write(self.path(".packing"), packed)?;
            fs::rename(self.path(".packing"), path)?;
        }
        fs::remove_file(plain)?;
        Ok(true)
    }
}
