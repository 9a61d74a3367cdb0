//! What kind of file system a file is on: whether it reports changes, and whether its files are those of the system.

use std::fs::File;
use std::path::Path;

/// Which changes of a file system are reported as events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reports {
    /// All changes by ordinary means.
    All,
    /// Those that are made through this file system, and not those of the layers below it.
    Own,
    /// Those that this machine makes. The name of the file system is for messages.
    Local(&'static str),
}

/// File systems whose files others change, by the numbers of `statfs(2)`.
const SHARED: &[(u64, &str)] = &[
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
    (0x7C7C_6673, "prl_fs"),
    (0x00C3_6400, "ceph"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x564C, "ncp"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x7461_636F, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x1983_0326, "beegfs"),
    (0x2003_0528, "orangefs"),
    (0xAAD7_AAEA, "panfs"),
];
/// File systems that show layers of others.
const LAYERED: &[u64] = &[0x794C_7630, 0xF15F, 0x6174_6C61];
/// File systems of the kernel, whose files are no documents: what a process has in its environment, for example.
const OF_THE_SYSTEM: &[u64] = &[
    0x9FA0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_E0EB, // cgroup
    0x6367_7270, // cgroup2
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xDE5E_81E4, // efivarfs
    0x6165_676C, // pstore
    0xF97C_FF8C, // selinux
    0x1CD1,      // devpts
    0xCAFE_4A11, // bpf
    0x4249_4E4D, // binfmt_misc
    0x1980_0202, // mqueue
];

/// The number of the file system with this path; `None` if it is unknown.
#[cfg(target_os = "linux")]
fn number_of(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: both pointers are valid, and the structure is read only if the call has filled it.
    let found = unsafe { (libc::statfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init()) };
    // The type of the field differs between platforms; the numbers have 32 bits.
    found.map(|found| found.f_type as u64 & 0xFFFF_FFFF)
}

/// The same of an open file.
#[cfg(target_os = "linux")]
fn number_of_open(file: &File) -> Option<u64> {
    use std::os::fd::AsRawFd as _;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: as above, and the descriptor is open.
    let found = unsafe { (libc::fstatfs(file.as_raw_fd(), found.as_mut_ptr()) == 0).then(|| found.assume_init()) };
    found.map(|found| found.f_type as u64 & 0xFFFF_FFFF)
}

#[cfg(not(target_os = "linux"))]
fn number_of(_: &Path) -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn number_of_open(_: &File) -> Option<u64> {
    None
}

/// Which changes below a path are reported.
pub(crate) fn reports(path: &Path) -> Reports {
    let Some(number) = number_of(path) else { return Reports::All };
    match SHARED.iter().find(|(shared, _)| *shared == number) {
        Some((_, name)) => Reports::Local(name),
        None if LAYERED.contains(&number) => Reports::Own,
        None => Reports::All,
    }
}

/// Whether an open file is one of the kernel's own.
pub(crate) fn is_of_the_system(file: &File) -> bool {
    number_of_open(file).is_some_and(|number| OF_THE_SYSTEM.contains(&number))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_known() {
        assert!(is_of_the_system(&File::open("/proc/self/environ").unwrap()));
        assert!(!is_of_the_system(&tempfile::tempfile().unwrap()));
        assert_ne!(reports(Path::new("/proc")), Reports::Own);
        assert_eq!(reports(Path::new("/no/such/path")), Reports::All);
    }
}
