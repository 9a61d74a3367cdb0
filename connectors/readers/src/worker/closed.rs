//! Closes a child off: whatever a file makes it do, it reaches no file but fonts, no network and no program.
//!
//! Files are closed by Landlock, the rest by a filter of system calls (seccomp), as far as the kernel has them. Both hold
//! for the calling thread and for those that it starts, and cannot be taken back.

use std::collections::BTreeMap;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// Where fonts are: pdfium draws pages with them that do not bring their own.
const FONTS: &[&str] = &["/usr/share/fonts", "/usr/local/share/fonts", "/usr/share/X11/fonts"];
/// What Landlock is asked for; an older kernel does what it can.
const KNOWN: ABI = ABI::V6;

/// Calls that reach other computers, programs and processes, or the kernel's rarer parts.
const CALLS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_kill,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

/// Calls that open or change files by their names; Landlock does this better.
const FILES: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_renameat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
];

/// Closes this thread off. Returns what stays open because the kernel cannot close it. Libraries that the thread needs must
/// have been loaded before.
pub(super) fn close() -> Option<String> {
    let files = match files() {
        Ok(RulesetStatus::NotEnforced) => Some("the kernel has no Landlock".to_owned()),
        Ok(_) => None,
        Err(error) => Some(format!("Landlock: {error}")),
    };
    // Without Landlock, no file is opened at all.
    let calls = calls(if files.is_some() { FILES } else { &[] }).err();
    match (files, calls) {
        (None, None) => None,
        (Some(files), None) => Some(format!("{files}; readers use no fonts of the system")),
        (None, Some(calls)) => Some(calls),
        (Some(files), Some(calls)) => Some(format!("{files}, and {calls}")),
    }
}

fn files() -> Result<RulesetStatus, RulesetError> {
    let closed = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rules(path_beneath_rules(FONTS, AccessFs::from_read(KNOWN)))?;
    // A build that counts which lines run writes its counts at the end.
    let counts = std::env::var_os("LLVM_PROFILE_FILE");
    let counts = counts.as_deref().map(Path::new).and_then(Path::parent);
    let closed = closed.add_rules(path_beneath_rules(counts, AccessFs::from_all(KNOWN)))?;
    Ok(closed.restrict_self()?.ruleset)
}

/// Has these calls and those that are always refused fail with `EPERM`.
fn calls(more: &[i64]) -> Result<(), String> {
    let wrong = |error: seccompiler::BackendError| format!("system calls stay open: {error}");
    let rules: BTreeMap<i64, Vec<_>> = CALLS.iter().chain(more).map(|call| (*call, Vec::new())).collect();
    let architecture = std::env::consts::ARCH.try_into().map_err(wrong)?;
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture).map_err(wrong)?;
    let program: BpfProgram = filter.try_into().map_err(wrong)?;
    apply_filter(&program).map_err(|error| format!("system calls stay open: {error}"))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::net::{TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    /// What is closed for a thread is open for the others.
    #[test]
    fn a_closed_thread_reaches_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        fs::write(&file, "x").unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tries = || {
            [
                File::open(&file).is_ok(),
                fs::write(directory.path().join("new"), "x").is_ok(),
                fs::remove_file(&file).is_ok(),
                fs::read_dir("/etc").is_ok(),
                TcpStream::connect(address).is_ok(),
                UdpSocket::bind("127.0.0.1:0").is_ok(),
                UnixStream::connect(directory.path().join("none"))
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound),
                Command::new("true").status().is_ok(),
            ]
        };
        std::thread::scope(|scope| {
            // By the calls alone, as on a kernel without Landlock.
            let (closed, reached) = scope.spawn(|| (calls(FILES), tries())).join().unwrap();
            if let Err(reason) = closed {
                println!("skipped: {reason}");
                return;
            }
            assert_eq!(reached, [false; 8]);
            let (open, reached, fonts) = scope.spawn(|| (close(), tries(), fs::read_dir(FONTS[0]))).join().unwrap();
            match open {
                None => assert_eq!(fonts.is_ok(), Path::new(FONTS[0]).exists()),
                Some(open) => println!("{open}"),
            }
            assert_eq!(reached, [false; 8]);
        });
        assert_eq!(tries(), [true; 8]);
    }
}
