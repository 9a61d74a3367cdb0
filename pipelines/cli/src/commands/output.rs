//! Writes to the terminal or a pipe, whose reader may have closed it. Also checks output files before long work.

use std::fmt::Arguments;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::anyhow;

use super::Fault;

/// Writes to standard output. If the reader has closed it (`turnflow explain … | head -1`), the
/// process exits silently.
pub(super) fn write(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    tell(format_args!("error: cannot write to standard output: {error}"));
    std::process::exit(3);
}

/// Writes a line to standard error; ignores errors.
pub(super) fn tell(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Checks that the file of an option can be written, before the work begins whose result it gets. The
/// file's content stays as it is, and a file that does not exist is not left behind.
pub(super) fn check_file(option: &str, path: Option<&Path>) -> Result<(), Fault> {
    let Some(path) = path else { return Ok(()) };
    can_write(path).map_err(|error| fault(option, path, &error))
}

/// Refuses an output file that is the journal whose content it would get.
pub(super) fn check_apart(option: &str, path: Option<&Path>, journal: &Path) -> Result<(), Fault> {
    let is_same = |path: &Path| path.canonicalize().ok().zip(journal.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    match path.filter(|path| is_same(path)) {
        Some(path) => {
            Err(Fault::Told(anyhow!("{option} {}: this is the journal itself, which would be lost", path.display())))
        }
        None => Ok(()),
    }
}

/// The same for the directory of an option, in which these files will be written.
pub(super) fn check_directory(option: &str, path: Option<&Path>, files: &[&str]) -> Result<(), Fault> {
    let Some(path) = path else { return Ok(()) };
    if path.is_dir() {
        return files.iter().map(|file| path.join(file)).try_for_each(|file| check_file(option, Some(&file)));
    }
    // It is created with the directories above it, so the nearest one that exists must be writable.
    let above = path.ancestors().skip(1).map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let nearest = above.into_iter().find(|above| above.exists()).unwrap_or(Path::new("."));
    let can_create = match path.exists() {
        true => Err(ErrorKind::NotADirectory.into()),
        false => can_write(&nearest.join(format!(".turnflow-{}", std::process::id()))),
    };
    can_create.map_err(|error| fault(option, path, &error))
}

fn fault(option: &str, path: &Path, error: &io::Error) -> Fault {
    Fault::Told(anyhow!("`{option}`: cannot write `{}`: {error}", path.display()))
}

fn can_write(path: &Path) -> io::Result<()> {
    let is_new = match std::fs::metadata(path) {
        // To open a device or a pipe has effects.
        Ok(found) if !found.is_file() && !found.is_dir() => return Ok(()),
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(error) => return Err(error),
    };
    OpenOptions::new().append(true).create(true).open(path)?;
    if is_new {
        // The path may be a link to a file that did not exist.
        std::fs::remove_file(std::fs::canonicalize(path)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_checked_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old.json"), dir.path().join("new.json"));
        std::fs::write(&old, "kept").unwrap();
        for path in [&old, &new] {
            assert!(check_file("--output", Some(path)).is_ok());
        }
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "kept");
        assert!(!new.exists());
        assert!(check_directory("--report", Some(&dir.path().join("a/b")), &["index.html"]).is_ok());
        assert!(!dir.path().join("a").exists());
        assert!(check_file("--output", Some(Path::new("/dev/null"))).is_ok());
    }

    #[test]
    fn an_error_names_the_option() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(dir.path().join("index.html")).unwrap();
        for found in [
            check_file("--run", Some(&dir.path().join("missing/out.trec"))),
            check_file("--run", Some(dir.path())),
            check_file("--run", Some(&file.join("out.trec"))),
            check_directory("--run", Some(&file), &[]),
            check_directory("--run", Some(&file.join("report")), &[]),
            check_directory("--run", Some(dir.path()), &["index.html"]),
        ] {
            let Err(Fault::Told(error)) = found else { panic!("no error") };
            assert!(error.to_string().starts_with("`--run`: cannot write `"), "{error}");
        }
    }
}
