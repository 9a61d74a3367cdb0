//! The three networks, each on the thread of a service of its own.

use std::path::Path;

use ort::session::Session;
use ort::value::Tensor;
use turnflow_engine::inference::{Backend, InferenceError, Limits, Service};

use super::scale::Planes;
use super::strips::{HEIGHT, Strip};
use crate::models::runner::failed;
use crate::models::runtime::{Device, Settings, session};

/// Width of a strip for the network that tells which way is up.
const TURN_WIDTH: usize = 192;
/// The least width of a batch of strips.
const LEAST_WIDTH: usize = 320;
/// Width of a strip for each step of the network that reads.
const STEP: usize = 8;
/// Steps in a batch of strips: for each, the network says how likely each of thousands of characters is.
const BATCH_STEPS: usize = 640;
/// What a batch costs besides, in steps.
const OVERHEAD: usize = 40;

/// Where the networks run.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub device: Device,
    pub threads: Option<usize>,
}

/// Finds text: a picture to a map with the same size.
pub(super) struct Finder(Session);

impl Finder {
    pub fn start(name: &str, path: &Path, place: Place) -> Result<Service<Self>, InferenceError> {
        let path = path.to_owned();
        let limits = Limits { batch_inputs: 1, queue: 8, ..Limits::default() };
        let load = move || Ok((Self(session(&path, place.device, place.threads, Settings::Service)?), ()));
        Ok(Service::start(&format!("{name} find"), limits, load)?.0)
    }

    fn find(&mut self, planes: &Planes) -> ort::Result<Vec<f32>> {
        let shape = [1, 3, planes.height, planes.width];
        let outputs = self.0.run(ort::inputs![Tensor::from_array((shape, planes.values.clone()))?])?;
        Ok(outputs[0].try_extract_tensor::<f32>()?.1.to_vec())
    }
}

impl Backend for Finder {
    type Input = Planes;
    type Output = Vec<f32>;

    fn cost(planes: &Planes) -> usize {
        planes.width * planes.height / 1024
    }

    fn run(&mut self, batch: &[&Planes]) -> Result<Vec<Vec<f32>>, InferenceError> {
        let one = |planes: &&Planes| {
            let map = self.find(planes).map_err(failed)?;
            match map.len() == planes.width * planes.height {
                true => Ok(map),
                false => Err(InferenceError::Shape(format!("that finds text gave a map of {} values", map.len()))),
            }
        };
        batch.iter().map(one).collect()
    }
}

/// Tells which way is up: a strip to how likely it is that it is upside down.
pub(super) struct Turner(Session);

impl Turner {
    pub fn start(name: &str, path: &Path, place: Place) -> Result<Service<Self>, InferenceError> {
        let path = path.to_owned();
        let limits = Limits { batch_inputs: 16, ..Limits::default() };
        let load = move || Ok((Self(session(&path, place.device, place.threads, Settings::Service)?), ()));
        Ok(Service::start(&format!("{name} turn"), limits, load)?.0)
    }
}

impl Backend for Turner {
    type Input = Strip;
    type Output = f32;

    fn cost(_: &Strip) -> usize {
        TURN_WIDTH / STEP
    }

    fn run(&mut self, batch: &[&Strip]) -> Result<Vec<f32>, InferenceError> {
        let strips: Vec<Strip> = batch.iter().map(|strip| strip.narrowed(TURN_WIDTH)).collect();
        let input = planes(&strips.iter().collect::<Vec<_>>(), TURN_WIDTH);
        let shape = [batch.len(), 3, HEIGHT, TURN_WIDTH];
        let mut infer = || -> ort::Result<Vec<f32>> {
            let outputs = self.0.run(ort::inputs![Tensor::from_array((shape, input.clone()))?])?;
            Ok(outputs[0].try_extract_tensor::<f32>()?.1.to_vec())
        };
        let turned = infer().map_err(failed)?;
        if turned.len() != 2 * batch.len() {
            return Err(InferenceError::Shape(format!("that tells which way is up gave {} values", turned.len())));
        }
        Ok(turned.chunks_exact(2).map(|pair| pair[1]).collect())
    }
}

/// What was read of a strip: characters with their likelihoods and their places in it, from 0 to 1.
pub(super) type Letters = Vec<(char, f32, f32)>;

/// Reads strips.
pub(super) struct Reader {
    session: Session,
    characters: Vec<char>,
    device: Device,
}

impl Reader {
    pub fn start(name: &str, path: &Path, place: Place) -> Result<Service<Self>, InferenceError> {
        let path = path.to_owned();
        let factor = if place.device == Device::Cpu { 1 } else { 8 };
        let batch_tokens = factor * BATCH_STEPS;
        let limits = Limits { batch_inputs: 64, batch_tokens, batch_overhead: OVERHEAD, queue: 4096 };
        let load = move || {
            let session = session(&path, place.device, place.threads, Settings::Service)?;
            let characters = characters(&session, &path)?;
            Ok((Self { session, characters, device: place.device }, ()))
        };
        Ok(Service::start(&format!("{name} read"), limits, load)?.0)
    }

    fn infer(&mut self, batch: &[&Strip], width: usize) -> ort::Result<(usize, Vec<Letters>)> {
        let input = Tensor::from_array(([batch.len(), 3, HEIGHT, width], planes(batch, width)))?;
        let outputs = self.session.run(ort::inputs![input])?;
        let (shape, values) = outputs[0].try_extract_tensor::<f32>()?;
        let (steps, classes) = match shape[..] {
            [_, steps, classes] => (steps.max(1) as usize, classes.max(1) as usize),
            _ => (1, 1),
        };
        let each = batch.iter().zip(values.chunks_exact(steps * classes));
        let letters = each.map(|(strip, values)| {
            let length = width as f32 / (steps * strip.width) as f32;
            decode(values, classes, &self.characters, length)
        });
        Ok((classes, letters.collect()))
    }
}

impl Backend for Reader {
    type Input = Strip;
    type Output = Letters;

    fn cost(strip: &Strip) -> usize {
        strip.width.max(LEAST_WIDTH) / STEP
    }

    fn run(&mut self, batch: &[&Strip]) -> Result<Vec<Letters>, InferenceError> {
        let widest = batch.iter().map(|strip| strip.width).max().unwrap_or_default().max(LEAST_WIDTH);
        // On a GPU, each new shape costs time.
        let step = if self.device == Device::Cpu { STEP } else { 20 * STEP };
        let (classes, letters) = self.infer(batch, widest.next_multiple_of(step)).map_err(failed)?;
        match classes == self.characters.len() {
            true => Ok(letters),
            false => Err(InferenceError::Shape(format!(
                "that reads text has {classes} classes, but {} characters",
                self.characters.len()
            ))),
        }
    }
}

/// The planes of strips in a batch.
fn planes(batch: &[&Strip], width: usize) -> Vec<f32> {
    let mut planes = vec![0.0; batch.len() * 3 * HEIGHT * width];
    planes.chunks_exact_mut(3 * HEIGHT * width).zip(batch).for_each(|(planes, strip)| strip.write(planes, width));
    planes
}

/// The characters of the network's classes, which its file names one a line: the first class is none of them, the last one
/// a blank. Of the few that are several code points, the first is taken.
fn characters(session: &Session, path: &Path) -> Result<Vec<char>, InferenceError> {
    let wrong = |what: &str| InferenceError::Shape(format!("`{}` {what}", path.display()));
    let metadata = session.metadata().map_err(failed)?;
    let named = metadata.custom("character").ok_or_else(|| wrong("has no metadata entry `character`"))?;
    let named = named.split('\n').map(|line| line.chars().next().unwrap_or(' '));
    Ok(std::iter::once('\0').chain(named).chain([' ']).collect())
}

/// The most likely characters of a strip (Graves et al. 2006): of steps with the same class, the first, and none of the
/// class of no character. `length` is that of a step, as a share of the strip.
fn decode(values: &[f32], classes: usize, characters: &[char], length: f32) -> Letters {
    let mut letters = Letters::new();
    let mut last = 0;
    for (step, likely) in values.chunks_exact(classes).enumerate() {
        let best = likely.iter().fold(f32::MIN, |best, value| best.max(*value));
        let class = likely.iter().position(|value| *value == best).unwrap_or_default();
        if class != 0
            && class != last
            && let Some(character) = characters.get(class)
        {
            letters.push((*character, best, ((step as f32 + 0.5) * length).clamp(0.0, 1.0)));
        }
        last = class;
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_class_in_a_row_is_one_character() {
        let characters = ['\0', 'a', 'b', ' '];
        let step = |class: usize| -> Vec<f32> { (0..4).map(|at| if at == class { 0.9 } else { 0.03 }).collect() };
        let steps: Vec<f32> = [0, 1, 1, 0, 1, 3, 2, 2].into_iter().flat_map(step).collect();
        let read = decode(&steps, 4, &characters, 1.0 / 8.0);
        assert_eq!(read.iter().map(|letter| letter.0).collect::<String>(), "aa b");
        assert_eq!((read[0].1, read[0].2, read[3].2), (0.9, 1.5 / 8.0, 6.5 / 8.0));
        assert_eq!(decode(&[], 4, &characters, 1.0), []);
    }
}
