//! Sources that say late that they have read all.

use std::path::Path;
use std::sync::Barrier;

use turnflow_engine::component::{
    Building, Catalog, ComponentContext, Configured, CorpusSourceConfig, CorpusSourceKind, built,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode};
use turnflow_engine::document::{Document, Markup};
use turnflow_engine::plan::plan;
use turnflow_engine::publish::CorpusProgress;
use turnflow_engine::run::Options;
use turnflow_engine::spec::load_str;

use super::LEXICAL;
use crate::support::{Asked, until};

/// A corpus of one document whose source says late that it has read all.
#[derive(Debug, serde::Deserialize)]
struct LateConfig {}

struct Late;

/// Until the workers have let the commit pass.
static PASSED: Barrier = Barrier::new(2);

impl Configured for LateConfig {}

impl CorpusSourceConfig for LateConfig {
    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(Late)))
    }
}

impl CorpusSource for Late {
    fn run(self: Box<Self>, _: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let (id, text) = ("a".into(), "the ferry leaves".into());
        let document = Document { id, title: "".into(), text, markup: Markup::Plain, metadata: Default::default() };
        let _ = output.change("a", Some(document)).and_then(|()| output.commit());
        let _ = PASSED.wait();
        let _ = output.ready();
        let _ = output.stop().receiver().recv();
        Ok(())
    }
}

static LATE: &[CorpusSourceKind] = &[CorpusSourceKind::of::<LateConfig>("Late", "says late that it has read all")];

/// Saying so moves no time; an engine that slept on then would never become ready.
#[test]
fn a_source_may_say_late_that_it_has_read_all() {
    let text = LEXICAL.replace("Directory(path: \"docs\")", "Late()");
    let catalog = Catalog { corpus_sources: LATE.to_vec(), ..turnflow::catalog() };
    let planned = plan(load_str("late.ron", Path::new("."), &text, &[]), &catalog);
    let mut late = Asked::begin(planned.plan.unwrap(), Options::default());
    let (_, progress, _) = late.engine.corpora().pop().unwrap();
    until("the commit to pass", || CorpusProgress::get(&progress.passed) > 0);
    let _ = PASSED.wait();
    late.engine.wait_ready().unwrap();
    assert_eq!(late.ask("ferry").documents("plain"), ["a"]);
}
