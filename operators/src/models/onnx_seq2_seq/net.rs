//! The two sessions, and the searches of a batch, which are stepped together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::{Array2, Array3};
use ort::session::Session;
use ort::value::Tensor;
use turnflow_engine::inference::{Backend, InferenceError};
use turnflow_engine::language::Sampling;

use super::super::runtime::require_inputs;
use super::super::search::{Found, Search};

/// A prompt and its search.
pub(super) struct Request {
    pub tokens: Vec<u32>,
    pub sampling: Sampling,
    /// Receives the tokens generated so far, if there are no beams.
    pub tell: Option<Tell>,
    /// Set once no caller waits for the result.
    pub abandoned: Arc<AtomicBool>,
}

/// Receives the tokens generated so far.
pub(super) type Tell = Box<dyn Fn(&[u32]) + Send>;

/// Encoder and decoder.
pub(super) struct Net {
    encoder: Session,
    decoder: Session,
    start: u32,
    ends: Vec<u32>,
    pad: i64,
    min_tokens: usize,
}

fn failed(error: ort::Error) -> InferenceError {
    InferenceError::Failed(error.to_string())
}

impl Net {
    pub fn new(
        encoder: Session,
        decoder: Session,
        start: u32,
        ends: Vec<u32>,
        pad: i64,
        min_tokens: usize,
    ) -> Result<Self, InferenceError> {
        require_inputs(&encoder, &["input_ids", "attention_mask"])?;
        require_inputs(&decoder, &["input_ids", "encoder_attention_mask", "encoder_hidden_states"])?;
        if decoder.inputs().len() > 3 {
            let more: Vec<&str> = decoder.inputs().iter().map(|input| input.name()).collect();
            let reason =
                format!("has a decoder with a cache ({}); use the one without (`decoder_model.onnx`)", more.join(", "));
            return Err(InferenceError::Shape(reason));
        }
        Ok(Self { encoder, decoder, start, ends, pad, min_tokens })
    }

    /// The states of a batch, of shape `[prompts, tokens, width]`, and their attention mask.
    fn encode(&mut self, batch: &[&Request]) -> Result<(Array3<f32>, Array2<i64>), InferenceError> {
        let longest = batch.iter().map(|request| request.tokens.len()).max().unwrap_or(0);
        let at = |(row, at): (usize, usize)| batch[row].tokens.get(at).copied();
        let ids = Array2::from_shape_fn((batch.len(), longest), |place| at(place).map_or(self.pad, i64::from));
        let mask = Array2::from_shape_fn((batch.len(), longest), |place| i64::from(at(place).is_some()));
        let inputs = vec![
            ("input_ids", Tensor::from_array(ids).map_err(failed)?.into_dyn()),
            ("attention_mask", Tensor::from_array(mask.clone()).map_err(failed)?.into_dyn()),
        ];
        let outputs = self.encoder.run(inputs).map_err(failed)?;
        let output = outputs
            .get("last_hidden_state")
            .ok_or_else(|| InferenceError::Shape("returned no `last_hidden_state`".into()))?;
        let (shape, values) = output.try_extract_tensor::<f32>().map_err(failed)?;
        let wrong =
            |_| InferenceError::Shape(format!("returned states of shape {shape:?} for {} prompts", batch.len()));
        let width = shape.last().map_or(0, |width| *width as usize);
        let states = Array3::from_shape_vec((batch.len(), longest, width), values.to_vec()).map_err(wrong)?;
        Ok((states, mask))
    }

    /// The logits after the last token of each row. A row is the index of its prompt and its tokens; all rows have the
    /// same length.
    fn decode(
        &mut self,
        states: &Array3<f32>,
        mask: &Array2<i64>,
        rows: &[(usize, Vec<u32>)],
    ) -> Result<Vec<Vec<f32>>, InferenceError> {
        let length = rows.first().map_or(0, |(_, tokens)| tokens.len());
        let places: Vec<usize> = rows.iter().map(|(place, _)| *place).collect();
        let ids = Array2::from_shape_fn((rows.len(), length), |(row, at)| i64::from(rows[row].1[at]));
        let axis = ndarray::Axis(0);
        let inputs = vec![
            ("input_ids", Tensor::from_array(ids).map_err(failed)?.into_dyn()),
            ("encoder_attention_mask", Tensor::from_array(mask.select(axis, &places)).map_err(failed)?.into_dyn()),
            ("encoder_hidden_states", Tensor::from_array(states.select(axis, &places)).map_err(failed)?.into_dyn()),
        ];
        let outputs = self.decoder.run(inputs).map_err(failed)?;
        let output = outputs.get("logits").ok_or_else(|| InferenceError::Shape("returned no `logits`".into()))?;
        let (shape, values) = output.try_extract_tensor::<f32>().map_err(failed)?;
        let [batch, tokens, vocabulary] = shape[..] else {
            return Err(InferenceError::Shape(format!("returned logits of shape {shape:?}")));
        };
        if batch as usize != rows.len() || tokens as usize != length || vocabulary == 0 {
            return Err(InferenceError::Shape(format!(
                "returned logits of shape {shape:?} for {} rows of {length}",
                rows.len()
            )));
        }
        let last = values.chunks_exact(vocabulary as usize).skip(length - 1).step_by(length).map(<[f32]>::to_vec);
        let logits: Vec<Vec<f32>> = last.collect();
        match logits.iter().flatten().any(|logit| logit.is_nan()) {
            // NaN logits would otherwise be taken for a token without an error.
            true => Err(InferenceError::Failed("the model returned NaN logits".into())),
            false => Ok(logits),
        }
    }
}

impl Backend for Net {
    type Input = Request;
    type Output = Found;

    fn cost(input: &Request) -> usize {
        input.tokens.len()
    }

    fn run(&mut self, batch: &[&Request]) -> Result<Vec<Found>, InferenceError> {
        let (states, mask) = self.encode(batch)?;
        let mut searches: Vec<Search> = batch
            .iter()
            .map(|request| {
                Search::new(request.sampling.clone(), self.ends.clone(), self.min_tokens, vec![self.start])
                    .seeded_by(&request.tokens)
            })
            .collect();
        let mut rows: Vec<(usize, Vec<u32>)> = (0..batch.len()).map(|place| (place, vec![self.start])).collect();
        while !rows.is_empty() {
            let logits = self.decode(&states, &mask, &rows)?;
            let (mut at, mut next) = (0, Vec::with_capacity(rows.len()));
            for (place, search) in searches.iter_mut().enumerate() {
                let own = at..at + search.rows();
                at = own.end;
                if own.is_empty() {
                    continue;
                }
                if batch[place].abandoned.load(Ordering::Acquire) {
                    search.stop();
                    continue;
                }
                let parents = search.advance(&logits[own.clone()].iter().map(Vec::as_slice).collect::<Vec<_>>());
                if let Some(tell) = batch[place].tell.as_ref().filter(|_| search.rows() == 1 && search.width() == 1) {
                    tell(search.so_far());
                }
                for (parent, token) in parents.into_iter().zip(search.last()) {
                    let mut tokens = rows[own.start + parent].1.clone();
                    tokens.push(token);
                    next.push((place, tokens));
                }
            }
            rows = next;
        }
        searches.into_iter().map(Search::found).collect()
    }
}
