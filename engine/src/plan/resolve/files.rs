//! Checks output files: no two nodes write the same file, and no node writes a file that the pipeline reads.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::path::{Path, PathBuf};

use super::Resolver;
use super::corpora::PlannedCorpora;
use crate::claims;
use crate::plan::{NodeKind, PlannedNode};
use crate::spec::{Diagnostic, Entry, FilePath, Span, Tree};

impl Resolver<'_> {
    /// Reports two sinks that append to one file: after a restart, their answers could not be distinguished.
    /// Also reports a sink that writes a file that a source or a corpus reads: it would read answers.
    pub(super) fn sinks_files(&mut self, nodes: &[(&Entry, PlannedNode)], corpora: &PlannedCorpora) {
        let mut known: BTreeMap<PathBuf, (&str, &str)> = BTreeMap::new();
        for (entry, node) in nodes {
            if let NodeKind::Source(config) = &node.kind
                && let Some(file) = config.file()
            {
                known.insert(claims::real(file), (&entry.key.text, "read"));
            }
        }
        for (entry, node) in nodes {
            let NodeKind::Sink(config) = &node.kind else { continue };
            let place = entry.value.get("path").map_or(entry.value.span, |tree| tree.span);
            let owner = format!("{} `{}`", node.kind_name, node.id);
            let file = config.file().filter(|file| !file.exists() || file.is_file());
            let another = config.another_file();
            if let Some(file) = &another {
                self.read_by_a_corpus(&owner, "its own answers", file, place, corpora);
            }
            // A source may read what a sink writes beside its answers.
            let another = another.as_deref().filter(|file| !file.exists() || file.is_file());
            let others = file.map(|file| (file, true)).into_iter().chain(another.map(|file| (file, false)));
            let clash = others.filter_map(|(file, is_first)| match known.entry(claims::real(file)) {
                Slot::Vacant(slot) => {
                    slot.insert((&entry.key.text, "written"));
                    None
                }
                Slot::Occupied(slot) => Some(*slot.get()).filter(|(_, how)| is_first || *how == "written"),
            });
            // Files in one directory clash together.
            if let Some((other, how)) = clash.collect::<Vec<_>>().into_iter().next() {
                let verb = if how == "read" { "reads" } else { "writes" };
                let (message, label) = match other == entry.key.text {
                    true => (format!("{owner}: it would write two things to one file"), "written twice".to_owned()),
                    false => (format!("{owner}: `{other}` {verb} the same file"), format!("{how} by another node")),
                };
                let diagnostic = Diagnostic::new("same-file", place, message).label(label);
                self.diagnostics.push(diagnostic.help("give each sink a separate file"));
            }
            let Some(file) = file else { continue };
            self.read_by_a_corpus(&owner, "its own answers", file, place, corpora);
        }
    }

    /// Reports a dead-letter file that another part of the pipeline reads or writes.
    pub(super) fn dead_letters_file(
        &mut self,
        tree: &Tree,
        dead_letters: &FilePath,
        nodes: &[PlannedNode],
        corpora: &PlannedCorpora,
    ) {
        let path = claims::real(&dead_letters.path);
        let place = tree.get("dead_letters").map_or(tree.span, |tree| tree.span);
        for node in nodes {
            let (file, another, verb) = match &node.kind {
                NodeKind::Source(config) => (config.file(), None, "reads"),
                NodeKind::Sink(config) => (config.file(), config.another_file(), "writes"),
                NodeKind::Operator(_) => (None, None, ""),
            };
            if [file, another.as_deref()].into_iter().flatten().any(|file| claims::real(file) == path) {
                let message = format!("`dead_letters`: {} `{}` {verb} the same file", node.kind_name, node.id);
                let diagnostic = Diagnostic::new("same-file", place, message).label("used by a node");
                self.diagnostics.push(diagnostic.help("give the dead letters a separate file"));
            }
        }
        self.read_by_a_corpus("`dead_letters`", "its own dead letters", &dead_letters.path, place, corpora);
    }

    fn read_by_a_corpus(&mut self, owner: &str, what: &str, file: &Path, place: Span, corpora: &PlannedCorpora) {
        let file = claims::real(file);
        for (name, corpus) in corpora {
            if corpus.as_ref().is_some_and(|corpus| corpus.source.reads(&file)) {
                let message = format!("{owner}: the corpus `{name}` reads what it writes, and would index {what}");
                let diagnostic = Diagnostic::new("same-file", place, message).label("read by a corpus");
                self.diagnostics.push(diagnostic.help("write to a path that no corpus reads"));
            }
        }
    }
}
