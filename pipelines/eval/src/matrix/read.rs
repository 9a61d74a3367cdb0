//! Reads a matrix file: every mistake is reported with its position.

use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use turnflow_engine::component::Catalog;
use turnflow_engine::plan::{ModelsFile, plan_models};
use turnflow_engine::spec::{
    Diagnostic, Entry, Kind, Loaded, Name, Sources, Span, Tree, did_you_mean, from_tree, load,
};

use super::Column;
use super::config::{ColumnConfig, MatrixConfig, RowConfig, VariantConfig};

/// A matrix.
pub struct Matrix {
    /// Its configuration.
    pub config: MatrixConfig,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, with each variant of the settings.
    pub rows: Vec<Row>,
    pub(super) tree: Tree,
    pub(super) sources: Sources,
}

/// A row of a matrix.
pub struct Row {
    /// Its name, with those of its variants.
    pub name: String,
    /// The name of the row in the file.
    pub base: String,
    /// Its configuration.
    pub config: RowConfig,
    /// Its tree in the file.
    pub(super) tree: Tree,
    /// The values that it sets, by path: its own, then those of its variants.
    pub(super) set: Vec<Entry>,
}

/// The result of reading a matrix file.
pub struct ReadMatrix {
    /// The matrix, if there are no errors.
    pub matrix: Option<Matrix>,
    /// Every mistake, in file order.
    pub diagnostics: Vec<Diagnostic>,
    /// Every text that was read, for rendering the diagnostics.
    pub sources: Sources,
}

/// Whether a file contains `Matrix(…)`.
pub fn is_matrix(file: &Path) -> bool {
    // A pipe can be read only once.
    file.is_file() && load(file, &[]).tree.is_some_and(|tree| tree.name().is_some_and(|name| name.text == "Matrix"))
}

/// Reads a matrix file. The pipelines of its rows are not read; see [`plan_row`](super::plan_row).
pub fn read(file: &Path, catalog: &Catalog) -> ReadMatrix {
    let Loaded { sources, tree, diagnostics } = load(file, &[]);
    let Some(tree) = tree else { return ReadMatrix { matrix: None, diagnostics, sources } };
    let mut reader = Reader { sources: &sources, catalog, diagnostics };
    let matrix = reader.matrix(tree);
    let mut diagnostics = reader.diagnostics;
    diagnostics.sort_by_key(|diagnostic| diagnostic.span.map(|span| (span.source, span.start)));
    let matrix = matrix.filter(|_| diagnostics.is_empty());
    let matrix = matrix.map(|(config, columns, rows, tree)| {
        let sources = sources.clone();
        Matrix { config, columns, rows, tree, sources }
    });
    ReadMatrix { matrix, diagnostics, sources }
}

struct Reader<'a> {
    sources: &'a Sources,
    catalog: &'a Catalog,
    diagnostics: Vec<Diagnostic>,
}

/// A variant of the settings: its name and what it sets.
type Variant = (String, Vec<Entry>);

impl Reader<'_> {
    fn matrix(&mut self, tree: Tree) -> Option<(MatrixConfig, Vec<Column>, Vec<Row>, Tree)> {
        let config = self.part::<MatrixConfig>(&tree, "Matrix");
        let columns = self.columns(&tree);
        let written = self.rows(&tree);
        let settings = self.settings(&tree);
        if let Some(place) = tree.get("settings").filter(|_| !settings.is_empty())
            && written.iter().any(|row| !row.config.paper.is_empty() && row.config.file.is_some())
        {
            let message = "Matrix: `settings` does not go with rows that have a `file` and the figures of a `paper`";
            let diagnostic = Diagnostic::new("wrong-value", place.span, message);
            self.diagnostics.push(diagnostic.help("write the variants as rows of their own"));
        }
        let mut rows = Vec::new();
        for row in written {
            if row.config.file.is_none() && row.config.local.is_none() {
                rows.push(row);
            } else {
                rows.extend(crossed(row, &settings));
            }
        }
        self.names(&tree, &rows, &columns);
        Some((config?, columns, rows, tree))
    }

    /// Reads a part of the file.
    fn part<C: ModelsFile + DeserializeOwned>(&mut self, tree: &Tree, name: &'static str) -> Option<C> {
        let mut tree = tree.clone();
        if let Kind::Struct(own @ None, _) = &mut tree.kind {
            // `(…)` in a list is the same as `Row(…)`.
            let span = Span { end: tree.span.start + 1, ..tree.span };
            *own = Some(Name { text: name.to_owned(), span });
        }
        let loaded = Loaded { sources: self.sources.clone(), tree: Some(tree), diagnostics: Vec::new() };
        let planned =
            plan_models::<C>(loaded, name, |tree, sources| from_tree(tree, sources).map(Box::new), self.catalog);
        self.diagnostics.extend(planned.diagnostics);
        planned.plan.map(|(config, _)| config)
    }

    /// The items of a list, each `name(…)`.
    fn items<'t>(&mut self, tree: Option<&'t Tree>, field: &str, name: &str) -> Vec<&'t Tree> {
        let Some(tree) = tree else { return Vec::new() };
        let wrong = |tree: &Tree, expected: String| {
            let message = format!("Matrix: `{field}` cannot be {}", tree.describe());
            Diagnostic::new("wrong-type", tree.span, message).label(expected)
        };
        let Kind::Seq(items) = &tree.kind else {
            self.diagnostics.push(wrong(tree, format!("expected a list, as in `[{name}(…)]`")));
            return Vec::new();
        };
        if items.is_empty() {
            let message = format!("Matrix: `{field}` is empty");
            self.diagnostics.push(Diagnostic::new("wrong-value", tree.span, message));
        }
        let is_valid = |item: &Tree| match &item.kind {
            Kind::Struct(own, _) => own.as_ref().is_none_or(|own| own.text == name),
            _ => false,
        };
        let (valid, invalid): (Vec<&Tree>, Vec<&Tree>) = items.iter().partition(|item| is_valid(item));
        self.diagnostics.extend(invalid.into_iter().map(|item| wrong(item, format!("expected `{name}(…)`"))));
        valid
    }

    fn columns(&mut self, tree: &Tree) -> Vec<Column> {
        let mut columns: Vec<Column> = Vec::new();
        for item in self.items(tree.get("columns"), "columns", "Column") {
            let Some(config) = self.part::<ColumnConfig>(item, "Column") else { continue };
            let place = |field: &str| item.get(field).map_or(item.span, |value| value.span);
            match Column::new(config) {
                Ok(column) => {
                    if columns.iter().any(|other| other.title == column.title) {
                        let message = format!("Column: two columns have the title `{}`", column.title);
                        let field = if item.get("title").is_some() { "title" } else { "metric" };
                        self.diagnostics.push(Diagnostic::new("duplicate", place(field), message));
                    }
                    columns.push(column);
                }
                Err(fault) => {
                    let mut diagnostic =
                        Diagnostic::new("wrong-value", place(fault.field), format!("Column: {}", fault.message));
                    match did_you_mean(&fault.given, fault.choices.iter().copied()) {
                        Some(near) => diagnostic = diagnostic.help(format!("did you mean `{near}`?")),
                        None if fault.choices.is_empty() => {}
                        None => diagnostic = diagnostic.help(format!("available: {}", fault.choices.join(", "))),
                    }
                    self.diagnostics.push(diagnostic);
                }
            }
        }
        columns
    }

    fn rows(&mut self, tree: &Tree) -> Vec<Row> {
        let mut rows = Vec::new();
        for item in self.items(tree.get("rows"), "rows", "Row") {
            let set = self.set(item, "Row");
            let Some(config) = self.part::<RowConfig>(item, "Row") else { continue };
            rows.push(Row { name: config.name.clone(), base: config.name.clone(), config, tree: item.clone(), set });
        }
        rows
    }

    fn settings(&mut self, tree: &Tree) -> Vec<Vec<Variant>> {
        let Some(tree) = tree.get("settings") else { return Vec::new() };
        let Kind::Map(groups) = &tree.kind else {
            let message = format!("Matrix: `settings` cannot be {}", tree.describe());
            let label = "expected {\"name\": [Variant(name: …, set: {…}), …]}";
            self.diagnostics.push(Diagnostic::new("wrong-type", tree.span, message).label(label));
            return Vec::new();
        };
        let mut settings = Vec::new();
        for group in groups {
            let mut variants = Vec::new();
            for item in self.items(Some(&group.value), "settings", "Variant") {
                let set = self.set(item, "Variant");
                let Some(config) = self.part::<VariantConfig>(item, "Variant") else { continue };
                variants.push((format!("{} {}", group.key.text, config.name), set));
            }
            settings.push(variants);
        }
        settings
    }

    /// The values that a row or a variant sets.
    fn set(&mut self, item: &Tree, owner: &str) -> Vec<Entry> {
        match item.get("set").map(|set| (&set.kind, set)) {
            None => Vec::new(),
            Some((Kind::Map(entries), _)) => entries.clone(),
            Some((_, set)) => {
                let message = format!("{owner}: `set` must be a map, not {}", set.describe());
                let diagnostic = Diagnostic::new("wrong-type", set.span, message);
                self.diagnostics.push(diagnostic.label("expected {\"nodes.fused.top\": 5}"));
                Vec::new()
            }
        }
    }

    /// Checks the names: of rows, of the baseline, and of the columns that papers have figures of.
    fn names(&mut self, tree: &Tree, rows: &[Row], columns: &[Column]) {
        let mut seen = BTreeSet::new();
        for row in rows {
            let place = row.tree.get("name").map_or(row.tree.span, |name| name.span);
            if !seen.insert(row.name.as_str()) {
                self.diagnostics.push(Diagnostic::new(
                    "duplicate",
                    place,
                    format!("Row: two rows have the name {:?}", row.name),
                ));
            }
            for entry in row.tree.get("paper").and_then(Tree::entries).unwrap_or_default() {
                if columns.iter().any(|column| column.title == entry.key.text) {
                    continue;
                }
                let message =
                    format!("Row: `paper` has a figure for `{}`, which is not the title of a column", entry.key.text);
                let diagnostic = Diagnostic::new("wrong-value", entry.key.span, message);
                let titles = columns.iter().map(|column| column.title.as_str());
                self.diagnostics.push(diagnostic.choices(&entry.key.text, titles));
            }
        }
        let Some(baseline) = tree.get("baseline") else { return };
        let Kind::Scalar(ron::Value::String(name)) = &baseline.kind else { return };
        let with_file = rows.iter().filter(|row| row.config.file.is_some() || row.config.local.is_some());
        let names: Vec<&str> = with_file.map(|row| row.name.as_str()).collect();
        if !names.contains(&name.as_str()) {
            let message = format!("Matrix: no row with a file has the name {name:?} of the `baseline`");
            let diagnostic = Diagnostic::new("wrong-value", baseline.span, message);
            self.diagnostics.push(diagnostic.choices(name, names));
        }
    }
}

/// The row with each combination of variants.
fn crossed(row: Row, settings: &[Vec<Variant>]) -> Vec<Row> {
    let mut rows = vec![row];
    for variants in settings {
        let with = |row: &Row, (name, set): &Variant| Row {
            name: format!("{} / {name}", row.name),
            base: row.base.clone(),
            config: row.config.clone(),
            tree: row.tree.clone(),
            set: row.set.iter().chain(set).cloned().collect(),
        };
        rows =
            rows.iter().flat_map(|row| variants.iter().map(|variant| with(row, variant)).collect::<Vec<_>>()).collect();
    }
    rows
}
