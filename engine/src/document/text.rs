//! A text on the heap or in a mapped file.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::mapped::{MappedBytes, MappedFiles};

/// A text that cannot be changed. Clones share it. Where it is kept makes no difference to its value.
#[derive(Clone)]
pub struct Text(Kept);

#[derive(Clone)]
enum Kept {
    Heap(Arc<str>),
    Mapped(MappedText),
}

/// UTF-8 in a mapped file.
#[derive(Clone)]
struct MappedText(MappedBytes);

impl Text {
    /// Moves texts to a mapped file, if they can be written there.
    /// `waits`: whether to wait for another thread that writes; without it, texts then stay on the heap.
    pub fn map_all<'a>(texts: impl IntoIterator<Item = &'a mut Self>, files: &MappedFiles, waits: bool) {
        let mut texts: Vec<&mut Self> = texts.into_iter().filter(|text| matches!(text.0, Kept::Heap(_))).collect();
        let pieces: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let put = if waits { files.put_all(&pieces, 1) } else { files.try_put_all(&pieces, 1) };
        for (text, put) in texts.iter_mut().zip(put) {
            if let Some(bytes) = put {
                text.0 = Kept::Mapped(MappedText(bytes));
            }
        }
    }
}

impl Text {
    /// A text in a mapped file, which is not read for it.
    ///
    /// # Safety
    ///
    /// The bytes are UTF-8.
    pub unsafe fn mapped(bytes: MappedBytes) -> Self {
        Self(Kept::Mapped(MappedText(bytes)))
    }

    /// Whether it is in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0, Kept::Mapped(_))
    }

    /// The same text on the heap: a value that is kept for long does not keep a whole file.
    pub fn on_heap(&self) -> Self {
        match &self.0 {
            Kept::Heap(_) => self.clone(),
            Kept::Mapped(_) => Self::from(&**self),
        }
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Kept::Heap(text) => text,
            // SAFETY: The bytes are those of a `str`, and nothing changes a file that is mapped.
            Kept::Mapped(MappedText(bytes)) => unsafe { std::str::from_utf8_unchecked(bytes) },
        }
    }
}

impl<T: Into<Arc<str>>> From<T> for Text {
    fn from(text: T) -> Self {
        Self(Kept::Heap(text.into()))
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::from(<Arc<str>>::default())
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arc::<str>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_text_equals_one_on_the_heap() {
        let directory = tempfile::tempdir().unwrap();
        let files = MappedFiles::new(directory.path());
        let texts = ["", "a", "Grüße, 世界 🙂", &"x".repeat(3000)];
        let mut mapped = texts.map(Text::from);
        Text::map_all(&mut mapped, &files, true);
        assert!(matches!(mapped[2].0, Kept::Mapped(_)));
        for (text, mapped) in texts.into_iter().zip(mapped) {
            let heap = Text::from(text);
            assert_eq!((&heap, &*mapped), (&mapped, text));
            assert_eq!((heap.cmp(&mapped), mapped.to_string()), (Ordering::Equal, text.to_owned()));
            assert_eq!(serde_json::to_string(&mapped).unwrap(), serde_json::to_string(text).unwrap());
        }
        assert_eq!(std::mem::size_of::<Text>(), 24);
    }
}
