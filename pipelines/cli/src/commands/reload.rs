//! Reloads a running pipeline when its files change or on a signal.
//!
//! This module reads and checks the file. The engine does the rest on a separate thread, since it may
//! take as long as embedding a corpus. A further change cancels that reload and starts another.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use turnflow_engine::plan::Plan;
use turnflow_engine::run::{Engine, ReloadError};

use turnflow_server::{LastReload, Outline, Served};

use super::PipelineArgs;
use super::watched_files::{WatchedFiles, stamped};

/// The interval between checks of the files.
const LOOK: Duration = Duration::from_millis(100);

/// An action after a successful reload, made from the new plan before the reload.
type Adopt = Box<dyn Fn(&Plan) -> Box<dyn FnOnce() + Send>>;
/// Receives the outcome of each reload: the problems, or `None` after a success.
type Note = Arc<dyn Fn(Option<String>) + Send + Sync>;

struct UnderWay {
    give_up: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Watches a pipeline's files and reloads it.
pub(super) struct Reloads<'a> {
    pipeline: &'a PipelineArgs,
    engine: Arc<Engine>,
    files: WatchedFiles,
    watch: bool,
    looked: Instant,
    under_way: Option<UnderWay>,
    wanted: bool,
    adopt: Option<Adopt>,
    note: Note,
}

impl<'a> Reloads<'a> {
    pub fn new(pipeline: &'a PipelineArgs, engine: Arc<Engine>, files: WatchedFiles, watch: bool) -> Self {
        let (looked, note) = (Instant::now(), Arc::new(|_| {}));
        Self { pipeline, engine, files, watch, looked, under_way: None, wanted: false, adopt: None, note }
    }

    /// The same, with an action after each successful reload.
    fn then(mut self, adopt: Adopt) -> Self {
        self.adopt = Some(adopt);
        self
    }

    /// The same, with a receiver of the outcomes.
    fn noting(mut self, note: Note) -> Self {
        self.note = note;
        self
    }

    /// The same, keeping a served pipeline up to date.
    pub fn of(self, served: &Arc<Served>) -> Self {
        let (adopting, noting) = (served.clone(), served.clone());
        let adopt = move |plan: &Plan| -> Box<dyn FnOnce() + Send> {
            let (of, outline) = (adopting.clone(), Outline::of(plan));
            Box::new(move || of.adopt(outline))
        };
        let note = Arc::new(move |problems| noting.reloaded(LastReload::now(problems)));
        self.then(Box::new(adopt)).noting(note)
    }

    /// Checks for changes and finished reloads; call it often.
    pub fn tick(&mut self, asked: bool) {
        self.wanted |= asked;
        if self.watch && self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.wanted |= self.files.have_changed(self.looked);
        }
        if self.under_way.as_ref().is_some_and(|under_way| under_way.thread.is_finished()) {
            self.end();
        }
        if self.wanted {
            match &self.under_way {
                // Cancel it; the next one starts when it has ended.
                Some(under_way) => under_way.give_up.store(true, Ordering::Release),
                None => self.begin(),
            }
        }
    }

    /// Adopts what the first process of the cluster has reloaded. For the others; call it often.
    pub fn follow(&self) {
        if let Some(plan) = self.engine.take_followed() {
            self.adopt.iter().for_each(|adopt| adopt(&plan)());
            (self.note)(None);
        }
    }

    fn begin(&mut self) {
        self.wanted = false;
        let before = stamped(self.files.files().iter().map(|(path, _)| path.clone()).collect());
        let (plan, files) = self.pipeline.checked();
        // A file that cannot be read includes no others: keep watching the previous ones.
        let mut files = stamped(files);
        // A file of a model that could not be loaded may be written in parts, and is no longer missing then.
        if plan.is_err() || !self.engine.lacking().is_empty() {
            files.extend(
                self.files
                    .files()
                    .iter()
                    .filter(|(path, _)| !files.iter().any(|(new, _)| new == path))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
        }
        // Use the stamps from before the reading, to detect changes during it.
        for (path, stamp) in &mut files {
            if let Some((_, old)) = before.iter().find(|(old, _)| old == path) {
                *stamp = *old;
            }
        }
        self.files = WatchedFiles::since(files);
        let plan = match plan {
            Ok(plan) => plan.running(),
            Err(problems) => {
                eprintln!("{}", problems.render(std::io::stderr().is_terminal()));
                eprintln!("not reloaded: the pipeline continues unchanged");
                (self.note)(Some(problems.render(false)));
                return;
            }
        };
        let give_up = Arc::new(AtomicBool::new(false));
        let (engine, asked) = (self.engine.clone(), give_up.clone());
        let adopted = self.adopt.as_ref().map(|adopt| adopt(&plan));
        let note = self.note.clone();
        let thread = std::thread::Builder::new().name("reload".into());
        let thread = thread.spawn(move || match reload(&engine, plan, &asked) {
            Ok(()) => {
                adopted.into_iter().for_each(|adopted| adopted());
                note(None);
            }
            Err(ReloadError::GivenUp) => {}
            Err(error) => note(Some(error.to_string())),
        });
        match thread {
            Ok(thread) => self.under_way = Some(UnderWay { give_up, thread }),
            Err(error) => eprintln!("not reloaded: cannot start a thread: {error}"),
        }
    }

    /// Cancels a reload in progress, and waits until it has ended.
    pub fn end(&mut self) {
        if let Some(UnderWay { give_up, thread }) = self.under_way.take() {
            give_up.store(true, Ordering::Release);
            let _ = thread.join();
        }
    }
}

/// Switches the engine to the plan.
fn reload(engine: &Engine, plan: Plan, give_up: &AtomicBool) -> Result<(), ReloadError> {
    let begun = Instant::now();
    let difference = engine.difference(&plan);
    if difference.is_empty() {
        eprintln!("nothing to reload: the pipeline is unchanged");
        return Ok(());
    }
    eprintln!("reloading:\n{difference}");
    let reloaded = engine.reload(plan, &|| give_up.load(Ordering::Acquire));
    match &reloaded {
        Ok(_) => {
            eprintln!("reloaded in {:.2} s", begun.elapsed().as_secs_f64());
            for lacking in engine.lacking() {
                eprintln!("model `{}` is still not loaded: {}", lacking.name, lacking.reason);
            }
        }
        Err(ReloadError::GivenUp) => eprintln!("the reload was cancelled"),
        Err(error) => eprintln!("not reloaded: {error}; the pipeline continues unchanged"),
    }
    reloaded.map(|_| ())
}
