//! Reads the text in pictures, with the small models of PP-OCR in ONNX.
//!
//! ```ron
//! Ocr(path: "models/ocr")
//! ```
//!
//! The directory has three networks, which `turnflow models fetch ocr` brings: `find.onnx` makes a map of where text is,
//! `areas` finds the lines in it, and `strips` cuts them out of the picture; `turn.onnx` tells whether they are upside
//! down, and `read.onnx` reads them. Each runs on a thread of its own (`nets`), and shares batches with other pictures.
//! The pictures of documents wait for those of turns.

mod areas;
mod nets;
mod scale;
mod strips;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{InferenceError, Picture, PictureLine, PictureReader, Priority, Service, Usage};
use turnflow_engine::spec::FilePath;

use self::areas::{Area, Point, areas};
use self::nets::{Finder, Letters, Place, Reader, Turner};
use self::strips::Strip;
use super::load_model;
use super::runtime::{Device, hash_file};

/// Entry in the model table.
pub const KIND: ModelKind = ModelKind::of::<OcrConfig>("Ocr", "reads the text in pictures and scans");

/// The networks' files.
const FILES: [&str; 3] = ["find.onnx", "turn.onnx", "read.onnx"];
/// The languages of the models that `turnflow models fetch ocr` brings.
const KNOWS: &str = "English, Chinese, Japanese, and other languages in Latin letters";
/// Sides of a picture in which text is looked for, in pixels: the least of the shorter one, and the most of the longer one.
const SIDES: (usize, usize) = (736, 1600);
/// A line at least this much higher than wide is turned by a quarter.
const TALL: f32 = 1.5;
/// Number of lines by which it is told which way is up.
const VOTES: usize = 12;
/// A line is less sure than this if it may be upside down, although most others are not.
const DOUBTFUL: f32 = 0.6;

/// Fields of `Ocr`.
#[config]
pub struct OcrConfig {
    /// Directory with the files `find.onnx`, `turn.onnx` and `read.onnx`.
    pub path: FilePath,
    /// Device: `Cpu` (default) or `Cuda(n)`, the NVIDIA GPU with index n.
    #[field(default)]
    pub device: Device,
    /// Number of CPU threads for each network. Default: the number of cores.
    pub threads: Option<usize>,
}

impl ModelConfig for OcrConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::ReadPictures]
    }

    fn explain(&self) -> String {
        format!("path: {:?}, device: {:?}", self.path.written, self.device)
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl OcrConfig {
    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let place = Place { device: self.device, threads: self.threads };
        let ocr = Arc::new(Ocr::open(name, &self.path.path, place)?);
        let counted = ocr.clone();
        Ok(Model {
            name: name.to_owned(),
            fingerprint: ocr.fingerprint.clone(),
            pictures: Some(Arc::new(Shared(ocr))),
            meter: Some(Arc::new(move || counted.usage())),
            ..Model::default()
        })
    }
}

/// Loads the networks of a directory on the CPU, to be used without a pipeline.
///
/// # Errors
///
/// A network is not there or cannot be loaded.
pub fn open(directory: &Path) -> Result<Arc<dyn PictureReader>, InferenceError> {
    let place = Place { device: Device::Cpu, threads: None };
    Ok(Arc::new(Shared(Arc::new(Ocr::open("ocr", directory, place)?))))
}

/// Whether a directory has the networks.
pub fn is_there(directory: &Path) -> bool {
    FILES.iter().all(|file| directory.join(file).is_file())
}

/// Version of what is done beside the networks. Change it when the same picture gives other lines.
const VERSION: &[u8] = b"1";

struct Ocr {
    fingerprint: String,
    find: Service<Finder>,
    turn: Service<Turner>,
    read: Service<Reader>,
}

struct Shared(Arc<Ocr>);

impl PictureReader for Shared {
    fn read(
        &self,
        picture: Picture,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<PictureLine>, InferenceError>> {
        let ocr = self.0.clone();
        async move { ocr.lines(&picture, priority).await }.boxed()
    }

    fn knows(&self) -> &'static str {
        KNOWS
    }

    fn fingerprint(&self) -> &str {
        &self.0.fingerprint
    }
}

impl Ocr {
    fn open(name: &str, directory: &Path, place: Place) -> Result<Self, InferenceError> {
        let [find, turn, read] = FILES.map(|file| directory.join(file));
        let mut hasher = blake3::Hasher::new();
        hasher.update(VERSION);
        [&find, &turn, &read].into_iter().try_for_each(|file| hash_file(&mut hasher, file))?;
        let fingerprint = hasher.finalize().to_hex().to_string();
        let (find, turn) = (Finder::start(name, &find, place)?, Turner::start(name, &turn, place)?);
        Ok(Self { fingerprint, find, turn, read: Reader::start(name, &read, place)? })
    }

    fn usage(&self) -> Usage {
        let (find, turn, read) = (self.find.usage(), self.turn.usage(), self.read.usage());
        Usage { inputs: find.inputs, busy_us: find.busy_us + turn.busy_us + read.busy_us, ..read }
    }

    async fn lines(&self, picture: &Picture, priority: Priority) -> Result<Vec<PictureLine>, InferenceError> {
        let (width, height) = scale::size(picture, SIDES.0, SIDES.1);
        let planes = scale::planes(picture, (width, height));
        let map = self.find.call(vec![planes], priority).await?.pop().unwrap_or_default();
        let factor = (picture.width as f32 / width as f32, picture.height as f32 / height as f32);
        let areas = areas(&map, width).into_iter().map(|area| scaled(area, factor)).collect::<Vec<_>>();
        let mut corners = in_reading_direction(&areas);
        let mut strips: Vec<Strip> = corners.iter().map(|corners| Strip::cut(picture, corners)).collect();
        if self.is_upside_down(&strips, priority).await? {
            corners.iter_mut().for_each(|corners| corners.rotate_left(2));
            strips = corners.iter().map(|corners| Strip::cut(picture, corners)).collect();
        }
        let read = self.read.call(strips, priority).await?;
        let mut lines: Vec<PictureLine> = corners.into_iter().zip(read).map(|(at, read)| line(at, read)).collect();
        self.turn_doubtful(picture, &mut lines, priority).await?;
        lines.retain(|line| !line.text.trim().is_empty());
        Ok(lines)
    }

    /// Whether most of the longest lines are upside down.
    async fn is_upside_down(&self, strips: &[Strip], priority: Priority) -> Result<bool, InferenceError> {
        let mut longest: Vec<&Strip> = strips.iter().collect();
        longest.sort_by_key(|strip| std::cmp::Reverse(strip.width));
        let votes: Vec<Strip> = longest.into_iter().take(VOTES).cloned().collect();
        let all = votes.len() as f32;
        let turned: f32 = self.turn.call(votes, priority).await?.iter().sum();
        Ok(turned > all / 2.0)
    }

    /// Reads lines of which the model is not sure the other way round.
    async fn turn_doubtful(
        &self,
        picture: &Picture,
        lines: &mut [PictureLine],
        priority: Priority,
    ) -> Result<(), InferenceError> {
        let mut doubtful: Vec<&mut PictureLine> = lines.iter_mut().filter(|line| line.confidence < DOUBTFUL).collect();
        let turned = |line: &PictureLine| {
            let [a, b, c, d] = line.corners;
            [c, d, a, b]
        };
        let strips = doubtful.iter().map(|line| Strip::cut(picture, &turned(line))).collect();
        let read = self.read.call(strips, priority).await?;
        for (known, read) in doubtful.iter_mut().zip(read) {
            let other = line(turned(known), read);
            if other.confidence > known.confidence.max(DOUBTFUL) {
                **known = other;
            }
        }
        Ok(())
    }
}

/// An area in pixels of the picture.
fn scaled(area: Area, (x, y): (f32, f32)) -> [Point; 4] {
    area.corners().map(|corner| ((corner.0 + 0.5) * x, (corner.1 + 0.5) * y))
}

/// The corners of lines as a reader sees them, unless all is upside down. High lines are turned by a quarter. What is as high
/// as wide, such as a single letter, is turned as most of the others are.
fn in_reading_direction(areas: &[[Point; 4]]) -> Vec<[Point; 4]> {
    let sides = |[a, b, _, d]: &[Point; 4]| ((a.0 - b.0).hypot(a.1 - b.1), (a.0 - d.0).hypot(a.1 - d.1));
    let length = |is_tall: bool| -> f32 {
        let tall =
            areas.iter().map(sides).map(|(width, height)| if is_tall { (height, width) } else { (width, height) });
        tall.filter(|(long, short)| *long >= TALL * short).map(|(long, _)| long).sum()
    };
    let are_tall = length(true) > length(false);
    let turned = |corners: &[Point; 4]| {
        let (width, height) = sides(corners);
        let is_tall = height >= TALL * width || are_tall && width < TALL * height;
        let [a, b, c, d] = *corners;
        if is_tall { [b, c, d, a] } else { [a, b, c, d] }
    };
    areas.iter().map(turned).collect()
}

/// A line of its letters.
fn line(corners: [Point; 4], letters: Letters) -> PictureLine {
    let sure: f32 = letters.iter().map(|letter| letter.1).sum();
    PictureLine {
        text: letters.iter().map(|letter| letter.0).collect(),
        confidence: sure / letters.len().max(1) as f32,
        corners,
        places: letters.iter().map(|letter| letter.2).collect(),
    }
}
