//! Crash-safe writes. Whole lines are appended, and a partial write is rolled back, so that a retry
//! leaves no torn line. Files are replaced in an order that survives a power loss.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Syncs a directory: returns when the names of created, renamed and deleted files are on disk.
///
/// # Errors
///
/// The directory cannot be read, or the disk failed.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Atomically replaces the file at `path`. After a power loss, either the old or the new file exists,
/// complete; after this returns, the new one.
///
/// # Errors
///
/// The file cannot be written; the old one stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    // Otherwise the name may be on disk before the content.
    file.sync_all()?;
    drop(file);
    std::fs::rename(&beside, path)?;
    sync_directory(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// A target that lines are appended to.
pub trait Target: Write {
    /// Its length; `None` if it cannot be truncated.
    fn length(&self) -> io::Result<Option<u64>>;
    /// Truncates it to a length.
    fn cut(&self, length: u64) -> io::Result<()>;
}

impl Target for File {
    fn length(&self) -> io::Result<Option<u64>> {
        let metadata = self.metadata()?;
        Ok(metadata.is_file().then_some(metadata.len()))
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// Appends whole lines.
pub struct Lines<T> {
    /// The target of the lines.
    pub target: T,
    /// The target ends within a line.
    pub torn: bool,
}

impl<T: Target> Lines<T> {
    /// Appends the line and a line break.
    ///
    /// # Errors
    ///
    /// The line cannot be written; a partial write is rolled back.
    pub fn append(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        if self.torn {
            line.insert(0, b'\n');
        }
        let before = self.target.length()?;
        let mut written = 0;
        while written < line.len() {
            match self.target.write(&line[written..]) {
                Ok(0) => return Err(self.roll_back(before, written, ErrorKind::WriteZero.into())),
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.roll_back(before, written, error)),
            }
        }
        self.torn = false;
        Ok(())
    }

    /// Writes a line break after the unfinished last line.
    ///
    /// # Errors
    ///
    /// The line break cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.target.write_all(b"\n")?;
        self.torn = false;
        Ok(())
    }

    /// Removes the unfinished last line, which begins at `start`.
    ///
    /// # Errors
    ///
    /// The target cannot be truncated.
    pub fn cut(&mut self, start: u64) -> io::Result<()> {
        self.target.cut(start)?;
        self.torn = false;
        Ok(())
    }

    /// Rolls back the partial write of a line; returns the error.
    fn roll_back(&mut self, before: Option<u64>, written: usize, error: io::Error) -> io::Error {
        if written == 0 {
            return error;
        }
        // Cuts only our own bytes: another process may append to the same file.
        let ours = |before: &u64| self.target.length().is_ok_and(|now| now == Some(before + written as u64));
        let cut = before.filter(ours).is_some_and(|before| self.target.cut(before).is_ok());
        if !cut {
            self.torn = true;
        }
        error
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A target with room for a number of bytes, which may refuse truncation.
    pub(crate) struct Disk {
        pub(crate) bytes: RefCell<Vec<u8>>,
        pub(crate) room: usize,
        cuts: bool,
    }

    impl Disk {
        /// A disk that can be truncated.
        pub(crate) fn of(room: usize) -> Self {
            Self { bytes: RefCell::default(), room, cuts: true }
        }
    }

    impl Write for Disk {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            let bytes = self.bytes.get_mut();
            let fits = buffer.len().min(self.room - bytes.len());
            bytes.extend(&buffer[..fits]);
            if fits == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(fits) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Target for Disk {
        fn length(&self) -> io::Result<Option<u64>> {
            Ok(Some(self.bytes.borrow().len() as u64))
        }
        fn cut(&self, length: u64) -> io::Result<()> {
            if !self.cuts {
                return Err(ErrorKind::PermissionDenied.into());
            }
            self.bytes.borrow_mut().truncate(length as usize);
            Ok(())
        }
    }

    #[test]
    fn a_line_that_does_not_fit_is_taken_back_and_can_be_tried_again() {
        for (cuts, expected) in [(true, "one\nsecond\n"), (false, "one\nsec\nsecond\n")] {
            let target = Disk { cuts, ..Disk::of(7) };
            let mut lines = Lines { target, torn: false };
            lines.append(b"one".to_vec()).unwrap();
            assert_eq!(lines.append(b"second".to_vec()).unwrap_err().kind(), ErrorKind::StorageFull);
            lines.target.room = 100;
            lines.append(b"second".to_vec()).unwrap();
            assert_eq!(lines.target.bytes.into_inner(), expected.as_bytes());
        }
    }
}
