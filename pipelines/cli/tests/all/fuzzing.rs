//! Pipeline files that say anything, with the whole catalog: the body of the fuzz target
//! `spec` on its seeds, on the shipped pipelines and the mistaken ones of the tests, and on
//! seeded mutations of them. `TURNFLOW_FUZZ=N` makes N mutations.

#[path = "../../../../fuzz/src/mutations.rs"]
mod mutations;
#[path = "../../../../fuzz/src/spec.rs"]
mod spec;

use std::fs;

use turnflow::{CATALOG, diagnostics};

use self::mutations::Mutator;
use crate::support::root;

#[test]
fn any_pipeline_file_is_a_plan_or_has_mistakes_that_can_be_shown() {
    let mut seeds = Vec::new();
    for directory in ["fuzz/seeds/spec", "pipelines", "pipelines/cli/tests/diagnostics"] {
        let mut files: Vec<_> =
            fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| {
            file.is_file() && (directory.ends_with("spec") || file.extension().is_some_and(|end| end == "ron"))
        });
        files.sort();
        seeds.extend(files.iter().map(|file| fs::read(file).unwrap()));
    }
    let check = |input: &[u8]| {
        if let Some(planned) = spec::spec(input, &CATALOG) {
            let text = diagnostics::render(&planned.diagnostics, &planned.sources, false);
            assert_eq!(text.is_empty(), planned.diagnostics.is_empty());
            diagnostics::to_json(&planned.diagnostics, &planned.sources);
        }
    };
    seeds.iter().for_each(|seed| check(seed));
    let mutations = std::env::var("TURNFLOW_FUZZ").ok().and_then(|number| number.parse().ok()).unwrap_or(1500);
    let mut mutator = Mutator::new(1);
    for _ in 0..mutations {
        check(&mutator.mutate(&seeds));
    }
}
