//! The processes of a cluster: finds, ends and stops them.

use std::process::Child;
use std::time::{Duration, Instant};

/// How long a cluster may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stops a cluster as an operator does.
pub(crate) fn stop(mut cluster: Child, members: &[i32]) -> anyhow::Result<()> {
    send(cluster.id() as i32, libc::SIGTERM);
    let until = Instant::now() + PATIENCE;
    while cluster.try_wait()?.is_none() {
        if Instant::now() > until {
            anyhow::bail!("the cluster does not stop");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_for(members)
}

/// Waits until these processes have ended.
pub(crate) fn wait_for(members: &[i32]) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    // SAFETY: Signal 0 only asks whether there is such a process.
    while members.iter().any(|member| unsafe { libc::kill(*member, 0) } == 0) {
        if Instant::now() > until {
            anyhow::bail!("processes do not end without their supervisor");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

pub(crate) fn send(process: i32, signal: i32) {
    // SAFETY: The processes are this program's own.
    unsafe { libc::kill(process, signal) };
}

/// The processes that a process has started. Linux only.
pub(crate) fn children(of: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}
