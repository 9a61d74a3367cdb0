//! Cuts lines out of a picture, level and at the height that a model reads.

use turnflow_engine::inference::Picture;

use super::areas::Point;

/// Height of a line in pixels.
pub(super) const HEIGHT: usize = 48;
/// Maximum width of a line in pixels. A longer one is made narrower.
pub(super) const MOST_WIDTH: usize = 3200;
/// Maximum number of samples in a row of a pixel, for lines that are made smaller.
const MOST_SAMPLES: usize = 4;

/// A line, or a part of one: rows of pixels.
#[derive(Clone)]
pub(super) struct Strip {
    pub width: usize,
    pub rgb: Vec<u8>,
}

impl Strip {
    /// Cuts the four-sided part with these corners out of a picture: above the beginning of the line, above its end,
    /// below its end, below its beginning.
    pub fn cut(picture: &Picture, corners: &[Point; 4]) -> Self {
        let [a, b, c, d] = *corners;
        let length = |a: Point, b: Point| (a.0 - b.0).hypot(a.1 - b.1);
        let (long, high) = (length(a, b).max(length(d, c)), length(a, d).max(length(b, c)).max(1.0));
        let width = ((HEIGHT as f32 * long / high).ceil() as usize).clamp(1, MOST_WIDTH);
        let samples = ((high / HEIGHT as f32).round() as usize).clamp(1, MOST_SAMPLES);
        let mut rgb = Vec::with_capacity(3 * width * HEIGHT);
        let share = 1.0 / (samples * samples) as f32;
        for row in 0..HEIGHT {
            for column in 0..width {
                let mut sum = [0.5f32; 3];
                for sample in 0..samples * samples {
                    let place = |at: usize, part: usize, of: usize| {
                        (at as f32 + (part as f32 + 0.5) / samples as f32) / of as f32
                    };
                    let (u, v) = (place(column, sample % samples, width), place(row, sample / samples, HEIGHT));
                    let between = |from: Point, to: Point| (from.0 + (to.0 - from.0) * u, from.1 + (to.1 - from.1) * u);
                    let (above, below) = (between(a, b), between(d, c));
                    let point = (above.0 + (below.0 - above.0) * v, above.1 + (below.1 - above.1) * v);
                    let pixel = at(picture, point);
                    sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += share * value);
                }
                rgb.extend(sum.map(|sum| sum as u8));
            }
        }
        Self { width, rgb }
    }

    /// Writes the strip into the planes of a batch, at most `width` pixels of it: blue, green and red, from -1 to 1.
    pub fn write(&self, planes: &mut [f32], width: usize) {
        let size = HEIGHT * width;
        for (row, pixels) in self.rgb.chunks_exact(3 * self.width).enumerate() {
            for (column, pixel) in pixels.chunks_exact(3).take(width).enumerate() {
                for (plane, value) in pixel.iter().rev().enumerate() {
                    planes[plane * size + row * width + column] = f32::from(*value) / 127.5 - 1.0;
                }
            }
        }
    }

    /// Made narrower to at most a width.
    pub fn narrowed(&self, width: usize) -> Self {
        if self.width <= width {
            return self.clone();
        }
        let picture = Picture { width: self.width, height: HEIGHT, rgb: self.rgb.clone() };
        let (right, below) = (self.width as f32, HEIGHT as f32);
        let mut rgb = Vec::with_capacity(3 * width * HEIGHT);
        for row in 0..HEIGHT {
            for column in 0..width {
                let x = (column as f32 + 0.5) * right / width as f32;
                rgb.extend(at(&picture, (x, row as f32 * below / HEIGHT as f32 + 0.5)).map(|value| value as u8));
            }
        }
        Self { width, rgb }
    }
}

/// The colour at a point, between those of the four pixels around it. Outside, that of the nearest pixel.
fn at(picture: &Picture, (x, y): Point) -> [f32; 3] {
    let near = |place: f32, most: usize| {
        let place = (place - 0.5).clamp(0.0, (most - 1) as f32);
        let first = place as usize;
        (first, (first + 1).min(most - 1), place - first as f32)
    };
    let ((left, right, u), (above, below, v)) = (near(x, picture.width), near(y, picture.height));
    let pixel = |x: usize, y: usize| {
        let at = 3 * (y * picture.width + x);
        [picture.rgb[at], picture.rgb[at + 1], picture.rgb[at + 2]].map(f32::from)
    };
    let (a, b, c, d) = (pixel(left, above), pixel(right, above), pixel(left, below), pixel(right, below));
    std::array::from_fn(|colour| {
        let upper = a[colour] + (b[colour] - a[colour]) * u;
        let lower = c[colour] + (d[colour] - c[colour]) * u;
        upper + (lower - upper) * v
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture that is dark at the left and bright at the right.
    fn gradient() -> Picture {
        let rgb = (0..200 * 100).flat_map(|at| [(at % 200) as u8; 3]).collect();
        Picture::of(200, 100, rgb).unwrap()
    }

    #[test]
    fn a_part_is_cut_level_and_turned() {
        let picture = gradient();
        let level = Strip::cut(&picture, &[(50.0, 10.0), (150.0, 10.0), (150.0, 58.0), (50.0, 58.0)]);
        assert_eq!((level.width, level.rgb[0], level.rgb[3 * 99]), (100, 50, 149));
        let turned = Strip::cut(&picture, &[(150.0, 58.0), (50.0, 58.0), (50.0, 10.0), (150.0, 10.0)]);
        assert_eq!((turned.width, turned.rgb[0], turned.rgb[3 * 99]), (100, 149, 50));
        // Outside, the nearest pixels go on.
        let outside = Strip::cut(&picture, &[(-50.0, -9.0), (-2.0, -9.0), (-2.0, -1.0), (-50.0, -1.0)]);
        assert!(outside.rgb.iter().all(|value| *value == 0));
    }

    #[test]
    fn long_and_high_lines_are_bounded() {
        let picture = gradient();
        let long = Strip::cut(&picture, &[(0.0, 0.0), (200.0, 0.0), (200.0, 0.5), (0.0, 0.5)]);
        assert_eq!((long.width, long.rgb.len()), (MOST_WIDTH.min(9600), 3 * HEIGHT * long.width));
        let high = Strip::cut(&picture, &[(0.0, 0.0), (0.0, 0.0), (0.0, 100.0), (0.0, 100.0)]);
        assert_eq!(high.width, 1);
        assert_eq!(long.narrowed(192).rgb.len(), 3 * 192 * HEIGHT);
    }

    #[test]
    fn planes_are_padded() {
        let strip = Strip { width: 1, rgb: [255, 0, 0].repeat(HEIGHT) };
        let mut planes = vec![0.0; 3 * HEIGHT * 2];
        strip.write(&mut planes, 2);
        assert_eq!((planes[0], planes[1], planes[2 * 2 * HEIGHT], planes[2 * 2 * HEIGHT + 1]), (-1.0, 0.0, 1.0, 0.0));
    }
}
