//! The allocator of the program, and the limits of the C library's.

/// Allocates memory. On Linux on x86-64 this is jemalloc: threads of the engine free what other threads have allocated,
/// which glibc's allocator does slowly. Other systems use their own.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
pub type Allocator = tikv_jemallocator::Jemalloc;
/// The same.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
pub const ALLOCATOR: Allocator = tikv_jemallocator::Jemalloc;

/// Allocates memory: the system's allocator.
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
pub type Allocator = std::alloc::System;
/// The same.
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
pub const ALLOCATOR: Allocator = std::alloc::System;

/// Makes a program use [`Allocator`]. Call it once, in the root of a binary.
///
/// jemalloc gives freed memory back to the operating system after half a second, on a thread of its own. The variable
/// `_RJEM_MALLOC_CONF` changes its settings.
#[macro_export]
macro_rules! use_allocator {
    () => {
        #[global_allocator]
        static ALLOCATOR: $crate::allocator::Allocator = $crate::allocator::ALLOCATOR;

        /// Read by jemalloc before `main`.
        // SAFETY: jemalloc declares a pointer of this name to a text that ends with a zero, as this is, and nothing else has
        // the name. The pointer is valid for ever.
        #[unsafe(export_name = "_rjem_malloc_conf")]
        pub static ALLOCATOR_SETTINGS: Option<&'static ::std::ffi::c_char> =
            Some(unsafe { &*c"background_thread:true,dirty_decay_ms:500,muzzy_decay_ms:0".as_ptr() });
    };
}

/// Limits glibc, which C libraries such as ONNX Runtime use, to one arena per core, with a minimum of 2. By default, glibc
/// creates up to eight arenas per core as threads appear, and memory that is free in one arena is not available to
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
    // SAFETY: it sets a number, and no other thread allocates with glibc yet. The result says whether the number
    // was accepted; if not, the allocator keeps its default.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, cores as i32) };
}

/// Does nothing for other allocators.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn bound_arenas() {}
