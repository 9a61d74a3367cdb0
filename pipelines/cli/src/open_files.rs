//! Raises the open-file limit.

/// Raises the process's open-file limit as far as the system allows without privileges, and returns it. Each
/// connection needs one file. Many systems have a low limit, 1024, for programs that cannot handle more.
///
/// `None` if the system does not report it.
#[cfg(unix)]
pub fn raise_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it writes to `limit`, which is valid and owned here.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: it reads `raised`, which is valid and owned here.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } == 0;
    Some(if is_raised { raised.rlim_cur } else { limit.rlim_cur })
}

/// Does nothing on other systems.
#[cfg(not(unix))]
pub fn raise_limit() -> Option<u64> {
    None
}
