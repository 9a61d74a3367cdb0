//! The processes and workers of a cluster, and which of them own what.

use differential_dataflow::Hashable;

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

    /// Whether this process reads the sources and answers the turns.
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

    /// One of the first process's workers, by a hash.
    pub fn turn_worker(&self, hash: u64) -> u64 {
        hash % self.workers as u64
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
        // A process that stays keeps half of its shards, and gives away the others.
        let (two, four) =
            (Shape { process: 0, processes: 2, workers: 1 }, Shape { process: 0, processes: 4, workers: 1 });
        assert!(ids.iter().all(|id| four.owner(id) / 2 == two.owner(id)));
    }
}
