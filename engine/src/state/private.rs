//! Keeps the state directory for its owner: nobody else can enter it, and at the start and the end of a run, nothing in it
//! is for others. The libraries that write indexes choose the permissions of their files themselves.

use std::io;
use std::path::Path;

/// Creates a directory that only its owner can enter, and those above it, if they do not exist.
pub(super) fn create(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Takes away the permissions of others on everything at and below a path. Links are not followed. What belongs to
/// another user stays as it is.
#[cfg(unix)]
pub(super) fn tighten(path: &Path) {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    let Ok(metadata) = std::fs::symlink_metadata(path) else { return };
    if metadata.is_symlink() {
        return;
    }
    let mode = metadata.permissions().mode();
    if mode & 0o077 != 0
        && let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(mode & 0o7700))
    {
        tracing::debug!(path = %path.display(), %error, "others may read this part of the state");
    }
    if metadata.is_dir() {
        std::fs::read_dir(path).into_iter().flatten().flatten().for_each(|entry| tighten(&entry.path()));
    }
}

#[cfg(not(unix))]
pub(super) fn tighten(_: &Path) {}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::StateDirectory;

    #[test]
    fn state_is_for_its_owner() {
        let base = tempfile::tempdir().unwrap();
        let (state, outside) = (base.path().join("a/state"), base.path().join("outside"));
        fs::write(&outside, "of others").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o644)).unwrap();
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let held = StateDirectory::open(&state).unwrap();
        assert_eq!((mode(&state), mode(&base.path().join("a"))), (0o700, 0o700));
        // As a library writes it.
        let index = held.index("docs", "bm25").unwrap();
        fs::write(index.join("data"), "text").unwrap();
        fs::set_permissions(index.join("data"), Permissions::from_mode(0o664)).unwrap();
        symlink(&outside, state.join("link")).unwrap();
        drop(held);
        assert_eq!((mode(&index), mode(&index.join("data")), mode(&outside)), (0o700, 0o600, 0o644));
        assert_eq!(mode(&state.join("format")), 0o600);
        // What an earlier version has left.
        for path in [&state, &index, &index.join("data")] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let _held = StateDirectory::open(&state).unwrap();
        assert_eq!((mode(&state), mode(&index), mode(&index.join("data"))), (0o700, 0o700, 0o700));
    }
}
