//! The processes and workers of a cluster, and which of them own what.

use differential_dataflow::Hashable;

use crate::connector::Offsets;

/// Number of shards of a corpus, whatever the number of processes is.
pub const SHARDS: u64 = 1024;

/// The processes of a run and their workers. A run of one process is a cluster of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of this process, from 0.
    pub process: usize,
    /// Number of processes.
    pub processes: usize,
    /// Number of workers of each process.
    pub workers: usize,
}

impl Shape {
    /// A run of one process.
    pub fn alone(workers: usize) -> Self {
        Self { process: 0, processes: 1, workers: workers.max(1) }
    }

    /// Whether there are other processes.
    pub fn is_cluster(&self) -> bool {
        self.processes > 1
    }

    /// Whether this process leads the cluster: it reads what one process must read, and writes what one must write.
    pub fn is_first(&self) -> bool {
        self.process == 0
    }

    /// The number of this process's first worker among all workers of the cluster.
    pub fn first_worker(&self) -> usize {
        self.process * self.workers
    }

    /// The number of one of this process's workers among them.
    pub fn local(&self, index: usize) -> usize {
        index - self.first_worker()
    }

    /// The process that owns a document.
    pub fn owner(&self, document: &str) -> usize {
        let shard = document.hashed() % SHARDS;
        (shard * self.processes as u64 / SHARDS) as usize
    }

    /// The worker that cuts a document: one of the process that owns it.
    pub fn worker_of(&self, document: &str) -> u64 {
        let worker = document.hashed() / SHARDS % self.workers as u64;
        (self.owner(document) * self.workers) as u64 + worker
    }

    /// One of this process's workers, by a hash.
    pub fn own_worker(&self, hash: u64) -> u64 {
        self.first_worker() as u64 + hash % self.workers as u64
    }

    /// What this process reads of a source that all processes read together.
    pub(crate) fn share(&self) -> Share {
        Share::new(self.process, self.processes)
    }
}

/// What a process reads of a source with partitions.
///
/// ```
/// use turnflow_engine::cluster::Share;
///
/// assert!(Share::WHOLE.has("3"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    process: usize,
    processes: usize,
}

impl Share {
    /// Every partition.
    pub const WHOLE: Self = Self { process: 0, processes: 1 };

    /// What this process of several reads; `process` is less than `processes`.
    pub fn new(process: usize, processes: usize) -> Self {
        Self { process, processes: processes.max(1) }
    }

    /// Whether this process reads a partition. Exactly one process of a cluster does.
    pub fn has(&self, partition: &str) -> bool {
        let number = partition.parse::<u64>().unwrap_or_else(|_| partition.hashed());
        number % self.processes as u64 == self.process as u64
    }

    /// The offsets of the partitions that this process reads.
    pub(crate) fn of(&self, offsets: &Offsets) -> Offsets {
        offsets.iter().filter(|offset| self.has(&offset.partition)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_owns_its_share_and_only_shards_move() {
        let ids: Vec<String> = (0..20_000).map(|n| format!("document {n}")).collect();
        for processes in [1, 2, 3, 4, 7] {
            let shape = Shape { process: 0, processes, workers: 3 };
            let mut owned = vec![0_usize; processes];
            for id in &ids {
                let owner = shape.owner(id);
                owned[owner] += 1;
                assert_eq!(shape.worker_of(id) as usize / 3, owner);
            }
            let share = ids.len() / processes;
            assert!(owned.iter().all(|owned| owned.abs_diff(share) < share / 5), "{processes}: {owned:?}");
        }
        for partition in ["0", "1", "17", "part-3.parquet", ""] {
            let reads = |process| Shape { process, processes: 3, workers: 2 }.share().has(partition);
            assert_eq!((0..3).filter(|process| reads(*process)).count(), 1, "{partition}");
        }
        // A process that stays keeps half of its shards, and gives away the others.
        let (two, four) =
            (Shape { process: 0, processes: 2, workers: 1 }, Shape { process: 0, processes: 4, workers: 1 });
        assert!(ids.iter().all(|id| four.owner(id) / 2 == two.owner(id)));
    }
}
