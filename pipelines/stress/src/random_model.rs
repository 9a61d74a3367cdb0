//! A model of random vectors, to measure everything but models.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Capability, Catalog, ComponentContext, Configured, Model, ModelConfig, ModelKind, loaded_at_once,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};

use crate::scale::Random;

/// Length of the vectors.
const DIMENSION: usize = 384;

/// turnflow's catalog with the model `Random`.
pub(crate) fn catalog() -> Catalog {
    let mut catalog = turnflow::catalog();
    catalog.models.push(KIND);
    catalog
}

/// A model whose vectors are random, and the same for the same text.
#[derive(Debug)]
struct RandomVectors;

/// Entry in the table of models.
const KIND: ModelKind = ModelKind {
    name: "Random",
    summary: "random vectors",
    fields: RandomVectors::fields,
    parse: |_, _| Ok(Box::new(RandomVectors)),
};

impl Configured for RandomVectors {}

impl ModelConfig for RandomVectors {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed]
    }
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| {
            let name = context.id().to_owned();
            Ok(Model {
                name,
                fingerprint: "random".into(),
                embedder: Some(Arc::new(RandomVectors)),
                ..Model::default()
            })
        })
    }
}

impl Embedder for RandomVectors {
    fn dimension(&self) -> usize {
        DIMENSION
    }
    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let vector = |text: &String| {
            let seed = text.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
            let mut random = Random::new(seed);
            let values: Vec<f32> =
                (0..DIMENSION).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect();
            let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
            values.into_iter().map(|value| value / length).collect::<Vec<f32>>().into()
        };
        let vectors: Vec<Vector> = texts.iter().map(vector).collect();
        async move { Ok(vectors) }.boxed()
    }
}
