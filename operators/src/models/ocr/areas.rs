//! Finds the lines of text in the map of a network that says for each pixel whether it is in the middle of a line
//! (Differentiable Binarization, Liao et al. 2020).

/// Pixels above this are text.
const TEXT: f32 = 0.3;
/// An area of which the mean is less is none.
const LEAST_MEAN: f32 = 0.5;
/// An area grows by this share of its size: the map has the middle of a line only.
const GROWTH: f32 = 1.6;
/// A lower area is none, in pixels of the map.
const LEAST_SIDE: f32 = 3.0;
/// Maximum number of areas of a picture.
const MOST_AREAS: usize = 3000;

/// A point in pixels; y grows downwards.
pub(super) type Point = (f32, f32);

/// A rectangle around a line, which may be turned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub center: Point,
    /// The direction of its width: to the right, and at most 45 degrees up or down.
    pub along: Point,
    pub width: f32,
    pub height: f32,
}

impl Area {
    /// Its corners, from the upper left one on, clockwise.
    pub fn corners(&self) -> [Point; 4] {
        let ((x, y), (cos, sin)) = (self.center, self.along);
        let corner = |across: f32, down: f32| {
            let (across, down) = (across * self.width / 2.0, down * self.height / 2.0);
            (x + across * cos - down * sin, y + across * sin + down * cos)
        };
        [corner(-1.0, -1.0), corner(1.0, -1.0), corner(1.0, 1.0), corner(-1.0, 1.0)]
    }
}

/// The areas of text of a map with rows of `width` values.
pub(super) fn areas(map: &[f32], width: usize) -> Vec<Area> {
    let height = map.len() / width.max(1);
    let mut rest = mask(map, width, height);
    let mut areas = Vec::new();
    let mut stack = Vec::new();
    for start in 0..rest.len() {
        if !rest[start] {
            continue;
        }
        if areas.len() >= MOST_AREAS {
            break;
        }
        let points = component(&mut rest, (width, height), start, &mut stack);
        let Some(area) = around(&hull(points)) else { continue };
        if area.width.min(area.height) < LEAST_SIDE || mean(map, (width, height), &area) < LEAST_MEAN {
            continue;
        }
        let grown = area.width * area.height * GROWTH / (2.0 * (area.width + area.height));
        areas.push(Area { width: area.width + 2.0 * grown, height: area.height + 2.0 * grown, ..area });
    }
    areas
}

/// What is text, one pixel wider to the right and downwards, so that thin gaps close.
fn mask(map: &[f32], width: usize, height: usize) -> Vec<bool> {
    let mut mask = vec![false; width * height];
    for y in 0..height {
        for x in 0..width {
            if map[y * width + x] > TEXT {
                let (right, below) = ((x + 1).min(width - 1), (y + 1).min(height - 1));
                for (x, y) in [(x, y), (right, y), (x, below), (right, below)] {
                    mask[y * width + x] = true;
                }
            }
        }
    }
    mask
}

/// Takes the pixels that hang together with one of them out of a mask. Returns the ends of their rows.
fn component(
    rest: &mut [bool],
    (width, height): (usize, usize),
    start: usize,
    stack: &mut Vec<usize>,
) -> Vec<(i32, i32)> {
    let mut points = Vec::new();
    stack.push(start);
    while let Some(at) = stack.pop() {
        if !rest[at] {
            continue;
        }
        let (y, row) = (at / width, at / width * width);
        let (mut first, mut last) = (at, at);
        while first > row && rest[first - 1] {
            first -= 1;
        }
        while last + 1 < row + width && rest[last + 1] {
            last += 1;
        }
        rest[first..=last].fill(false);
        points.extend([((first - row) as i32, y as i32), ((last - row) as i32, y as i32)]);
        // Pixels that touch at a corner hang together.
        let (from, to) = (first.saturating_sub(1).max(row), (last + 1).min(row + width - 1));
        if y > 0 {
            stack.extend((from - width..=to - width).filter(|at| rest[*at]));
        }
        if y + 1 < height {
            stack.extend((from + width..=to + width).filter(|at| rest[*at]));
        }
    }
    points
}

/// The convex hull of points (Andrew 1979).
fn hull(mut points: Vec<(i32, i32)>) -> Vec<(i32, i32)> {
    points.sort_unstable();
    points.dedup();
    if points.len() < 3 {
        return points;
    }
    let turn = |a: (i32, i32), b: (i32, i32), c: (i32, i32)| {
        i64::from(b.0 - a.0) * i64::from(c.1 - a.1) - i64::from(b.1 - a.1) * i64::from(c.0 - a.0)
    };
    let half = |points: &mut dyn Iterator<Item = (i32, i32)>| {
        let mut half: Vec<(i32, i32)> = Vec::new();
        for point in points {
            while half.len() >= 2 && turn(half[half.len() - 2], half[half.len() - 1], point) <= 0 {
                half.pop();
            }
            half.push(point);
        }
        half.pop();
        half
    };
    let mut hull = half(&mut points.iter().copied());
    hull.extend(half(&mut points.iter().rev().copied()));
    hull
}

/// The rectangle of the least area around a convex polygon. One of its sides lies on one of the polygon's.
fn around(hull: &[(i32, i32)]) -> Option<Area> {
    let mut best: Option<Area> = None;
    for (at, from) in hull.iter().enumerate() {
        let to = hull[(at + 1) % hull.len()];
        let (x, y) = ((to.0 - from.0) as f32, (to.1 - from.1) as f32);
        let length = x.hypot(y);
        if length == 0.0 {
            continue;
        }
        let area = level(hull, (x / length, y / length));
        if best.is_none_or(|best| area.width * area.height < best.width * best.height) {
            best = Some(area);
        }
    }
    best
}

/// The rectangle around points with a side in this direction.
fn level(points: &[(i32, i32)], side: Point) -> Area {
    // Of the four directions of its sides, the one to the right.
    let along = match side {
        (x, y) if x.abs() >= y.abs() => (x * x.signum(), y * x.signum()),
        (x, y) => (y * y.signum(), -x * y.signum()),
    };
    let (mut low, mut high) = ((f32::MAX, f32::MAX), (f32::MIN, f32::MIN));
    for (x, y) in points {
        let (x, y) = (*x as f32, *y as f32);
        let (across, down) = (x * along.0 + y * along.1, y * along.0 - x * along.1);
        (low.0, low.1) = (low.0.min(across), low.1.min(down));
        (high.0, high.1) = (high.0.max(across), high.1.max(down));
    }
    let (across, down) = ((low.0 + high.0) / 2.0, (low.1 + high.1) / 2.0);
    let center = (across * along.0 - down * along.1, across * along.1 + down * along.0);
    Area { center, along, width: high.0 - low.0, height: high.1 - low.1 }
}

/// The mean of a map within an area.
fn mean(map: &[f32], (width, height): (usize, usize), area: &Area) -> f32 {
    let corners = area.corners();
    let bound = |number: f32, most: usize| (number.max(0.0) as usize).min(most - 1);
    let range = |part: fn(&Point) -> f32, most: usize| {
        let numbers = corners.iter().map(part);
        let (low, high) = numbers.fold((f32::MAX, f32::MIN), |(low, high), at| (low.min(at), high.max(at)));
        bound(low.floor(), most)..=bound(high.ceil(), most)
    };
    let (mut sum, mut count) = (0.0, 0);
    for y in range(|point| point.1, height) {
        for x in range(|point| point.0, width) {
            let (dx, dy) = (x as f32 - area.center.0, y as f32 - area.center.1);
            let (across, down) = (dx * area.along.0 + dy * area.along.1, dy * area.along.0 - dx * area.along.1);
            if across.abs() <= area.width / 2.0 + 0.5 && down.abs() <= area.height / 2.0 + 0.5 {
                sum += map[y * width + x];
                count += 1;
            }
        }
    }
    sum / count.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map with a bar that is turned by degrees.
    fn bar(degrees: f32) -> Vec<f32> {
        let (sin, cos) = degrees.to_radians().sin_cos();
        let value = |at: usize| {
            let (x, y) = ((at % 100) as f32 - 50.0, (at / 100) as f32 - 50.0);
            let is_in = (x * cos + y * sin).abs() <= 30.0 && (y * cos - x * sin).abs() <= 5.0;
            f32::from(u8::from(is_in))
        };
        (0..10_000).map(value).collect()
    }

    #[test]
    fn a_turned_bar_is_found_with_its_angle() {
        for degrees in [0.0f32, 10.0, -20.0, 90.0, 80.0] {
            let found = areas(&bar(degrees), 100);
            assert_eq!(found.len(), 1, "{degrees}");
            let Area { center, along, width, height } = found[0];
            assert!((center.0 - 50.5).abs() < 1.5 && (center.1 - 50.5).abs() < 1.5, "{center:?}");
            let quarter = (degrees / 90.0).round() * 90.0;
            let angle = along.1.atan2(along.0).to_degrees();
            assert!((angle - (degrees - quarter)).abs() < 3.0, "{degrees}: {angle}");
            let (long, short) = if quarter == 0.0 { (width, height) } else { (height, width) };
            assert!((68.0..80.0).contains(&long) && (18.0..32.0).contains(&short), "{degrees}: {long} {short}");
        }
    }

    #[test]
    fn specks_and_faint_areas_are_none() {
        let mut map = vec![0.0; 10_000];
        map[5050] = 1.0;
        assert_eq!(areas(&map, 100), []);
        let faint: Vec<f32> = bar(0.0).iter().map(|value| value * 0.4).collect();
        assert_eq!(areas(&faint, 100), []);
        assert_eq!(areas(&[], 0), []);
        // All of it, and a frame.
        assert_eq!(areas(&vec![1.0; 10_000], 100).len(), 1);
    }
}
