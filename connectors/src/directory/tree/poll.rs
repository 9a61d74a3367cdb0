//! Finds changes that no event reports: those of other machines on a shared file system, of a lower layer, through a
//! mapping into memory, or through another name of the same file.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use turnflow_engine::connector::Stopped;

use super::Tree;
use crate::file_system::{Reports, reports};
use crate::watch::{FileStamp, WRITING};

/// How often the stamps of all files are compared, if the file system reports all changes, some, or none of others.
const RARELY: Duration = Duration::from_secs(10);
const SOMETIMES: Duration = Duration::from_secs(5);
const OFTEN: Duration = Duration::from_secs(1);
/// How many times as long as a comparison the pause after it is, at least. Of a large tree, it takes seconds.
const PAUSES: u32 = 20;

/// When all files are compared.
pub(in crate::directory) struct Polls {
    pause: Duration,
    next: Instant,
}

impl Polls {
    /// For the file system with this path. Tells if it reports no changes of others.
    pub(in crate::directory) fn of(tree: &Tree<'_>) -> Self {
        let pause = match reports(tree.root()) {
            Reports::All => RARELY,
            Reports::Own => SOMETIMES,
            Reports::Local(name) => {
                let path = tree.root().display().to_string();
                tracing::info!(
                    path,
                    file_system = name,
                    "this file system does not report changes by others; its files are compared every second"
                );
                OFTEN
            }
        };
        Self { pause, next: Instant::now() + pause }
    }

    /// Compares all files, if it is time.
    pub(in crate::directory) fn poll(&mut self, tree: &mut Tree<'_>) -> Result<(), Stopped> {
        let began = Instant::now();
        if began >= self.next {
            tree.compare()?;
            self.next = Instant::now() + self.pause.max(began.elapsed() * PAUSES);
        }
        Ok(())
    }
}

impl Tree<'_> {
    /// Reads the files whose stamps differ from those they were read with.
    fn compare(&mut self) -> Result<(), Stopped> {
        let top = PathBuf::new();
        let (files, unread) = self.walk(&top)?;
        self.forget_others(&top, &files, &unread)?;
        for (file, is_link) in files {
            let stamp = FileStamp::of(&self.root().join(&file));
            if self.stamps.get(&file) == Some(&stamp) {
                continue;
            }
            let is_written = |at: SystemTime| SystemTime::now().duration_since(at).is_ok_and(|since| since < WRITING);
            match stamp.as_ref().and_then(FileStamp::modified).is_some_and(is_written) {
                true => self.again.push((file, WRITING, false)),
                false => self.look_at_file(&file, is_link, false)?,
            }
        }
        Ok(())
    }
}
