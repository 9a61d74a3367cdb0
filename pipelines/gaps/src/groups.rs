//! Groups of vectors, one vector at a time: average linkage.
//!
//! The likeness of two groups is the mean cosine over all pairs of their members (average linkage; Sokal and Michener
//! 1958). With vectors of length 1 it is the inner product of the groups' means, so a group is a sum and a count.
//!
//! A vector joins the group that is most like it, if the likeness reaches the threshold, and else begins one. A group
//! whose mean has moved joins the one that it is like by now; the smaller one's number goes. [`Groups::tidy`] looks
//! again at vectors that have joined long ago, and moves those that another group is more like.
//!
//! What all questions have in common says nothing, so the centre of all groups is subtracted from each vector first. The
//! centre and the threshold are computed again when the number of vectors has doubled. At first, with few vectors, there
//! is no centre.
//!
//! Everything depends on the order of the vectors alone, so a journal of what was decided gives the same groups again.

use std::collections::HashMap;

use crate::vector::dot;

/// A number that a group keeps.
pub type GroupId = u64;

/// A vector moves only if the other group is more like it by so much.
const WORTH_MOVING: f32 = 0.005;
/// Comparisons of a vector with a group in one call of [`Groups::tidy`].
const COMPARISONS: usize = 4_000_000;
/// Pairs that the threshold is chosen by.
const SAMPLE: usize = 512;

/// What changed besides the vector that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// All members of a group are in another one now.
    Merged {
        /// The group that is gone.
        from: GroupId,
        /// The one that has its members.
        into: GroupId,
    },
    /// A member is in another group now.
    Moved {
        /// The vector's place, from 0, in the order of coming.
        member: usize,
        /// Its group.
        into: GroupId,
    },
}

/// Groups of vectors of one dimension.
#[derive(Debug, Default)]
pub struct Groups {
    dimension: usize,
    /// The threshold that was set; `None`: chosen by the vectors.
    fixed: Option<f32>,
    threshold: f32,
    /// The group of each member.
    of: Vec<GroupId>,
    /// All members' vectors, one after another, as they came.
    members: Vec<f32>,
    /// What is subtracted from them.
    centre: Vec<f32>,
    /// The numbers, counts, sums and means of groups, in the same order.
    ids: Vec<GroupId>,
    counts: Vec<usize>,
    sums: Vec<f32>,
    means: Vec<f32>,
    places: HashMap<GroupId, usize>,
    next: GroupId,
    /// Where `tidy` goes on, and at how many members it looks again.
    cursor: usize,
    due: usize,
    /// At how many members the threshold is chosen again.
    choose_at: usize,
}

impl Groups {
    /// No groups. `threshold`: the least likeness, from -1 to 1; chosen by the vectors if there is none.
    pub fn new(threshold: Option<f32>) -> Self {
        Self {
            fixed: threshold,
            threshold: threshold.unwrap_or(0.6),
            next: 1,
            due: 32,
            choose_at: 32,
            ..Self::default()
        }
    }

    /// The least likeness of a vector and its group.
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there is no vector.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Number of groups.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// The group of a member.
    pub fn of(&self, member: usize) -> GroupId {
        self.of[member]
    }

    /// A member's vector, as it came.
    pub fn vector(&self, member: usize) -> &[f32] {
        &self.members[member * self.dimension..][..self.dimension]
    }

    /// Whether the group exists.
    pub fn has(&self, group: GroupId) -> bool {
        self.places.contains_key(&group)
    }

    /// The likeness of a member and its group.
    pub fn likeness(&self, member: usize) -> f32 {
        let group = self.places.get(&self.of[member]);
        group.map_or(0.0, |&at| dot(&self.centred(self.vector(member)), self.row(at)))
    }

    /// A vector without what all have in common, with length 1.
    fn centred(&self, vector: &[f32]) -> Vec<f32> {
        if self.centre.is_empty() {
            return vector.to_vec();
        }
        let mut centred: Vec<f32> = vector.iter().zip(&self.centre).map(|(value, centre)| value - centre).collect();
        let length = dot(&centred, &centred).sqrt().max(f32::MIN_POSITIVE);
        centred.iter_mut().for_each(|value| *value /= length);
        centred
    }

    fn row(&self, at: usize) -> &[f32] {
        &self.means[at * self.dimension..][..self.dimension]
    }

    /// The place of the group that is most like a vector, besides one.
    fn nearest(&self, vector: &[f32], besides: Option<usize>) -> Option<(usize, f32)> {
        let mut best: Option<(usize, f32)> = None;
        for (at, mean) in self.means.chunks_exact(self.dimension.max(1)).enumerate() {
            let likeness = dot(vector, mean);
            if best.is_none_or(|(_, best)| likeness > best) && besides != Some(at) {
                best = Some((at, likeness));
            }
        }
        best
    }

    /// Number of members of the group that a vector would join.
    pub fn likely_size(&self, vector: &[f32]) -> usize {
        let found = self.nearest(&self.centred(vector), None).filter(|(_, likeness)| *likeness >= self.threshold);
        found.map_or(0, |(at, _)| self.counts[at])
    }

    /// Adds a vector of length 1. Returns the group that it has joined or begun, and what has changed after that.
    ///
    /// # Panics
    ///
    /// The vector has another dimension than the first one.
    pub fn add(&mut self, vector: &[f32]) -> (GroupId, Vec<Change>) {
        let found = self.nearest(&self.centred(vector), None).filter(|(_, likeness)| *likeness >= self.threshold);
        let group = found.map_or(self.next, |(at, _)| self.ids[at]);
        self.put(vector, group);
        let mut changes = Vec::new();
        if found.is_some() {
            self.join(group, &mut changes);
        }
        (group, changes)
    }

    /// Adds a vector to a group that was decided before.
    ///
    /// # Panics
    ///
    /// The vector has another dimension than the first one.
    pub fn put(&mut self, vector: &[f32], group: GroupId) {
        if self.of.is_empty() {
            self.dimension = vector.len();
        }
        assert_eq!(vector.len(), self.dimension, "all vectors have one dimension");
        self.members.extend_from_slice(vector);
        self.of.push(group);
        let at = self.place(group);
        self.change(at, &self.centred(vector), 1);
        if self.len() >= self.choose_at {
            self.choose_at = self.len() * 2;
            self.choose();
        }
    }

    /// The place of a group, which begins if it is not there.
    fn place(&mut self, group: GroupId) -> usize {
        self.next = self.next.max(group + 1);
        if let Some(&at) = self.places.get(&group) {
            return at;
        }
        let at = self.ids.len();
        self.ids.push(group);
        self.counts.push(0);
        self.sums.resize(self.sums.len() + self.dimension, 0.0);
        self.means.resize(self.means.len() + self.dimension, 0.0);
        self.places.insert(group, at);
        at
    }

    /// Adds a vector to a group's sum (1) or takes it away (-1).
    fn change(&mut self, at: usize, vector: &[f32], sign: i32) {
        self.counts[at] = if sign > 0 { self.counts[at] + 1 } else { self.counts[at] - 1 };
        let range = at * self.dimension..(at + 1) * self.dimension;
        let count = self.counts[at].max(1) as f32;
        for ((sum, mean), value) in self.sums[range.clone()].iter_mut().zip(&mut self.means[range]).zip(vector) {
            *sum += sign as f32 * value;
            *mean = *sum / count;
        }
        if self.counts[at] == 0 {
            self.remove(at);
        }
    }

    /// Removes an empty group; the last one takes its place.
    fn remove(&mut self, at: usize) {
        let (last, dimension) = (self.ids.len() - 1, self.dimension);
        self.places.remove(&self.ids[at]);
        self.ids.swap_remove(at);
        self.counts.swap_remove(at);
        for rows in [&mut self.sums, &mut self.means] {
            if at != last {
                rows.copy_within(last * dimension.., at * dimension);
            }
            rows.truncate(last * dimension);
        }
        if at != last {
            self.places.insert(self.ids[at], at);
        }
    }

    /// Joins a group with those that it is like by now.
    fn join(&mut self, group: GroupId, changes: &mut Vec<Change>) {
        let mut group = group;
        while let Some(&at) = self.places.get(&group)
            && let Some((other, likeness)) = self.nearest(self.row(at), Some(at))
            && likeness >= self.threshold
        {
            // The larger group keeps its number; of equal ones, the older.
            let size = |at: usize| (self.counts[at], std::cmp::Reverse(self.ids[at]));
            let (from, into) = if size(at) > size(other) { (other, at) } else { (at, other) };
            let (from, into) = (self.ids[from], self.ids[into]);
            self.merge(from, into);
            changes.push(Change::Merged { from, into });
            group = into;
        }
    }

    /// Moves all members of a group into another one.
    pub fn merge(&mut self, from: GroupId, into: GroupId) {
        let Some(&at) = self.places.get(&from).filter(|_| from != into) else { return };
        let target = self.place(into);
        let sum = self.sums[at * self.dimension..][..self.dimension].to_vec();
        let count = self.counts[at];
        self.counts[target] += count;
        let range = target * self.dimension..(target + 1) * self.dimension;
        let all = self.counts[target] as f32;
        for ((own, mean), value) in self.sums[range.clone()].iter_mut().zip(&mut self.means[range]).zip(sum) {
            *own += value;
            *mean = *own / all;
        }
        self.counts[at] = 0;
        self.remove(at);
        self.of.iter_mut().filter(|group| **group == from).for_each(|group| *group = into);
    }

    /// Moves a member into another group.
    pub fn shift(&mut self, member: usize, into: GroupId) {
        let (from, vector) = (self.of[member], self.centred(self.vector(member)));
        if from == into {
            return;
        }
        if let Some(&at) = self.places.get(&from) {
            self.change(at, &vector, -1);
        }
        let at = self.place(into);
        self.change(at, &vector, 1);
        self.of[member] = into;
    }

    /// Looks again at members, as many as fit into a bounded time, when a quarter more have come since the last time.
    pub fn tidy(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.len() < self.due {
            return changes;
        }
        self.due = self.len() + self.len() / 4 + 1;
        let looked_at = (COMPARISONS / self.count().max(1)).clamp(1, self.len());
        for _ in 0..looked_at {
            self.cursor = (self.cursor + 1) % self.len();
            self.settle(self.cursor, &mut changes);
        }
        changes
    }

    /// Moves a member to the group that is most like it, or to one of its own.
    fn settle(&mut self, member: usize, changes: &mut Vec<Change>) {
        let group = self.of[member];
        let Some(&at) = self.places.get(&group) else { return };
        let vector = self.centred(self.vector(member));
        // Its likeness to the others of its group.
        let count = self.counts[at] as f32;
        let own = match self.counts[at] {
            1 => self.threshold,
            _ => (dot(&vector, self.row(at)) * count - dot(&vector, &vector)) / (count - 1.0),
        };
        let other = self.nearest(&vector, Some(at));
        let into = match other {
            Some((place, likeness)) if likeness >= self.threshold && likeness > own + WORTH_MOVING => self.ids[place],
            _ if own + WORTH_MOVING < self.threshold => self.next,
            _ => return,
        };
        self.shift(member, into);
        changes.push(Change::Moved { member, into });
        self.join(into, changes);
    }

    /// Computes the centre of the groups, the groups' sums without it, and the threshold.
    fn choose(&mut self) {
        let mut means = vec![0.0; self.means.len()];
        for (member, group) in self.of.iter().enumerate() {
            let at = self.places[group];
            let share = 1.0 / self.counts[at] as f32;
            let vector = &self.members[member * self.dimension..][..self.dimension];
            means[at * self.dimension..][..self.dimension]
                .iter_mut()
                .zip(vector)
                .for_each(|(mean, v)| *mean += v * share);
        }
        // Each group counts once, so that a subject that many ask about stays together.
        let mut centre = vec![0.0; self.dimension];
        for mean in means.chunks_exact(self.dimension.max(1)) {
            centre.iter_mut().zip(mean).for_each(|(centre, value)| *centre += value / self.counts.len() as f32);
        }
        self.centre = centre;
        self.sums.fill(0.0);
        for member in 0..self.len() {
            let (at, vector) = (self.places[&self.of[member]], self.centred(self.vector(member)));
            self.sums[at * self.dimension..][..self.dimension].iter_mut().zip(&vector).for_each(|(sum, v)| *sum += v);
        }
        for (at, count) in self.counts.iter().enumerate() {
            let range = at * self.dimension..(at + 1) * self.dimension;
            let sums = self.sums[range.clone()].iter();
            self.means[range].iter_mut().zip(sums).for_each(|(mean, sum)| *mean = sum / *count as f32);
        }
        self.threshold = self.fixed.unwrap_or_else(|| self.chosen());
    }

    /// The threshold that fits the vectors: far above what two of them have in common by chance.
    fn chosen(&self) -> f32 {
        let count = self.len().min(SAMPLE);
        let sample: Vec<(GroupId, Vec<f32>)> = (0..count)
            .map(|i| i * self.len() / count)
            .map(|member| (self.of[member], self.centred(self.vector(member))))
            .collect();
        let mut likeness = Vec::with_capacity(count * count / 2);
        for (at, (group, one)) in sample.iter().enumerate() {
            let others = sample[..at].iter().filter(|(other, _)| other != group);
            likeness.extend(others.map(|(_, other)| dot(one, other)));
        }
        let count = likeness.len().max(1) as f32;
        let mean = likeness.iter().sum::<f32>() / count;
        let deviation = (likeness.iter().map(|one| (one - mean).powi(2)).sum::<f32>() / count).sqrt();
        (mean + DEVIATIONS * deviation).clamp(0.3, 0.9)
    }
}

/// How many standard deviations above the mean likeness of vectors of different groups the threshold lies.
const DEVIATIONS: f32 = 4.7;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vector::Codes;

    /// A vector near one of several directions.
    fn vector(direction: usize, noise: &[f32]) -> Vec<f32> {
        let mut vector: Vec<f32> = noise.to_vec();
        vector[direction] += 2.0;
        Codes::of(&vector).unit()
    }

    #[test]
    fn vectors_of_one_direction_are_one_group() {
        let mut groups = Groups::new(None);
        for i in 0..200_usize {
            let noise: Vec<f32> = (0..16).map(|d| ((i * 7 + d * 13) as f32).sin() * 0.2).collect();
            groups.add(&vector(i % 5, &noise));
            groups.tidy();
        }
        assert_eq!(groups.count(), 5);
        for member in 0..groups.len() {
            assert_eq!(groups.of(member), groups.of(member % 5));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// What was decided, taken in again in its order, gives the same groups.
        #[test]
        fn decisions_give_the_groups_again(
            asked in prop::collection::vec((0_usize..6, prop::collection::vec(-1.0_f32..1.0, 8)), 1..160),
            fixed in prop::option::of(0.3_f32..0.9),
        ) {
            let (mut groups, mut again) = (Groups::new(fixed), Groups::new(fixed));
            for (direction, noise) in asked {
                let vector = vector(direction, &noise);
                let (group, changes) = groups.add(&vector);
                again.put(&vector, group);
                for change in changes.into_iter().chain(groups.tidy()) {
                    match change {
                        Change::Merged { from, into } => again.merge(from, into),
                        Change::Moved { member, into } => again.shift(member, into),
                    }
                }
            }
            let of = |groups: &Groups| (0..groups.len()).map(|member| groups.of(member)).collect::<Vec<_>>();
            prop_assert_eq!(of(&groups), of(&again));
            prop_assert_eq!(groups.count(), again.count());
            prop_assert_eq!(groups.count(), of(&groups).into_iter().collect::<std::collections::HashSet<_>>().len());
            // Sums are those of the members.
            for member in 0..groups.len() {
                prop_assert!((groups.likeness(member) - again.likeness(member)).abs() < 1e-3);
            }
        }
    }
}
