//! Static word vectors, such as GloVe's (Pennington et al. 2014).
//!
//! ```ron
//! WordVectors(path: "models/glove/vectors.npy", words: "models/glove/words.txt")
//! ```
//!
//! The vectors are a NumPy file of 32-bit floats of shape `[words, dimension]`. The words are a text file with one word
//! on each line, in the same order. Both are held in memory.

use std::collections::HashMap;
use std::sync::Arc;

use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{InferenceError, WordVectors as Vectors};
use turnflow_engine::spec::FilePath;

use super::load_model;
use super::runtime::read;

/// Entry in the model table.
pub const KIND: ModelKind = ModelKind::of::<WordVectorsConfig>("WordVectors", "static word vectors, such as GloVe's");

/// Fields of `WordVectors`.
#[config]
pub struct WordVectorsConfig {
    /// File with the vectors: a `.npy` file of little-endian float32, of shape `[words, dimension]`.
    pub path: FilePath,
    /// File with the words: UTF-8, one word on each line.
    pub words: FilePath,
}

impl ModelConfig for WordVectorsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        check.exists("words", &self.words);
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Words]
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl WordVectorsConfig {
    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let (vectors, words) = (read(&self.path.path)?, read(&self.words.path)?);
        let wrong = |problem: String| InferenceError::Shape(format!("`{}` {problem}", self.path.path.display()));
        let (rows, dimension, values) = parse(&vectors).map_err(|problem| wrong(problem.to_owned()))?;
        let text = std::str::from_utf8(&words).map_err(|error| {
            let at = error.valid_up_to();
            InferenceError::Shape(format!("`{}` is not UTF-8 at offset {at}", self.words.path.display()))
        })?;
        let places: HashMap<Box<str>, u32> =
            text.lines().enumerate().map(|(at, word)| (word.into(), at as u32)).collect();
        let lines = text.lines().count();
        if lines != rows {
            return Err(wrong(format!("has {rows} vectors, but the word file has {lines} words")));
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&vectors);
        hasher.update(&words);
        Ok(Model {
            name: name.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
            words: Some(Arc::new(Table { places, dimension, values })),
            ..Model::default()
        })
    }
}

struct Table {
    places: HashMap<Box<str>, u32>,
    dimension: usize,
    values: Vec<f32>,
}

impl Vectors for Table {
    fn dimension(&self) -> usize {
        self.dimension
    }

    fn place(&self, word: &str) -> Option<u32> {
        self.places.get(word).copied()
    }

    fn vector(&self, place: u32) -> &[f32] {
        &self.values[place as usize * self.dimension..][..self.dimension]
    }
}

/// Parses a NumPy file, format 1.0 to 3.0: rows, columns, and values row by row. Errors say what is wrong with the
/// file.
fn parse(bytes: &[u8]) -> Result<(usize, usize, Vec<f32>), &'static str> {
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or("is not a NumPy file")?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err("has an unknown NumPy format"),
    };
    let header = rest.get(..length).and_then(|header| std::str::from_utf8(header).ok()).ok_or("is cut short")?;
    let data = &rest[length..];
    if !header.contains("'<f4'") {
        return Err("is not little-endian float32");
    }
    let by_columns = header.contains("'fortran_order': True");
    let shape = header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).ok_or("has no shape")?.0;
    let sizes: Vec<usize> = shape.split(',').filter_map(|size| size.trim().parse().ok()).collect();
    let [rows, columns] = sizes[..] else { return Err("does not have two dimensions") };
    if rows.checked_mul(columns).and_then(|count| count.checked_mul(4)) != Some(data.len()) {
        return Err("is cut short");
    }
    let data = data.as_chunks::<4>().0;
    let float = |at: usize| f32::from_le_bytes(data[at]);
    let values = if by_columns {
        (0..rows * columns).map(|at| float(at % columns * rows + at / columns)).collect()
    } else {
        (0..rows * columns).map(float).collect()
    };
    Ok((rows, columns, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numpy_files_are_read_and_others_refused() {
        let file = |by_columns: &str, values: [f32; 6]| {
            let header = format!("{{'descr': '<f4', 'fortran_order': {by_columns}, 'shape': (2, 3), }}\n");
            let mut file = b"\x93NUMPY\x01\x00".to_vec();
            file.extend((header.len() as u16).to_le_bytes());
            file.extend(header.into_bytes());
            file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            file
        };
        let values = vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(parse(&file("True", [0.0, 3.0, 1.0, 4.0, 2.0, 5.0])), Ok((2, 3, values.clone())));
        let file = file("False", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(parse(&file), Ok((2, 3, values)));
        assert_eq!(parse(&file[..file.len() - 1]), Err("is cut short"));
        assert_eq!(parse(b"PK"), Err("is not a NumPy file"));
    }
}
