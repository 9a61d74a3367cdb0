//! How logs and answer files are rotated: the names of each style, and packed files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use turnflow_eval::random::Random;

/// How a rotated file is named after `turns.jsonl`.
#[derive(Clone, Copy, Debug)]
enum Style {
    /// `turns.jsonl.1`; 1 is the newest.
    BehindNewestFirst,
    /// `turns.jsonl.1`; 1 is the oldest.
    BehindOldestFirst,
    /// `turns.1.jsonl`; 1 is the newest.
    BeforeNewestFirst,
    /// `turns.1.jsonl`; 1 is the oldest.
    BeforeOldestFirst,
    /// `turns-20260101.jsonl`.
    DateBefore,
    /// `turns.jsonl-20260101`.
    DateBehind,
    /// `turns.jsonl.2026-01-01`.
    DashedDateBehind,
    /// `20260101-turns.jsonl`.
    DateFirst,
}

const STYLES: [Style; 8] = [
    Style::BehindNewestFirst,
    Style::BehindOldestFirst,
    Style::BeforeNewestFirst,
    Style::BeforeOldestFirst,
    Style::DateBefore,
    Style::DateBehind,
    Style::DashedDateBehind,
    Style::DateFirst,
];

/// The ending of a packed file.
const PACKED: &str = ".gz";

/// A file and those that it was rotated to.
pub(crate) struct Rotated {
    directory: PathBuf,
    /// The name without its extension.
    stem: &'static str,
    style: Style,
    /// The rotated files, oldest first: whether each is packed.
    are_packed: Vec<bool>,
}

impl Rotated {
    /// A file that is not rotated yet, with a random style of names.
    pub fn new(directory: PathBuf, stem: &'static str, random: &mut Random) -> Self {
        let style = STYLES[random.below(STYLES.len())];
        Self { directory, stem, style, are_packed: Vec::new() }
    }

    /// An example of its names, for people.
    pub fn example(&self) -> String {
        self.name(0, 1)
    }

    /// The path of the present file.
    pub fn present(&self) -> PathBuf {
        self.directory.join(format!("{}.jsonl", self.stem))
    }

    /// All files, oldest first.
    pub fn files(&self) -> Vec<PathBuf> {
        let rotated = (0..self.are_packed.len()).map(|at| self.path(at, self.are_packed.len()));
        rotated.chain([self.present()]).filter(|path| path.exists()).collect()
    }

    /// The name of the file at this place, oldest first, when there are so many rotated files.
    fn name(&self, at: usize, count: usize) -> String {
        let stem = self.stem;
        let (newest_first, oldest_first) = (count - at, at + 1);
        let (year, month, day) = (2026 + at / 336, 1 + at / 28 % 12, 1 + at % 28);
        let date = format!("{year}{month:02}{day:02}");
        match self.style {
            Style::BehindNewestFirst => format!("{stem}.jsonl.{newest_first}"),
            Style::BehindOldestFirst => format!("{stem}.jsonl.{oldest_first}"),
            Style::BeforeNewestFirst => format!("{stem}.{newest_first}.jsonl"),
            Style::BeforeOldestFirst => format!("{stem}.{oldest_first}.jsonl"),
            Style::DateBefore => format!("{stem}-{date}.jsonl"),
            Style::DateBehind => format!("{stem}.jsonl-{date}"),
            Style::DashedDateBehind => format!("{stem}.jsonl.{year}-{month:02}-{day:02}"),
            Style::DateFirst => format!("{date}-{stem}.jsonl"),
        }
    }

    fn path(&self, at: usize, count: usize) -> PathBuf {
        let ending = if self.are_packed[at] { PACKED } else { "" };
        self.directory.join(self.name(at, count) + ending)
    }

    /// Renames the present file, if it has anything, and those before it where the style says so. Returns whether it did.
    pub fn rotate(&mut self) -> anyhow::Result<bool> {
        if !fs::metadata(self.present()).is_ok_and(|metadata| metadata.len() > 0) {
            return Ok(false);
        }
        let count = self.are_packed.len();
        for at in 0..count {
            let (from, to) = (self.path(at, count), self.path(at, count + 1));
            if from != to {
                fs::rename(&from, &to).with_context(|| format!("cannot rename `{}`", from.display()))?;
            }
        }
        self.are_packed.push(false);
        fs::rename(self.present(), self.path(count, count + 1))?;
        // The rotation itself must survive a power loss.
        fs::File::open(&self.directory)?.sync_all()?;
        Ok(true)
    }

    /// Packs one of the rotated files; `also_newest` says that nothing writes to the newest any more.
    pub fn pack(&mut self, random: &mut Random, also_newest: bool) -> anyhow::Result<bool> {
        let count = self.are_packed.len();
        let choices: Vec<usize> =
            (0..count).filter(|at| !self.are_packed[*at] && (also_newest || at + 1 < count)).collect();
        if choices.is_empty() {
            return Ok(false);
        }
        let at = choices[random.below(choices.len())];
        let plain = self.path(at, count);
        let beside = self.directory.join(".packing");
        let mut packed = flate2::write::GzEncoder::new(fs::File::create(&beside)?, flate2::Compression::fast());
        io::copy(&mut fs::File::open(&plain)?, &mut packed)?;
        packed.finish()?.sync_all()?;
        self.are_packed[at] = true;
        fs::rename(&beside, self.path(at, count))?;
        fs::remove_file(&plain)?;
        Ok(true)
    }
}

/// The text of a file, unpacked if it is packed.
pub(crate) fn text_of(path: &Path) -> anyhow::Result<String> {
    let file = fs::File::open(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let read = if path.as_os_str().to_string_lossy().ends_with(PACKED) {
        io::read_to_string(flate2::read::GzDecoder::new(file))
    } else {
        io::read_to_string(file)
    };
    read.with_context(|| format!("cannot read `{}`", path.display()))
}
