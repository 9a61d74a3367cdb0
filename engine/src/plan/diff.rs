//! The difference between two plans as a value. A reload applies and reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::{AnswerCacheSettings, AnswerMode, Conversations, Plan};
use crate::component::{Aliases, CorpusRef};

/// The comparable part of a plan: names and hashes of definitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanFingerprint {
    /// Hash of the whole plan.
    pub hash: Arc<str>,
    models: BTreeMap<Arc<str>, Part>,
    corpora: BTreeMap<Arc<str>, Part>,
    nodes: BTreeMap<Arc<str>, Part>,
    aliases: Aliases,
    conversations: Option<Conversations>,
    mode: AnswerMode,
    cache: Option<AnswerCacheSettings>,
    /// Optional models that are not loaded; in a plan that does not run yet, those that lack files.
    lacking: BTreeSet<Arc<str>>,
}

/// A part of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    definition: Arc<str>,
    settings: Arc<str>,
    models: BTreeSet<Arc<str>>,
    /// The corpora that it reads; `None` if the turn names the corpus.
    corpora: BTreeSet<Option<Arc<str>>>,
}

impl PlanFingerprint {
    /// The fingerprint of a plan.
    pub fn of(plan: &Plan) -> Self {
        let part = |definition: &Arc<str>| Part {
            definition: definition.clone(),
            settings: definition.clone(),
            models: BTreeSet::new(),
            corpora: BTreeSet::new(),
        };
        let models = plan.models.iter().map(|(name, model)| (name.as_str().into(), part(&model.definition)));
        let corpora = plan.corpora.iter().map(|corpus| {
            let models = corpus.models().map(Into::into).collect();
            (corpus.name.clone(), Part { models, ..part(&corpus.definition) })
        });
        let nodes = plan.nodes.iter().map(|node| {
            let mut this = Part { settings: node.settings.clone(), ..part(&node.definition) };
            this.models.extend(node.models().iter().map(|model| Arc::from(model.name)));
            for config in node.operators() {
                this.corpora.extend(config.corpus().map(|corpus| match corpus {
                    CorpusRef::Named(name) => Some(name.as_str().into()),
                    CorpusRef::FromTurn => None,
                }));
            }
            (node.id.clone(), this)
        });
        let lacking = plan.models.iter().filter(|(_, model)| !model.missing.is_empty());
        let lacking = lacking.map(|(name, _)| name.as_str().into()).collect();
        Self {
            hash: plan.hash.clone(),
            models: models.collect(),
            corpora: corpora.collect(),
            nodes: nodes.collect(),
            aliases: plan.aliases(),
            conversations: Some(plan.conversations.clone()),
            mode: plan.mode.clone(),
            cache: plan.cache.clone(),
            lacking,
        }
    }

    /// Whether both plans give the same answers from the same passages: they differ in the sources of the corpora, in how
    /// these are cut, and in limits at most.
    pub fn answers_like(&self, other: &Self) -> bool {
        let names = |parts: &BTreeMap<Arc<str>, Part>| parts.keys().cloned().collect::<Vec<_>>();
        self.models == other.models
            && self.nodes == other.nodes
            && self.aliases == other.aliases
            && names(&self.corpora) == names(&other.corpora)
    }

    /// The fingerprint of a plan that runs without these models.
    pub(crate) fn running_without(mut self, lacking: impl Iterator<Item = Arc<str>>) -> Self {
        self.lacking = lacking.collect();
        self
    }
}

impl PlanFingerprint {
    /// Whether it has this node with these settings, whatever its inputs.
    pub fn same_settings(&self, id: &str, settings: &str) -> bool {
        self.nodes.get(id).is_some_and(|node| *node.settings == *settings)
    }
}

/// How a reload changes a part of the running plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is unchanged and keeps its state.
    Kept,
    /// It is only in the new plan.
    Added,
    /// It is only in the old plan.
    Removed,
    /// It is in both plans and differs, for these reasons.
    Changed(Vec<String>),
}

/// The difference between two plans, by name or id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanDiff {
    /// Models.
    pub models: BTreeMap<Arc<str>, ChangeKind>,
    /// Corpora.
    pub corpora: BTreeMap<Arc<str>, ChangeKind>,
    /// Nodes.
    pub nodes: BTreeMap<Arc<str>, ChangeKind>,
    /// Whether the limits of conversations differ.
    pub conversations: bool,
    /// Whether the answer modes or the answer caches differ.
    pub mode: bool,
    /// Whether the hashes differ.
    pub hash: bool,
}

impl PlanDiff {
    /// The changes from one plan to another.
    pub fn between(old: &PlanFingerprint, new: &PlanFingerprint) -> Self {
        let models = changes(&old.models, &new.models, |name, _| {
            let returns = old.lacking.contains(name) && !new.lacking.contains(name);
            returns.then(|| "it was not loaded".to_owned()).into_iter().collect()
        });
        let corpora = changes(&old.corpora, &new.corpora, |_, part| changed(&part.models, &models, "model"));
        let nodes = changes(&old.nodes, &new.nodes, |_, part| {
            let mut reasons = changed(&part.models, &models, "model");
            if part.corpora.contains(&None) {
                reasons.extend(changed(&corpora.keys().cloned().collect(), &corpora, "corpus"));
                reasons.extend((old.aliases != new.aliases).then(|| "aliases of corpora".to_owned()));
            } else {
                reasons.extend(changed(&part.corpora.iter().flatten().cloned().collect(), &corpora, "corpus"));
            }
            reasons
        });
        let conversations = old.conversations != new.conversations;
        let mode = (&old.mode, &old.cache) != (&new.mode, &new.cache);
        Self { models, corpora, nodes, conversations, mode, hash: old.hash != new.hash }
    }

    /// Whether the plans are equal.
    pub fn is_empty(&self) -> bool {
        let kept =
            |changes: &BTreeMap<Arc<str>, ChangeKind>| changes.values().all(|change| *change == ChangeKind::Kept);
        kept(&self.models)
            && kept(&self.corpora)
            && kept(&self.nodes)
            && !self.conversations
            && !self.mode
            && !self.hash
    }

    /// Whether a part is the same in both plans.
    pub fn keeps(changes: &BTreeMap<Arc<str>, ChangeKind>, name: &str) -> bool {
        changes.get(name) == Some(&ChangeKind::Kept)
    }
}

fn changes(
    old: &BTreeMap<Arc<str>, Part>,
    new: &BTreeMap<Arc<str>, Part>,
    through: impl Fn(&str, &Part) -> Vec<String>,
) -> BTreeMap<Arc<str>, ChangeKind> {
    let names: BTreeSet<&Arc<str>> = old.keys().chain(new.keys()).collect();
    let change = |name: &Arc<str>| match (old.get(name), new.get(name)) {
        (None, _) => ChangeKind::Added,
        (_, None) => ChangeKind::Removed,
        (Some(old), Some(new)) => {
            let mut reasons = Vec::new();
            if old.settings != new.settings {
                reasons.push("settings".to_owned());
            } else if old.definition != new.definition {
                reasons.push("inputs".to_owned());
            }
            reasons.extend(through(name, new));
            if reasons.is_empty() { ChangeKind::Kept } else { ChangeKind::Changed(reasons) }
        }
    };
    names.into_iter().map(|name| (name.clone(), change(name))).collect()
}

/// The members of `used` that are not kept, as reasons.
fn changed(used: &BTreeSet<Arc<str>>, changes: &BTreeMap<Arc<str>, ChangeKind>, what: &str) -> Vec<String> {
    let changed = used.iter().filter(|name| changes.get(*name).is_some_and(|change| *change != ChangeKind::Kept));
    changed.map(|name| format!("{what} `{name}`")).collect()
}

impl fmt::Display for PlanDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kept = Vec::new();
        let mut any = false;
        for (one, many, changes) in
            [("model", "models", &self.models), ("corpus", "corpora", &self.corpora), ("node", "nodes", &self.nodes)]
        {
            for (name, change) in changes {
                any |= *change != ChangeKind::Kept;
                match change {
                    ChangeKind::Kept => {}
                    ChangeKind::Added => writeln!(f, "  + {one} `{name}`")?,
                    ChangeKind::Removed => writeln!(f, "  - {one} `{name}`")?,
                    ChangeKind::Changed(reasons) => writeln!(f, "  ~ {one} `{name}`: {}", reasons.join(", "))?,
                }
            }
            let count = changes.values().filter(|change| **change == ChangeKind::Kept).count();
            if count > 0 {
                kept.push(format!("{count} {}", if count == 1 { one } else { many }));
            }
        }
        if self.conversations {
            writeln!(f, "  ~ conversations")?;
        }
        if self.mode {
            writeln!(f, "  ~ mode")?;
        }
        if !any && !self.conversations && !self.mode && self.hash {
            writeln!(f, "  ~ other settings")?;
        }
        match kept.is_empty() {
            true => write!(f, "  kept: nothing"),
            false => write!(f, "  kept: {}", kept.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(definition: &str, settings: &str, models: &[&str], corpus: Option<&str>) -> Part {
        Part {
            definition: definition.into(),
            settings: settings.into(),
            models: models.iter().map(|name| (*name).into()).collect(),
            corpora: corpus.map(|name| (name != "FromTurn").then(|| name.into())).into_iter().collect(),
        }
    }

    fn outline(models: &[(&str, &str)], corpora: &[(&str, &str)], nodes: &[(&str, Part)]) -> PlanFingerprint {
        let simple = |parts: &[(&str, &str)]| {
            parts.iter().map(|(name, definition)| ((*name).into(), part(definition, definition, &[], None))).collect()
        };
        PlanFingerprint {
            hash: format!("{models:?}{corpora:?}{nodes:?}").as_str().into(),
            models: simple(models),
            corpora: simple(corpora),
            nodes: nodes.iter().map(|(id, part)| ((*id).into(), part.clone())).collect(),
            aliases: Aliases::default(),
            conversations: None,
            mode: AnswerMode::Once,
            cache: None,
            lacking: BTreeSet::new(),
        }
    }

    #[test]
    fn a_model_that_was_not_loaded_is_tried_again_when_its_files_are_there() {
        let nodes = [("dense", part("d", "d", &["minilm"], Some("docs")))];
        let new = outline(&[("minilm", "1")], &[("docs", "1")], &nodes);
        let lacking = |outline: &PlanFingerprint| outline.clone().running_without(["minilm".into()].into_iter());
        let diff = PlanDiff::between(&lacking(&new), &new);
        assert_eq!(diff.models["minilm"], ChangeKind::Changed(vec!["it was not loaded".into()]));
        assert_eq!(diff.nodes["dense"], ChangeKind::Changed(vec!["model `minilm`".into()]));
        assert_eq!(diff.corpora["docs"], ChangeKind::Kept);
        assert!(PlanDiff::between(&lacking(&new), &lacking(&new)).is_empty());
        assert!(
            PlanDiff::between(&new, &lacking(&new)).is_empty(),
            "a loaded model stays, whatever becomes of its files"
        );
    }

    #[test]
    fn a_change_reaches_what_depends_on_it() {
        let nodes = [
            ("dense", part("d", "d", &["minilm"], Some("docs"))),
            ("routed", part("r", "r", &[], Some("FromTurn"))),
            ("fused", part("f", "f", &[], None)),
        ];
        let old = outline(&[("minilm", "1")], &[("docs", "1"), ("old", "1")], &nodes);
        assert!(PlanDiff::between(&old, &old).is_empty());
        let new = outline(&[("minilm", "2")], &[("docs", "1"), ("more", "1")], &nodes);
        let diff = PlanDiff::between(&old, &new);
        assert_eq!(diff.models["minilm"], ChangeKind::Changed(vec!["settings".into()]));
        assert_eq!(diff.nodes["dense"], ChangeKind::Changed(vec!["model `minilm`".into()]));
        assert_eq!(diff.nodes["routed"], ChangeKind::Changed(vec!["corpus `more`".into(), "corpus `old`".into()]));
        assert_eq!((&diff.corpora["old"], &diff.corpora["more"]), (&ChangeKind::Removed, &ChangeKind::Added));
        assert_eq!(diff.nodes["fused"], ChangeKind::Kept);
        let alias = crate::component::Alias::parse("d*").unwrap();
        let aliased = PlanFingerprint { aliases: Aliases::new([(alias, "docs".into())]), ..old.clone() };
        let diff = PlanDiff::between(&old, &aliased);
        assert_eq!(diff.nodes["routed"], ChangeKind::Changed(vec!["aliases of corpora".into()]));
        assert_eq!((&diff.nodes["dense"], &diff.corpora["docs"]), (&ChangeKind::Kept, &ChangeKind::Kept));
        let diff = PlanDiff::between(&old, &new);
        let told = diff.to_string();
        assert!(
            told.contains("  ~ node `dense`: model `minilm`\n") && told.ends_with("kept: 1 corpus, 1 node"),
            "{told}"
        );
    }

    #[test]
    fn other_inputs_are_told_from_other_settings() {
        let with = |definition, settings| outline(&[], &[], &[("out", part(definition, settings, &[], None))]);
        let change = |new| PlanDiff::between(&with("1", "1"), &new).nodes["out"].clone();
        assert_eq!(change(with("2", "1")), ChangeKind::Changed(vec!["inputs".into()]));
        assert_eq!(change(with("2", "2")), ChangeKind::Changed(vec!["settings".into()]));
    }
}
