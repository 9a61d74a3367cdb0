//! The late-interaction index: the token vectors of each content, quantised to 8 bits.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::LargeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BackedUp, BuildError, Capability, Encoding, Index, IndexDefinition, IndexError, Inventory, Models, OperatorError,
    Permitted,
};
use turnflow_engine::document::ContentHash;
use turnflow_engine::inference::{InferenceError, Priority, Role, TokenEmbedder, TokenVectors};
use turnflow_engine::record::Hit;

use super::TokenSearch;
use crate::content::{BACKED_UP, Best, BlockReader, Encode, Stored, answer, open, served, stored};
use crate::models::{able, short_fingerprint};
use crate::products::products;

/// Definition of the index.
pub(crate) struct MultiVectorDefinition {
    fingerprint: String,
    encoder: Arc<dyn TokenEmbedder>,
}

impl MultiVectorDefinition {
    pub fn new(models: &Models, model: &str, by: &str) -> Result<Self, BuildError> {
        let encoder = able(models, model, by, Capability::EmbedTokens, |model| model.token_embedder.clone())?;
        Ok(Self { fingerprint: short_fingerprint(models, model), encoder })
    }
}

impl IndexDefinition for MultiVectorDefinition {
    fn key(&self) -> String {
        format!("tokens-{}", self.fingerprint)
    }

    fn open<'a>(&'a self, directory: Option<&'a Path>) -> BoxFuture<'a, Result<Box<dyn Index>, IndexError>> {
        open::<Codes, ()>(directory, Arc::new(Encoder(self.encoder.clone()))).boxed()
    }

    fn stored<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, Option<Inventory>> {
        stored::<Codes>(directory, self.encoder.dimension()).boxed()
    }

    fn backed_up(&self) -> Option<BackedUp> {
        Some(BACKED_UP)
    }

    fn served(&self, reader: &Arc<dyn Any + Send + Sync>) -> Result<Option<Inventory>, IndexError> {
        Ok(served::<Codes, ()>(reader))
    }

    fn answer(
        &self,
        reader: Arc<dyn Any + Send + Sync>,
        permitted: Permitted,
        question: Vec<u8>,
    ) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>> {
        answer(reader, question, async move |reader: Arc<MultiVectorReader>, (queries, top, index): Asked| {
            let dimension = queries.first().map_or(1, |query| query.dimension);
            let scans = reader.attached(&format!("scans for {top} {index:?}"), || index.scans(top, None));
            let cost = passage_cost(reader.searched(&permitted), dimension);
            scans.run(&reader, queries, &permitted, cost).await
        })
    }
}

struct Encoder(Arc<dyn TokenEmbedder>);

impl Encode<Codes> for Encoder {
    fn dimension(&self) -> usize {
        self.0.dimension()
    }

    fn encode(&self, texts: Vec<String>) -> BoxFuture<'static, Result<Vec<Codes>, InferenceError>> {
        let vectors = self.0.embed_tokens(texts, Role::Passage, Priority::Corpus);
        async move { Ok(vectors.await?.iter().map(Codes::of).collect()) }.boxed()
    }
}

/// Token vectors of unit length, quantised to 8 bits: each value is its code · its token's scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Codes {
    scales: Arc<[f32]>,
    /// `[tokens, dimension]`.
    codes: Arc<[i8]>,
}

impl Codes {
    pub fn of(vectors: &TokenVectors) -> Self {
        let scale = |row: &[f32]| row.iter().fold(0.0_f32, |most, value| most.max(value.abs())).max(1e-9) / 127.0;
        let scales: Arc<[f32]> = vectors.rows().map(scale).collect();
        let code =
            |(row, scale): (&[f32], &f32)| row.iter().map(|value| (value / scale).round() as i8).collect::<Vec<_>>();
        Self { codes: vectors.rows().zip(scales.iter()).flat_map(code).collect(), scales }
    }
}

impl Codes {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.scales.len()
    }

    /// The vector of each token.
    pub fn values(&self) -> impl Iterator<Item = Vec<f32>> {
        let dimension = self.codes.len().checked_div(self.scales.len()).unwrap_or(0).max(1);
        let rows = self.codes.chunks_exact(dimension).zip(self.scales.iter());
        rows.map(|(codes, scale)| codes.iter().map(|code| f32::from(*code) * scale).collect())
    }
}

impl Stored for Codes {
    fn data_type(_: usize) -> DataType {
        DataType::LargeBinary
    }

    fn column(values: &[(ContentHash, Self)], _: usize) -> ArrayRef {
        let mut column = LargeBinaryBuilder::new();
        for (_, codes) in values {
            column.append_value(codes.bytes());
        }
        Arc::new(column.finish())
    }

    fn row(column: &ArrayRef, row: usize, dimension: usize) -> Option<Self> {
        Self::of_bytes(column.as_binary_opt::<i64>()?.value(row), dimension)
    }

    fn of_bytes(bytes: &[u8], dimension: usize) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let tokens = u32::from_le_bytes(*count) as usize;
        let (scales, codes) = rest.split_at_checked(tokens.checked_mul(4)?)?;
        let scales = scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let is_valid = codes.len() == tokens * dimension;
        is_valid.then(|| Self { scales, codes: codes.iter().map(|code| *code as i8).collect() })
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend((self.scales.len() as u32).to_le_bytes());
        to.extend(self.scales.iter().flat_map(|scale| scale.to_le_bytes()));
        to.extend(self.codes.iter().map(|code| *code as u8));
    }

    fn numbers(&self) -> Encoding {
        let dimension = self.codes.len().checked_div(self.scales.len()).unwrap_or(0).max(1);
        let rows = self.codes.chunks_exact(dimension).zip(self.scales.iter());
        let values = rows.flat_map(|(codes, scale)| codes.iter().map(move |code| f32::from(*code) * scale));
        Encoding { values: (0..).zip(values).collect(), step: self.scales.iter().copied().fold(0.0, f32::max) }
    }
}

/// A search as another process asks for it: the queries, the number of passages for each, and how they are found.
pub(super) type Asked = (Vec<TokenVectors>, usize, TokenSearch);

/// The cost of scoring passages, in the units of `Operator::weight`. A passage has about a hundred tokens, and a query
/// about ten.
pub(super) fn passage_cost(passages: usize, dimension: usize) -> usize {
    passages * 10 * dimension
}

/// The index at an epoch.
pub(crate) type MultiVectorReader = BlockReader<Codes, ()>;

/// Scores every permitted passage for each query.
pub(super) fn search(
    reader: &MultiVectorReader,
    queries: &[&TokenVectors],
    top: usize,
    permitted: &Permitted,
) -> Vec<Vec<Hit>> {
    let mut all: Vec<(Quantized, Best<'_>)> =
        queries.iter().map(|query| (Quantized::of(query), Best::new(top))).collect();
    let (some, every) = match reader.permitted(permitted) {
        Some(rows) => (Some(rows), None),
        None => (None, Some(reader.blocks.iter().flat_map(|block| block.rows.iter()))),
    };
    for (codes, chunk) in some.into_iter().flatten().chain(every.into_iter().flatten()) {
        for (query, best) in &mut all {
            best.offer(query.max_sim(codes), chunk);
        }
    }
    all.into_iter().map(|(_, best)| best.into_hits()).collect()
}

/// The mean, over the query's tokens, of the greatest cosine with a token of the passage.
pub(crate) fn max_sim(query: &TokenVectors, passage: &Codes) -> f32 {
    Quantized::of(query).max_sim(passage)
}

/// A query quantised to 8 bits, in numbers of 16 bits. Its products with 8-bit codes are integers, whose sum is exact, so a score is the same
/// on every processor.
pub(super) struct Quantized {
    dimension: usize,
    scales: Vec<f32>,
    codes: Vec<i16>,
}

impl Quantized {
    pub fn of(query: &TokenVectors) -> Self {
        let Codes { scales, codes } = Codes::of(query);
        Self {
            dimension: query.dimension,
            scales: scales.to_vec(),
            codes: codes.iter().map(|code| i16::from(*code)).collect(),
        }
    }

    pub fn max_sim(&self, passage: &Codes) -> f32 {
        let dimension = self.dimension.max(1);
        if self.scales.is_empty() || passage.scales.is_empty() {
            return 0.0;
        }
        let (tokens, others) = (self.scales.len(), passage.scales.len());
        let mut found = vec![0; tokens * others];
        products(&passage.codes, &self.codes, dimension, others, &mut found);
        let greatest = |products: &[i32]| {
            let scaled = products.iter().zip(passage.scales.iter()).map(|(product, scale)| *product as f32 * scale);
            scaled.fold(f32::NEG_INFINITY, f32::max)
        };
        let of_tokens = found.chunks_exact(others).zip(&self.scales);
        let sum = of_tokens.fold(0.0, |sum, (products, scale)| sum + greatest(products) * scale);
        sum / tokens as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(rows: &[[f32; 3]]) -> TokenVectors {
        let normal = |row: &[f32; 3]| {
            let norm = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            row.map(|value| value / norm)
        };
        TokenVectors { dimension: 3, values: rows.iter().flat_map(normal).collect() }
    }

    fn exact(query: &TokenVectors, passage: &TokenVectors) -> f32 {
        let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let best = |token: &[f32]| passage.rows().map(|other| cosine(token, other)).fold(f32::MIN, f32::max);
        query.rows().map(best).sum::<f32>() / query.rows().len() as f32
    }

    #[test]
    fn eight_bits_are_near_the_exact_score() {
        let query = vectors(&[[1.0, 0.2, -0.3], [0.1, 0.9, 0.4]]);
        let passage = vectors(&[[0.5, 0.5, 0.5], [-1.0, 0.1, 0.0], [0.9, 0.3, -0.2]]);
        let got = max_sim(&query, &Codes::of(&passage));
        assert!((got - exact(&query, &passage)).abs() < 0.01, "{got}");
        assert!((max_sim(&query, &Codes::of(&query)) - 1.0).abs() < 0.01);
        assert_eq!(max_sim(&query, &Codes::default()), 0.0);
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let codes = Codes::of(&vectors(&[[0.5, 0.5, 0.5], [-1.0, 0.1, 0.0]]));
        let column =
            Codes::column(&[(ContentHash([0; 32]), codes.clone()), (ContentHash([1; 32]), Codes::default())], 3);
        assert_eq!(Codes::row(&column, 0, 3), Some(codes));
        assert_eq!(Codes::row(&column, 1, 3), Some(Codes::default()));
        assert_eq!(Codes::row(&column, 0, 4), None);
    }
}
