//! What lies on a page, in points: x grows to the right and y upwards, as the text is read.

/// A rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub x0: f32,
    pub x1: f32,
    pub y0: f32,
    pub y1: f32,
}

impl Bounds {
    /// Contains nothing.
    pub const NONE: Self = Self { x0: f32::MAX, x1: f32::MIN, y0: f32::MAX, y1: f32::MIN };

    /// The smallest rectangle that has both.
    pub fn with(self, other: Self) -> Self {
        Self {
            x0: self.x0.min(other.x0),
            x1: self.x1.max(other.x1),
            y0: self.y0.min(other.y0),
            y1: self.y1.max(other.y1),
        }
    }

    /// The smallest rectangle that has all of them.
    pub fn all(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::NONE, Self::with)
    }

    pub fn height(&self) -> f32 {
        (self.y1 - self.y0).max(0.0)
    }

    pub fn width(&self) -> f32 {
        (self.x1 - self.x0).max(0.0)
    }

    pub fn center(&self) -> (f32, f32) {
        ((self.x0 + self.x1) / 2.0, (self.y0 + self.y1) / 2.0)
    }

    /// The share of the lower one's height at which both are.
    pub fn level_with(&self, other: &Self) -> f32 {
        let common = self.y1.min(other.y1) - self.y0.max(other.y0);
        (common / self.height().min(other.height()).max(0.1)).max(0.0)
    }
}

/// A word: letters without a blank between them.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub text: String,
    pub bounds: Bounds,
}

/// Words beside each other, which the file has one after the other.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub words: Vec<Word>,
    pub bounds: Bounds,
    /// Size of the letters.
    pub size: f32,
    pub is_bold: bool,
    /// Its number in the order of the file.
    pub at: usize,
    /// A table that was found by its lines.
    pub table: Option<Vec<Vec<String>>>,
}

impl Segment {
    /// Of words, with the size of their letters.
    pub fn of(words: Vec<Word>, size: f32, is_bold: bool, at: usize) -> Self {
        let bounds = Bounds::all(words.iter().map(|word| word.bounds));
        Self { words, bounds, size, is_bold, at, table: None }
    }
}

/// A straight line that is drawn, from left to right or upwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rule(pub Bounds);

impl Rule {
    pub fn is_level(&self) -> bool {
        self.0.width() >= self.0.height()
    }
}

/// What a page has.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub segments: Vec<Segment>,
    /// Text in other directions, such as a note along the margin, by its direction.
    pub turned: Vec<Vec<Segment>>,
    pub rules: Vec<Rule>,
    /// Number of its letters, and of those of them of which the file does not say what they are.
    pub letters: (usize, usize),
}

impl Page {
    /// The share of its letters that are known, from 0 to 1.
    pub fn confidence(&self) -> f64 {
        let (letters, unknown) = self.letters;
        1.0 - unknown as f64 / letters.max(1) as f64
    }
}
