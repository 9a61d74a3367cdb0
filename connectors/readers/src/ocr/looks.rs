//! The model that reads pictures in this process.

use std::sync::{Arc, OnceLock};

use futures::executor::block_on;
use parking_lot::Mutex;
use turnflow_engine::inference::{Picture, PictureReader, Priority};

use super::Seen;
use crate::options::ReadOptions;

/// Opens the model that is installed, or says why there is none.
type Open = fn() -> Result<Arc<dyn PictureReader>, String>;

static OPEN: OnceLock<Open> = OnceLock::new();
static OPENED: Mutex<Option<Arc<dyn PictureReader>>> = Mutex::new(None);

/// Says how the model that reads pictures is opened. It is opened when the first picture is read. Only the first call
/// counts.
pub fn look_with(open: Open) {
    OPEN.get_or_init(|| open);
}

/// The model of the settings, or else the one that is installed.
fn or_installed(reading: &ReadOptions) -> Result<Arc<dyn PictureReader>, String> {
    if let Some(reader) = &reading.reader {
        return Ok(reader.clone());
    }
    let mut opened = OPENED.lock();
    if let Some(reader) = &*opened {
        return Ok(reader.clone());
    }
    let open = OPEN.get().ok_or("this program has no model that reads pictures")?;
    let reader = open()?;
    *opened = Some(reader.clone());
    Ok(reader)
}

/// Looks at a picture, as long as it takes, or recalls what was seen in it.
pub(crate) fn look(reading: &ReadOptions, picture: Picture) -> Result<Seen, String> {
    let reader = or_installed(reading)?;
    let memory = reading.memory.as_ref().map(|memory| (memory, key(&picture, reader.fingerprint())));
    let knows = reader.knows().to_owned();
    if let Some(kept) = memory.as_ref().and_then(|(memory, key)| memory.get(key))
        && let Ok(lines) = serde_json::from_slice(&kept)
    {
        return Ok(Seen { lines, knows });
    }
    let lines = block_on(reader.read(picture, Priority::Corpus)).map_err(|error| error.to_string())?;
    if let (Some((memory, key)), Ok(value)) = (&memory, serde_json::to_vec(&lines)) {
        memory.put(key, &value);
    }
    Ok(Seen { lines, knows })
}

/// The key by which it is kept what a model sees in a picture.
fn key(picture: &Picture, fingerprint: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(fingerprint.len() as u64).to_le_bytes()).update(fingerprint.as_bytes());
    hasher.update(&(picture.width as u64).to_le_bytes()).update(&picture.rgb);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures::FutureExt;
    use futures::future::{BoxFuture, ready};
    use turnflow_engine::inference::{InferenceError, PictureLine};

    use super::*;
    use crate::ocr::{Memory, OcrMode};

    /// Counts what it reads.
    #[derive(Default)]
    struct Counting(Mutex<usize>);

    impl PictureReader for Counting {
        fn read(&self, _: Picture, _: Priority) -> BoxFuture<'static, Result<Vec<PictureLine>, InferenceError>> {
            *self.0.lock() += 1;
            let line = PictureLine { text: "x".into(), confidence: 0.9, corners: [(0.1, 0.0); 4], places: vec![0.3] };
            ready(Ok(vec![line])).boxed()
        }

        fn knows(&self) -> &'static str {
            "English"
        }

        fn fingerprint(&self) -> &str {
            "one"
        }
    }

    #[derive(Default)]
    struct InMemory(Mutex<HashMap<[u8; 32], Vec<u8>>>);

    impl Memory for InMemory {
        fn get(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
            self.0.lock().get(key).cloned()
        }

        fn put(&self, key: &[u8; 32], value: &[u8]) {
            self.0.lock().insert(*key, value.to_vec());
        }
    }

    #[test]
    fn a_picture_is_read_once() {
        let (reader, memory) = (Arc::new(Counting::default()), Arc::new(InMemory::default()));
        let reading =
            ReadOptions { reader: Some(reader.clone()), memory: Some(memory), ..ReadOptions::new(OcrMode::Auto, 0.5) };
        let picture = |value| Picture::of(2, 1, vec![value; 6]).unwrap();
        let first = look(&reading, picture(1)).unwrap();
        assert_eq!(look(&reading, picture(1)).unwrap(), first);
        assert_eq!(*reader.0.lock(), 1);
        look(&reading, picture(2)).unwrap();
        look(&reading, Picture::of(1, 2, vec![1; 6]).unwrap()).unwrap();
        assert_eq!(*reader.0.lock(), 3);
    }
}
