//! Limits the arenas of the C library's allocator.

/// Limits glibc to one arena per core, with a minimum of 2. By default, glibc creates up to eight
/// arenas per core as threads appear, and memory that is free in one arena is not available to
/// others: a run of about fifty threads held twice the memory that it used. A setting in the
/// environment takes precedence.
///
/// Call it before a second thread exists.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn bound_arenas() {
    if ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"].iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 64));
    // SAFETY: it sets a number, and no other thread allocates yet. The result says whether the number
    // was accepted; if not, the allocator keeps its default.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, cores as i32) };
}

/// Does nothing for other allocators.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bound_arenas() {}
