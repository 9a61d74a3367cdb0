//! The model as a session: takes rows of tokens and their cache, returns logits and a longer cache.

use ndarray::Array2;
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, Tensor, TensorElementType, ValueType};
use turnflow_engine::inference::InferenceError;

use super::super::runtime::require_inputs;

/// A prompt is read in pieces of this many tokens, which bounds the memory of attention.
const PIECE: usize = 512;

/// Rows are padded by whole blocks of this many tokens. ONNX Runtime's matrix products sum blocks of 256, and its
/// softmax sums lanes of 16. Values at the same position within a block are therefore rounded in the same way, however
/// much padding is before them. Otherwise a text could depend on the length of the other texts in its batch, because
/// 8-bit activations amplify rounding differences.
pub(super) const BLOCK: usize = 256;

/// Keys and values of some rows, each as long as the longest row; shorter rows start with padding.
pub(super) struct Cache {
    /// In the order of [`Net::caches`]; each of shape `[rows, heads, length, size]`.
    entries: Vec<DynValue>,
    /// Number of padding tokens at the start of each row.
    pub starts: Vec<usize>,
    /// Number of tokens in each row, padding included.
    pub length: usize,
    /// Whether the padding was laid out by [`Net::gather`].
    blocked: bool,
}

/// Logits of shape `[rows, kept, vocabulary]`.
pub(super) struct Logits {
    value: DynValue,
    kept: usize,
    vocabulary: usize,
}

impl Logits {
    /// The logits after one token of a row; `from_last` counts back from its last token (0).
    pub fn row(&self, row: usize, from_last: usize) -> Result<&[f32], InferenceError> {
        let (_, values) = self.value.try_extract_tensor::<f32>().map_err(failed)?;
        let at = (row * self.kept + self.kept - 1 - from_last) * self.vocabulary;
        let logits = values.get(at..at + self.vocabulary).unwrap_or_default();
        // NaN logits would otherwise be taken for a token without an error.
        match logits.iter().any(|logit| logit.is_nan()) || logits.is_empty() {
            true => Err(InferenceError::Failed("the model returned NaN or no logits".into())),
            false => Ok(logits),
        }
    }
}

/// Names, number of heads and head size of one cache entry.
struct Entry {
    past: String,
    present: String,
    heads: usize,
    size: usize,
}

/// A session of the model.
pub(super) struct Net {
    session: Session,
    caches: Vec<Entry>,
    has_positions: bool,
    keeps: bool,
    pad: i64,
}

fn failed(error: ort::Error) -> InferenceError {
    InferenceError::Failed(error.to_string())
}

impl Net {
    pub fn new(session: Session, pad: i64) -> Result<Self, InferenceError> {
        require_inputs(&session, &["input_ids", "attention_mask"])?;
        let has = |name: &str| session.inputs().iter().any(|input| input.name() == name);
        let (has_positions, keeps) = (has("position_ids"), has("num_logits_to_keep"));
        let mut caches = Vec::new();
        for input in session.inputs() {
            let Some(rest) = input.name().strip_prefix("past_key_values.") else { continue };
            let ValueType::Tensor { ty: TensorElementType::Float32, shape, .. } = input.dtype() else {
                return Err(InferenceError::Shape(format!(
                    "has a cache `{}` that is not in 32-bit floats",
                    input.name()
                )));
            };
            let (heads, size) = match shape.as_ref() {
                [_, heads, _, size] if *heads > 0 && *size > 0 => (*heads as usize, *size as usize),
                other => {
                    return Err(InferenceError::Shape(format!("has a cache `{}` of shape {other:?}", input.name())));
                }
            };
            caches.push(Entry { past: input.name().to_owned(), present: format!("present.{rest}"), heads, size });
        }
        if caches.is_empty() {
            return Err(InferenceError::Shape(
                "has no cache (`past_key_values.N.key`); export it with past key values".into(),
            ));
        }
        let outputs: Vec<&str> = session.outputs().iter().map(|output| output.name()).collect();
        let wanted = caches.iter().map(|entry| entry.present.as_str()).chain(["logits"]);
        if let Some(missing) = wanted.into_iter().find(|name| !outputs.contains(name)) {
            return Err(InferenceError::Shape(format!("has no output `{missing}`")));
        }
        Ok(Self { session, caches, has_positions, keeps, pad })
    }

    /// An empty cache for rows that start with these amounts of padding.
    fn empty(&self, starts: Vec<usize>) -> Result<Cache, InferenceError> {
        let entry = |entry: &Entry| {
            let shape = [starts.len(), entry.heads, 0, entry.size];
            Tensor::from_array((shape, Vec::<f32>::new())).map(|tensor| tensor.into_dyn()).map_err(failed)
        };
        let entries = self.caches.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(Cache { entries, starts, length: 0, blocked: false })
    }

    /// Runs the next tokens of each row; `tokens` has the shape `[rows, n]`, flattened. Returns logits after the last
    /// `keep` tokens.
    pub fn run(&mut self, cache: Cache, tokens: &[i64], keep: usize) -> Result<(Cache, Logits), InferenceError> {
        self.run_inner(cache, tokens, keep).map_err(failed)?
    }

    fn run_inner(
        &mut self,
        cache: Cache,
        tokens: &[i64],
        keep: usize,
    ) -> ort::Result<Result<(Cache, Logits), InferenceError>> {
        let Cache { entries, starts, length, blocked } = cache;
        let (rows, new) = (starts.len(), tokens.len() / starts.len().max(1));
        let total = length + new;
        let mask = Array2::from_shape_fn((rows, total), |(row, at)| i64::from(at >= starts[row]));
        let mut inputs: Vec<(&str, SessionInputValue<'_>)> = vec![
            ("input_ids", Tensor::from_array(([rows, new], tokens.to_vec()))?.into()),
            ("attention_mask", Tensor::from_array(mask)?.into()),
        ];
        if self.has_positions {
            let places =
                Array2::from_shape_fn((rows, new), |(row, at)| (length + at).saturating_sub(starts[row]) as i64);
            inputs.push(("position_ids", Tensor::from_array(places)?.into()));
        }
        if self.keeps {
            inputs.push(("num_logits_to_keep", Tensor::from_array(((), vec![keep as i64]))?.into()));
        }
        for (entry, value) in self.caches.iter().zip(entries) {
            inputs.push((&entry.past, value.into()));
        }
        let mut outputs = self.session.run(inputs)?;
        let mut entries = Vec::with_capacity(self.caches.len());
        for entry in &self.caches {
            match outputs.remove(&entry.present) {
                Some(value) => entries.push(value),
                None => return Ok(Err(InferenceError::Shape(format!("returned no `{}`", entry.present)))),
            }
        }
        let Some(value) = outputs.remove("logits") else {
            return Ok(Err(InferenceError::Shape("returned no `logits`".into())));
        };
        let shape: Vec<i64> = value.try_extract_tensor::<f32>()?.0.to_vec();
        Ok(match shape[..] {
            [batch, kept, vocabulary] if batch as usize == rows && kept as usize >= keep => {
                let logits = Logits { value, kept: kept as usize, vocabulary: vocabulary as usize };
                Ok((Cache { entries, starts, length: total, blocked }, logits))
            }
            _ => Err(InferenceError::Shape(format!(
                "returned logits of shape {shape:?} for {rows} rows of {new} tokens"
            ))),
        })
    }

    /// Reads whole texts, with padding before the shorter ones. Returns logits after the last `keep` tokens of each.
    pub fn read(&mut self, texts: &[&[u32]], keep: usize) -> Result<(Cache, Logits), InferenceError> {
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        if longest < keep {
            return Err(InferenceError::Failed("the input has no tokens".into()));
        }
        let starts: Vec<usize> = texts.iter().map(|text| longest - text.len()).collect();
        let padded = |row: usize, at: usize| match at.checked_sub(starts[row]) {
            Some(at) => i64::from(texts[row][at]),
            None => self.pad,
        };
        // The last piece contains all tokens whose logits are needed.
        let mut ends: Vec<usize> = (1..).map(|n| n * PIECE).take_while(|end| end + keep <= longest).collect();
        ends.push(longest);
        let pieces: Vec<Vec<i64>> = ends
            .iter()
            .scan(0, |begin, &end| Some(std::mem::replace(begin, end)..end))
            .map(|piece| (0..texts.len()).flat_map(|row| piece.clone().map(move |at| (row, at))).collect::<Vec<_>>())
            .map(|places| places.into_iter().map(|(row, at)| padded(row, at)).collect())
            .collect();
        let mut cache = self.empty(starts.clone())?;
        let mut last = None;
        for (at, piece) in pieces.iter().enumerate() {
            let wanted = if at + 1 == pieces.len() { keep } else { 1 };
            let (longer, logits) = self.run(cache, piece, wanted)?;
            (cache, last) = (longer, Some(logits));
        }
        last.map(|logits| (cache, logits)).ok_or_else(|| InferenceError::Failed("the input has no tokens".into()))
    }

    /// Builds a cache of these rows, each given as its cache and index there. A row without padding is padded to whole
    /// blocks, and whole blocks of padding that all rows share are removed.
    pub fn gather(&self, rows: &[(&Cache, usize)]) -> Result<Cache, InferenceError> {
        let used = |(cache, row): &(&Cache, usize)| cache.length - cache.starts[*row];
        let blocks = |row: &(&Cache, usize)| match row.0.blocked {
            true => row.0.length - row.0.starts[row.1] / BLOCK * BLOCK,
            false => used(row).next_multiple_of(BLOCK),
        };
        let length = rows.iter().map(blocks).max().unwrap_or(0);
        let mut entries = Vec::with_capacity(self.caches.len());
        for (at, entry) in self.caches.iter().enumerate() {
            let mut values = vec![0.0_f32; rows.len() * entry.heads * length * entry.size];
            let mut places = values.chunks_exact_mut((length * entry.size).max(1));
            for (cache, row) in rows {
                let (_, from) = cache.entries[at].try_extract_tensor::<f32>().map_err(failed)?;
                for head in 0..entry.heads {
                    let end = (row * entry.heads + head + 1) * cache.length * entry.size;
                    let taken = used(&(*cache, *row)) * entry.size;
                    if let Some(place) = places.next() {
                        let begin = place.len() - taken;
                        place[begin..].copy_from_slice(&from[end - taken..end]);
                    }
                }
            }
            let shape = [rows.len(), entry.heads, length, entry.size];
            entries.push(Tensor::from_array((shape, values)).map_err(failed)?.into_dyn());
        }
        Ok(Cache { entries, starts: rows.iter().map(|row| length - used(row)).collect(), length, blocked: true })
    }
}
