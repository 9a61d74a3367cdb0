//! Files that are read line by line.

use turnflow_engine::connector::Stopped;
use turnflow_records::decode;

use super::{Fault, Run};
use crate::files::entry::Entry;
use crate::files::reader::{Open, Step};
use crate::files::shown;
use crate::lines::Line;

impl Run<'_> {
    /// Reads on in the lines of a file.
    pub(super) fn lines(&mut self, id: u64, state: (u64, u64), is_end: bool) -> Result<(), Fault> {
        let Some(mut entry) = self.entries.get(&id).cloned() else { return Ok(()) };
        let Some(mut open) = self.opened(id, &entry)? else {
            tracing::info!(file = %entry.path.display(), "the file was truncated or rewritten");
            self.lost(id);
            return Ok(());
        };
        let fault = loop {
            match open.step() {
                Ok(Step::Line) => self.hand_over(id, &mut entry, &mut open)?,
                Ok(Step::End) => break None,
                Ok(Step::Short) => break Some("the packed file ends too soon".to_owned()),
                Err(error) if open.is_packed => break Some(format!("the packed file cannot be read: {error}")),
                Err(error) => {
                    self.entries.insert(id, entry);
                    return Err(error.into());
                }
            }
        };
        let nuls = open.take_nuls();
        if nuls > 0 {
            tracing::warn!(file = %entry.path.display(), bytes = nuls, "NUL characters before a line are left out");
        }
        let is_quiet = self.is_quiet(state);
        let (mut keeps, mut is_pending) = (!open.is_packed, false);
        if open.is_inside() {
            let is_complete = matches!(open.line(), Line::Whole(line) if line.ends_with(b"}")
                && decode::value(line, &mut Default::default()).is_ok());
            if is_complete && (is_end || is_quiet) && fault.is_none() {
                self.hand_over(id, &mut entry, &mut open)?;
                keeps = false;
            } else if is_end && fault.is_none() {
                // It is read when it is complete.
                let position = format!("{}:{}", shown(&entry.path), open.number());
                let (Line::Whole(start) | Line::TooLong { start, .. }) = open.line();
                self.output.dead_beginning(&position, "the file ends within this line", start);
            }
            is_pending = is_complete && !is_end && !is_quiet;
        }
        if let Some(reason) = fault {
            is_pending = !is_end && !is_quiet;
            if !is_pending {
                let position = format!("{}:{}", shown(&entry.path), open.number());
                self.output.dead_letter(&position, &reason, b"");
            }
        }
        let is_new = (entry.seen, entry.is_pending) != (Some(state), is_pending);
        (entry.seen, entry.is_pending) = (Some(state), is_pending);
        if is_new && !is_pending && entry.length > 0 {
            self.output.begins(entry.place(id));
        }
        self.entries.insert(id, entry);
        if keeps {
            self.keep(id, open);
        }
        Ok(())
    }

    /// Delivers the present line.
    fn hand_over(&mut self, id: u64, entry: &mut Entry, open: &mut Open) -> Result<(), Stopped> {
        (entry.length, entry.digest) = open.place();
        entry.line = open.number();
        entry.seen = None;
        let position = format!("{}:{}", shown(&entry.path), entry.line);
        match open.line() {
            Line::Whole(line) => self.output.line(line, &position, Some(entry.place(id))),
            Line::TooLong { start, bytes } => {
                let limit = self.files.config.max_line_bytes;
                let reason = format!("the line has {bytes} bytes, more than {limit}");
                self.output.dead_beginning(&position, &reason, start);
                Ok(())
            }
        }
    }
}
