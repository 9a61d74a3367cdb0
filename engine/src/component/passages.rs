//! The passages of a corpus at an epoch by their metadata: which of them a turn may find.
//!
//! A passage has a number in its corpus ([`Place`](crate::document::Place)). For each field that a filter has read so
//! far, a map from values to bitmaps of these numbers is kept from epoch to epoch, at a cost proportional to the change.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use parking_lot::Mutex;
use roaring::RoaringBitmap;

use super::Delta;
use crate::cluster::Restriction;
use crate::document::{Chunk, EVERYBODY, Readers};
use crate::filter::{Condition, Filter};
use crate::metadata::FieldValue;
use crate::record::Turn;

/// Entries in a page of a [`Paged`] table.
const PAGE: usize = 1024;
/// Maximum number of results that an epoch keeps.
const MOST_RESULTS: usize = 256;

/// A table by passage number. A clone shares all pages that neither copy changes.
#[derive(Clone, Debug)]
pub struct Paged<T> {
    pages: Vec<Arc<Vec<Option<T>>>>,
}

impl<T> Default for Paged<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T: Clone> Paged<T> {
    /// The entry of a passage.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.pages.get(number as usize / PAGE)?.get(number as usize % PAGE)?.as_ref()
    }

    /// Sets or removes the entry of a passage.
    pub fn set(&mut self, number: u32, entry: Option<T>) {
        let (page, at) = (number as usize / PAGE, number as usize % PAGE);
        while self.pages.len() <= page {
            self.pages.push(Arc::new(vec![None; PAGE]));
        }
        Arc::make_mut(&mut self.pages[page])[at] = entry;
    }

    /// All entries, in the order of the numbers.
    pub fn entries(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.iter().flatten())
    }
}

/// The passages that a turn may find.
#[derive(Clone, Debug)]
pub enum Permitted {
    /// All passages of the corpus.
    All,
    /// Only the passages with these numbers.
    Only(Arc<RoaringBitmap>),
}

impl Permitted {
    /// Whether a passage of the epoch is among them.
    pub fn has(&self, chunk: &Chunk) -> bool {
        match self {
            Self::All => true,
            Self::Only(numbers) => chunk.place.get().is_some_and(|number| numbers.contains(number)),
        }
    }

    /// The numbers of the passages; `None` if there is no restriction.
    pub fn numbers(&self) -> Option<&Arc<RoaringBitmap>> {
        match self {
            Self::All => None,
            Self::Only(numbers) => Some(numbers),
        }
    }
}

/// What a map of values is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// The groups that may read a passage; `true` for passages that everyone may read.
    Readers,
    /// A field of the metadata.
    Field(Arc<str>),
}

impl About {
    /// The values of a passage.
    fn values(&self, chunk: &Chunk) -> Vec<FieldValue> {
        match self {
            Self::Readers => match &chunk.readers {
                Readers::All => vec![FieldValue::Bool(true)],
                Readers::Groups(groups) => groups.iter().cloned().map(FieldValue::Text).collect(),
            },
            Self::Field(path) => chunk.metadata.values(path).into_iter().cloned().collect(),
        }
    }
}

/// The passages by the values of one field.
#[derive(Clone, Debug, Default)]
struct ByValue {
    values: OrdMap<FieldValue, Arc<RoaringBitmap>>,
    /// Passages with any value.
    any: RoaringBitmap,
}

impl ByValue {
    fn add(&mut self, number: u32, values: Vec<FieldValue>) {
        if !values.is_empty() {
            self.any.insert(number);
        }
        for value in values {
            Arc::make_mut(self.values.entry(value).or_default()).insert(number);
        }
    }

    fn remove(&mut self, number: u32, values: Vec<FieldValue>) {
        self.any.remove(number);
        for value in values {
            let Some(numbers) = self.values.get_mut(&value) else { continue };
            let numbers = Arc::make_mut(numbers);
            numbers.remove(number);
            if numbers.is_empty() {
                self.values.remove(&value);
            }
        }
    }

    fn within(&self, low: Bound<&FieldValue>, high: Bound<&FieldValue>) -> RoaringBitmap {
        // A map panics on an empty range.
        let value = |bound: &Bound<&FieldValue>| match bound {
            Bound::Included(value) | Bound::Excluded(value) => Some((*value).clone()),
            Bound::Unbounded => None,
        };
        if let (Some(from), Some(to)) = (value(&low), value(&high))
            && (from > to || from == to && !matches!((low, high), (Bound::Included(_), Bound::Included(_))))
        {
            return RoaringBitmap::new();
        }
        self.values
            .range((low.cloned(), high.cloned()))
            .fold(RoaringBitmap::new(), |all, (_, numbers)| all | &**numbers)
    }
}

/// The groups of a principal, and the condition of a filter.
type Asked = (Option<Vec<Arc<str>>>, Option<Condition>);

/// Number of fields from which on those that no passage has are not remembered.
const MOST_FIELDS: usize = 256;
/// Maximum number of groups and values of a result that is kept.
const MOST_VALUES: usize = 256;

/// Number of groups and values.
fn size((groups, condition): &Asked) -> usize {
    fn values(condition: &Condition) -> usize {
        match condition {
            Condition::OneOf(_, values) => values.len(),
            Condition::And(all) | Condition::Or(all) => all.iter().map(values).sum(),
            Condition::Not(one) => values(one),
            _ => 1,
        }
    }
    groups.as_ref().map_or(0, Vec::len) + condition.as_ref().map_or(0, values)
}

/// The passages of a corpus at an epoch.
#[derive(Debug, Default)]
pub struct Passages {
    chunks: Paged<Arc<Chunk>>,
    live: Arc<RoaringBitmap>,
    /// Number of passages that not everyone may read.
    restricted: usize,
    /// The fields that filters have read, in this epoch or an earlier one.
    fields: Mutex<BTreeMap<About, Arc<ByValue>>>,
    /// Results in this epoch, by groups (if passages are restricted) and condition.
    found: Mutex<HashMap<Asked, Arc<RoaringBitmap>>>,
}

impl Passages {
    /// The passages of a corpus. A passage without a number is left out.
    pub(crate) fn of<'a>(chunks: impl Iterator<Item = &'a Arc<Chunk>>) -> Self {
        let mut this = Self::default();
        let live = Arc::make_mut(&mut this.live);
        for chunk in chunks {
            let Some(number) = chunk.place.get() else { continue };
            live.insert(number);
            this.restricted += usize::from(chunk.readers != Readers::All);
            this.chunks.set(number, Some(chunk.clone()));
        }
        this
    }

    /// The passages after a change. Cost: proportional to the change for each field that filters have read, and a copy of
    /// the bitmaps that change, which have up to a bit for each passage.
    pub(crate) fn next(&self, delta: &Delta) -> Self {
        let mut chunks = self.chunks.clone();
        let mut live = RoaringBitmap::clone(&self.live);
        let mut restricted = self.restricted;
        let mut fields = self.fields.lock().clone();
        let mut indexes: Vec<(&About, &mut ByValue)> =
            fields.iter_mut().map(|(about, index)| (about, Arc::make_mut(index))).collect();
        for chunk in &delta.removed {
            let Some(number) = chunk.place.get() else { continue };
            let Some(chunk) = chunks.get(number).cloned() else { continue };
            chunks.set(number, None);
            live.remove(number);
            restricted -= usize::from(chunk.readers != Readers::All);
            indexes.iter_mut().for_each(|(about, index)| index.remove(number, about.values(&chunk)));
        }
        for chunk in &delta.added {
            let Some(number) = chunk.place.get() else { continue };
            chunks.set(number, Some(chunk.clone()));
            live.insert(number);
            restricted += usize::from(chunk.readers != Readers::All);
            indexes.iter_mut().for_each(|(about, index)| index.add(number, about.values(chunk)));
        }
        let (live, fields) = (Arc::new(live), Mutex::new(fields));
        Self { chunks, live, restricted, fields, found: Mutex::default() }
    }

    /// The passages that a turn may find: those for which the filter is true, that meet the caller's condition, and that
    /// the principal may read.
    pub fn permitted(&self, filter: Option<&Filter>, turn: &Turn) -> Permitted {
        let groups = (self.restricted > 0).then(|| turn.groups());
        self.within(groups.as_deref(), Restriction::condition_of(filter, turn))
    }

    /// All passages, whoever may read them.
    pub fn each(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.chunks.entries()
    }

    /// The passages of a document that are among the permitted ones, in their order in it. Cost: a look at every passage.
    pub(crate) fn of_document(&self, document: &str, permitted: &Permitted) -> Vec<Arc<Chunk>> {
        let own = self.chunks.entries().filter(|chunk| *chunk.document == *document && permitted.has(chunk));
        let mut found: Vec<Arc<Chunk>> = own.cloned().collect();
        found.sort_by_key(|chunk| chunk.number());
        found
    }

    /// Whether there are passages that not everyone may read.
    pub(crate) fn is_restricted(&self) -> bool {
        self.restricted > 0
    }

    /// The passages that a principal of these groups may read, and for which the condition is true.
    pub(crate) fn within(&self, groups: Option<&[Arc<str>]>, condition: Option<Condition>) -> Permitted {
        let groups = groups.filter(|_| self.restricted > 0).map(<[_]>::to_vec);
        if condition.is_none() && groups.is_none() {
            return Permitted::All;
        }
        let asked = (groups, condition);
        if let Some(found) = self.found.lock().get(&asked) {
            return Permitted::Only(found.clone());
        }
        let (groups, condition) = &asked;
        let readable = groups.as_ref().map(|groups| self.readable(groups));
        let meeting = condition.as_ref().map(|condition| self.those(condition, true));
        let numbers = match (readable, meeting) {
            (Some(readable), Some(meeting)) => readable & meeting,
            (one, other) => one.or(other).unwrap_or_default(),
        };
        let numbers = Arc::new(numbers);
        // Lists of any length may come from a caller.
        if size(&asked) <= MOST_VALUES {
            let mut found = self.found.lock();
            if found.len() >= MOST_RESULTS {
                found.clear();
            }
            found.insert(asked, numbers.clone());
        }
        Permitted::Only(numbers)
    }

    /// The cost of [`Passages::permitted`], in the units of [`Operator::weight`](super::Operator::weight): reading a field
    /// of every passage for the first time, or combining bitmaps.
    pub(crate) fn weight(&self, filter: Option<&Filter>, turn: &Turn) -> usize {
        let filters = [filter, turn.filter.as_deref()].into_iter().flatten();
        if filters.clone().next().is_none() && self.restricted == 0 {
            return 0;
        }
        let live = self.live.len() as usize;
        let fields = self.fields.lock();
        let is_new = |about: &About| usize::from(!fields.contains_key(about));
        let read = filters.flat_map(Filter::fields).cloned().map(About::Field);
        let read: Vec<About> = read.collect();
        let of_filter: usize = read.iter().map(is_new).sum();
        // A range may combine a bitmap for each value of its field.
        let values: usize = read.iter().filter_map(|about| fields.get(about)).map(|index| index.values.len()).sum();
        let of_readers = if self.restricted > 0 { is_new(&About::Readers) } else { 0 };
        // Some ten values of a bitmap are combined in the time for a byte of text.
        (of_filter + of_readers).saturating_mul(live).saturating_mul(4).saturating_add(live / 16 + values / 2)
    }

    /// The passages that a principal of these groups may read.
    fn readable(&self, groups: &[Arc<str>]) -> RoaringBitmap {
        let by_reader = self.by_value(About::Readers);
        let groups = groups.iter().cloned().chain([EVERYBODY.into()]).map(FieldValue::Text);
        let named = groups.chain([FieldValue::Bool(true)]).filter_map(|group| by_reader.values.get(&group).cloned());
        named.fold(RoaringBitmap::new(), |all, numbers| all | &*numbers)
    }

    /// The passages for which a condition is certainly true, or certainly false.
    fn those(&self, condition: &Condition, wanted: bool) -> RoaringBitmap {
        let either = |meeting: RoaringBitmap| if wanted { meeting } else { &*self.live - meeting };
        let field = |name: &Arc<str>| self.by_value(About::Field(name.clone()));
        match condition {
            Condition::OneOf(name, values) => {
                let by_value = field(name);
                let numbers = values.iter().filter_map(|value| by_value.values.get(value));
                either(numbers.fold(RoaringBitmap::new(), |all, numbers| all | &**numbers))
            }
            Condition::Range(name, low, high) => either(field(name).within(low.as_ref(), high.as_ref())),
            Condition::Prefix(name, prefix) => {
                let by_value = field(name);
                let from = (Bound::Included(FieldValue::Text(prefix.clone())), Bound::Unbounded);
                let begins =
                    |value: &FieldValue| matches!(value, FieldValue::Text(text) if text.starts_with(&**prefix));
                let numbers = by_value.values.range(from).take_while(|(value, _)| begins(value));
                either(numbers.fold(RoaringBitmap::new(), |all, (_, numbers)| all | &**numbers))
            }
            Condition::Exists(name) => either(field(name).any.clone()),
            Condition::And(all) if wanted => self.all(all, true),
            Condition::And(all) => self.any(all, false),
            Condition::Or(all) if wanted => self.any(all, true),
            Condition::Or(all) => self.all(all, false),
            Condition::Not(one) => self.those(one, !wanted),
            Condition::Constant(value) if *value == Some(wanted) => RoaringBitmap::clone(&self.live),
            Condition::Constant(_) => RoaringBitmap::new(),
        }
    }

    fn all(&self, conditions: &[Condition], wanted: bool) -> RoaringBitmap {
        let met = conditions.iter().map(|one| self.those(one, wanted));
        met.reduce(|all, met| all & met).unwrap_or_else(|| RoaringBitmap::clone(&self.live))
    }

    fn any(&self, conditions: &[Condition], wanted: bool) -> RoaringBitmap {
        conditions.iter().map(|one| self.those(one, wanted)).fold(RoaringBitmap::new(), |all, met| all | met)
    }

    /// The passages by the values of a field. The first call for a field reads every passage; later epochs keep the map.
    fn by_value(&self, about: About) -> Arc<ByValue> {
        // Held while the map is made, so that turns that start together make it once.
        let mut fields = self.fields.lock();
        if let Some(index) = fields.get(&about) {
            return index.clone();
        }
        let mut index = ByValue::default();
        for chunk in self.chunks.entries() {
            if let Some(number) = chunk.place.get() {
                index.add(number, about.values(chunk));
            }
        }
        let index = Arc::new(index);
        // A caller may name any number of fields that no passage has.
        if !index.values.is_empty() || fields.len() < MOST_FIELDS {
            fields.insert(about, index.clone());
        }
        index
    }
}

#[cfg(test)]
mod tests;
