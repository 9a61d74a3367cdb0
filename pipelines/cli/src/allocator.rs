//! The C library's allocator, told how many threads will run at once.

/// As many arenas as there are cores, 2 at least. Of its own accord glibc makes up to eight a
/// core, one after the other as threads come, and what is free in one serves no other: a run of
/// some fifty threads held twice the memory that it used. A setting in the environment wins.
///
/// To be called before there is a second thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn bound_arenas() {
    if ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"].iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 64));
    // SAFETY: it sets a number, and no other thread allocates yet. What it returns says whether
    // the number was taken; if it was not, memory is as it would have been.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, cores as i32) };
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bound_arenas() {}
