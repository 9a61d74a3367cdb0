//! Scales a picture, and makes the numbers of it that a model takes.

use turnflow_engine::inference::Picture;

/// The sides of networks that find text are multiples of this.
const STEP: usize = 32;

/// A picture as a model takes it: planes of blue, green and red, from -1 to 1.
pub(super) struct Planes {
    pub width: usize,
    pub height: usize,
    pub values: Vec<f32>,
}

/// The size at which text is found in a picture. Its longer side has at most `most` pixels, unless the shorter one would
/// have fewer than `least`; a small picture is made larger.
pub(super) fn size(picture: &Picture, least: usize, most: usize) -> (usize, usize) {
    let (width, height) = (picture.width as f32, picture.height as f32);
    let (shorter, longer) = (width.min(height), width.max(height));
    let factor = if longer > most as f32 { most as f32 / longer } else { (least as f32 / shorter).max(1.0) };
    let factor = factor.min(most as f32 / longer);
    let side = |length: f32| ((length * factor / STEP as f32).round() as usize).max(1) * STEP;
    (side(width), side(height))
}

/// Scales a picture to a size.
pub(super) fn planes(picture: &Picture, (width, height): (usize, usize)) -> Planes {
    let narrow = level(picture, width);
    let mut values = vec![0.0; 3 * width * height];
    let (rows, size) = (Weights::of(picture.height, height), width * height);
    let mut sums = vec![0.0f32; 3 * width];
    for (at, weights) in rows.all.iter().enumerate() {
        sums.fill(0.0);
        for (row, weight) in (weights.first..).zip(&weights.shares) {
            let row = &narrow[3 * width * row..3 * width * (row + 1)];
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * f32::from(*value));
        }
        for (x, pixel) in sums.chunks_exact(3).enumerate() {
            for (plane, value) in pixel.iter().rev().enumerate() {
                values[plane * size + at * width + x] = value / 127.5 - 1.0;
            }
        }
    }
    Planes { width, height, values }
}

/// Scales the rows of a picture to a width.
fn level(picture: &Picture, width: usize) -> Vec<u8> {
    let columns = Weights::of(picture.width, width);
    let mut scaled = Vec::with_capacity(3 * width * picture.height);
    for row in picture.rgb.chunks_exact(3 * picture.width) {
        for weights in &columns.all {
            let mut sums = [0.5f32; 3];
            let pixels = row[3 * weights.first..].chunks_exact(3);
            for (pixel, weight) in pixels.zip(&weights.shares) {
                sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += weight * f32::from(*value));
            }
            scaled.extend(sums.map(|sum| sum as u8));
        }
    }
    scaled
}

/// Of which values each scaled one is made: of those around it, the nearer the more.
struct Weights {
    all: Vec<Share>,
}

struct Share {
    first: usize,
    shares: Vec<f32>,
}

impl Weights {
    fn of(from: usize, to: usize) -> Self {
        let step = from as f32 / to as f32;
        let reach = step.max(1.0);
        let share = |at: usize| {
            let center = (at as f32 + 0.5) * step;
            let first = ((center - reach).floor().max(0.0) as usize).min(from - 1);
            let last = ((center + reach).ceil() as usize).clamp(first + 1, from);
            let weight = |place: usize| (1.0 - ((place as f32 + 0.5 - center) / reach).abs()).max(0.0);
            let mut shares: Vec<f32> = (first..last).map(weight).collect();
            let sum: f32 = shares.iter().sum();
            match sum > 0.0 {
                true => shares.iter_mut().for_each(|share| *share /= sum),
                false => shares[0] = 1.0,
            }
            Share { first, shares }
        };
        Self { all: (0..to).map(share).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_within_the_bounds() {
        let of = |width, height| size(&Picture { width, height, rgb: Vec::new() }, 736, 2000);
        assert_eq!(of(2500, 4000), (1248, 2016));
        assert_eq!(of(100, 50), (1472, 736));
        assert_eq!(of(1000, 1200), (992, 1216));
        // A strip is not made larger than the bound for its longer side.
        assert_eq!(of(1000, 10), (2016, 32));
        assert_eq!(of(1, 1), (736, 736));
    }

    #[test]
    fn colours_stay_and_edges_are_smooth() {
        let picture = Picture::of(4, 4, [255, 0, 51].repeat(16)).unwrap();
        for size in [(2, 2), (8, 8), (3, 5), (4, 4)] {
            let planes = planes(&picture, size);
            let area = size.0 * size.1;
            for (plane, value) in [(0, -0.6), (1, -1.0), (2, 1.0)] {
                let values = &planes.values[plane * area..(plane + 1) * area];
                assert!(values.iter().all(|other| (other - value).abs() < 0.01), "{values:?}");
            }
        }
        let half: Vec<u8> = (0..16).flat_map(|at| [if at % 4 < 2 { 0 } else { 255 }; 3]).collect();
        let scaled = planes(&Picture::of(4, 4, half).unwrap(), (2, 1));
        assert!(scaled.values[0] < -0.5 && scaled.values[1] > 0.5, "{:?}", scaled.values);
    }
}
