//! Bytes in files that are mapped into memory: in those of others, and in temporary ones.
//!
//! The operating system keeps those pages in memory that are used, and may drop all others, which are on disk. Texts of a
//! large corpus that are read anew, and codes, are in temporary files instead of on the heap. These have no name: they are gone when the process
//! ends, and a restart writes them again. A file is deleted when nothing of it is in use any more. What changes often
//! should stay on the heap: a few bytes in use keep a whole file.

use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::Mmap;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Minimum and maximum size of a file, in bytes. Small files are free sooner.
const SIZES: (u64, u64) = (1 << 20, 64 << 20);
/// Number of files up to which they have the minimum size. A process may map some 65,000.
const FILES: u64 = 256;
/// Bytes of the disk that stay free for what must be stored.
#[cfg(unix)]
const RESERVE: u64 = 1 << 30;
/// After a failed write, bytes stay on the heap for this long.
const PAUSE: Duration = Duration::from_secs(10);
/// Alignment of all bytes: a line of the processor's cache.
const ALIGN: u64 = 64;

/// Writes bytes to mapped files of a directory.
#[derive(Debug)]
pub struct MappedFiles {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    /// Bytes written so far.
    written: u64,
    failed: Option<Instant>,
}

/// The file that is being filled.
#[derive(Debug)]
struct Open {
    file: File,
    map: Arc<Mmap>,
    end: u64,
}

/// Bytes in a mapped file. Clones share them.
#[derive(Clone, Debug)]
pub struct MappedBytes {
    map: Arc<Mmap>,
    start: u32,
    length: u32,
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, length) = (self.start as usize, self.length as usize);
        assert!(start + length <= self.map.len(), "they are in the file");
        // SAFETY: The bytes are within the map and were written before this value existed. No reference covers others of
        // the file, which may still be written.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), length) }
    }
}

/// A file that others have written whole, mapped into memory. Clones share the map.
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<Mmap>);

impl MappedFile {
    /// Maps a file, which may be removed meanwhile, but must not be changed.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: Data files of tables are written once, and then only removed; a removed file stays readable. If the
        // disk cannot read a page, or somebody cuts the file, the process ends, as it does for the maps of tantivy.
        Ok(Self(Arc::new(unsafe { Mmap::map(&file)? })))
    }

    /// The bytes at an offset; `None` if the file is shorter, or if they are at 4 GB or further.
    pub fn part(&self, start: u64, length: usize) -> Option<MappedBytes> {
        let is_there = start.checked_add(length as u64).is_some_and(|end| end <= self.0.len() as u64);
        let (start, length) = (u32::try_from(start).ok()?, u32::try_from(length).ok()?);
        is_there.then(|| MappedBytes { map: self.0.clone(), start, length })
    }
}

impl MappedFiles {
    /// Files are created in `directory` when they are needed.
    pub fn new(directory: &Path) -> Arc<Self> {
        Arc::new(Self { directory: directory.to_owned(), state: Mutex::default() })
    }

    /// Copies pieces of bytes to a file, each at a multiple of `align` (a power of two up to 64), with few writes. `None` for
    /// a piece that is empty or too long, or cannot be written: then it has to stay on the heap.
    pub fn put_all(&self, pieces: &[&[u8]], align: u64) -> Vec<Option<MappedBytes>> {
        self.put_while(self.state.lock(), pieces, align)
    }

    /// The same, but nothing is copied if another thread is writing.
    pub fn try_put_all(&self, pieces: &[&[u8]], align: u64) -> Vec<Option<MappedBytes>> {
        match self.state.try_lock() {
            Some(state) => self.put_while(state, pieces, align),
            None => vec![None; pieces.len()],
        }
    }

    fn put_while(&self, mut state: MutexGuard<'_, State>, pieces: &[&[u8]], align: u64) -> Vec<Option<MappedBytes>> {
        if state.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return vec![None; pieces.len()];
        }
        let mut put = Vec::with_capacity(pieces.len());
        match state.put_all(&self.directory, pieces, align, &mut put) {
            Ok(()) => state.failed = None,
            Err(error) => {
                if state.failed.is_none() {
                    tracing::warn!(directory = %self.directory.display(), %error,
                        "cannot write a mapped file; texts and codes stay in memory");
                }
                state.failed = Some(Instant::now());
                // What is written of it is in doubt.
                state.open = None;
                put.clear();
            }
        }
        put.resize(pieces.len(), None);
        put
    }
}

impl State {
    fn put_all(
        &mut self,
        directory: &Path,
        pieces: &[&[u8]],
        align: u64,
        put: &mut Vec<Option<MappedBytes>>,
    ) -> io::Result<()> {
        // What is to be written next to the open file.
        let mut buffer = Vec::new();
        for piece in pieces {
            let length = piece.len() as u64;
            if length == 0 || length > SIZES.1 {
                put.push(None);
                continue;
            }
            let fits = |open: &&mut Open| open.end.next_multiple_of(align) + length <= open.map.len() as u64;
            let open = match self.open.as_mut().filter(fits) {
                Some(open) => open,
                None => {
                    if let Some(full) = &mut self.open {
                        full.file.write_all(&buffer)?;
                        buffer.clear();
                    }
                    let size = (self.written / FILES).next_multiple_of(SIZES.0).clamp(SIZES.0, SIZES.1);
                    self.open.insert(Open::new(directory, size.max(length))?)
                }
            };
            let start = open.end.next_multiple_of(align);
            buffer.resize(buffer.len() + (start - open.end) as usize, 0);
            buffer.extend_from_slice(piece);
            open.end = start + length;
            self.written += length;
            // A file has at most 64 MB.
            put.push(Some(MappedBytes { map: open.map.clone(), start: start as u32, length: length as u32 }));
        }
        self.open.as_mut().map_or(Ok(()), |open| open.file.write_all(&buffer))
    }
}

impl Open {
    fn new(directory: &Path, size: u64) -> io::Result<Self> {
        if !has_room(directory, size)? {
            return Err(io::Error::other("the disk is nearly full"));
        }
        let file = tempfile::tempfile_in(directory)?;
        file.set_len(size)?;
        // SAFETY: The file has no name, so that no other process changes it. This one only writes bytes of it that no
        // `MappedBytes` covers yet, and never shortens it. If the disk cannot read a page, the process ends, as it does
        // for the maps of tantivy.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self { file, map: Arc::new(map), end: 0 })
    }
}

/// Whether a file of this size (bytes) leaves the reserve free that the disk of a directory should keep.
///
/// # Errors
///
/// The file system cannot be asked.
#[cfg(unix)]
pub fn has_room(directory: &Path, size: u64) -> io::Result<bool> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: All zeros are a valid value of this structure of numbers.
    let mut disk: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: The path ends with a zero, and the structure may be written.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut disk) } != 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    let free = (disk.f_bavail as u64).saturating_mul(disk.f_frsize as u64);
    Ok(free >= RESERVE + size)
}

/// Always true where the file system cannot be asked.
///
/// # Errors
///
/// None.
#[cfg(not(unix))]
pub fn has_room(_: &Path, _: u64) -> io::Result<bool> {
    Ok(true)
}

/// Numbers of which any bytes are valid ones.
///
/// # Safety
///
/// Any bytes must be a valid value, and the alignment at most 64.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: Any bytes are an integer.
unsafe impl Plain for i8 {}
// SAFETY: Any bytes are a float.
unsafe impl Plain for f32 {}

/// Numbers that cannot be changed, on the heap or in a mapped file. Clones share them.
#[derive(Clone)]
pub struct Values<T>(Kept<T>);

#[derive(Clone)]
enum Kept<T> {
    Heap(Arc<[T]>),
    Mapped(MappedBytes),
}

impl<T: Plain> Values<T> {
    /// The numbers that these bytes are, in the order of this processor; `None` if they are no whole numbers of them, or
    /// if their place is not a multiple of the alignment.
    pub fn mapped(bytes: MappedBytes) -> Option<Self> {
        let is_aligned = (bytes.as_ptr() as usize).is_multiple_of(align_of::<T>());
        (is_aligned && bytes.len().is_multiple_of(size_of::<T>())).then_some(Self(Kept::Mapped(bytes)))
    }

    /// Whether they are in a mapped file.
    pub fn are_mapped(&self) -> bool {
        matches!(self.0, Kept::Mapped(_))
    }

    fn bytes(&self) -> &[u8] {
        let values = &**self;
        // SAFETY: A number may be read as bytes.
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }

    /// Moves them to a mapped file, if they can be written there.
    pub fn map_all<'a>(all: impl IntoIterator<Item = &'a mut Self>, files: &MappedFiles) {
        let mut all: Vec<&mut Self> = all.into_iter().filter(|values| matches!(values.0, Kept::Heap(_))).collect();
        let put = files.put_all(&all.iter().map(|values| values.bytes()).collect::<Vec<_>>(), ALIGN);
        for (values, put) in all.iter_mut().zip(put) {
            if let Some(bytes) = put {
                values.0 = Kept::Mapped(bytes);
            }
        }
    }
}

impl<T: Plain> Deref for Values<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Kept::Heap(values) => values,
            // SAFETY: They are the bytes of so many numbers, at a multiple of the alignment.
            Kept::Mapped(bytes) => unsafe {
                std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>())
            },
        }
    }
}

impl<T, U: Into<Arc<[T]>>> From<U> for Values<T> {
    fn from(values: U) -> Self {
        Self(Kept::Heap(values.into()))
    }
}

impl<T> FromIterator<T> for Values<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(Kept::Heap(values.into_iter().collect()))
    }
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Self(Kept::Heap(Arc::default()))
    }
}

impl<T: Plain + PartialEq> PartialEq for Values<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Plain + fmt::Debug> fmt::Debug for Values<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: Plain + Serialize> Serialize for Values<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Values<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_while_they_are_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let files = MappedFiles::new(directory.path());
        let of = |number: usize| vec![number as u8; 1 + number * 37 % 5000];
        let mut all: Vec<MappedBytes> = Vec::new();
        while all.len() < 3000 {
            let align = [1, 64][all.len() % 2];
            let pieces: Vec<_> = (all.len()..all.len() + 1 + all.len() % 700).map(of).collect();
            let put = files.put_all(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>(), align);
            assert!(put.iter().flatten().all(|bytes| (bytes.as_ptr() as u64).is_multiple_of(align)));
            all.extend(put.into_iter().flatten());
        }
        for (number, bytes) in all.iter().enumerate() {
            assert_eq!(**bytes, of(number));
        }
        let (first, last) = (Arc::downgrade(&all[0].map), Arc::downgrade(&all[2999].map));
        assert!(!first.ptr_eq(&last), "several files");
        all.truncate(1);
        assert!(first.upgrade().is_some());
        drop(all);
        assert!(first.upgrade().is_none(), "a file without bytes in use is gone");
        let put = |bytes: &[u8]| files.put_all(&[bytes], ALIGN).remove(0);
        assert!(put(&[]).is_none());
        let large = vec![7; 5 << 20];
        assert_eq!(*put(&large).unwrap(), large[..]);
        assert!(put(&vec![7; 65 << 20]).is_none());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the files have no names");
    }

    #[test]
    fn numbers_are_the_same_in_a_mapped_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = MappedFiles::new(directory.path());
        files.put_all(&[b"x"], 1);
        let numbers: Values<f32> = vec![1.5, f32::MIN_POSITIVE, -0.0].into();
        let (mut mapped, mut none) = (numbers.clone(), Values::default());
        Values::map_all([&mut mapped, &mut none], &files);
        assert!(matches!((&mapped.0, &none.0), (Kept::Mapped(_), Kept::Heap(_))));
        assert_eq!((&mapped, mapped[2].to_bits()), (&numbers, (-0.0_f32).to_bits()));
        assert!(none.is_empty());
    }

    #[test]
    fn numbers_are_read_where_others_have_written_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let bytes: Vec<u8> = [0.5_f32, 1.5, -2.0].iter().flat_map(|number| number.to_ne_bytes()).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = MappedFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let values = |start, length| file.part(start, length).and_then(Values::<f32>::mapped);
        assert_eq!(values(4, 8).as_deref(), Some(&[1.5, -2.0][..]));
        assert!(values(0, 0).is_some_and(|none| none.is_empty() && none.are_mapped()));
        for (start, length) in [(4, 12), (13, 0), (u64::MAX, 4), (1, 4), (0, 7), (u64::from(u32::MAX) + 1, 1)] {
            assert!(values(start, length).is_none(), "{start} {length}");
        }
        assert!(MappedFile::open(&path).is_err());
    }

    #[test]
    fn without_a_directory_nothing_is_put() {
        let directory = tempfile::tempdir().unwrap();
        let files = MappedFiles::new(&directory.path().join("gone"));
        assert!((0..2).all(|_| files.put_all(&[b"a"], 1)[0].is_none()));
    }
}
