use futures::future::BoxFuture;

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::component::Prepared;
use crate::corpus::chunks::chunk;
use crate::dead_letter::DeadLetters;
use crate::inference::InferenceError;

/// A preparation whose server is away, or fails on bad texts only.
#[derive(Default)]
struct Away {
    is_back: bool,
    calls: AtomicUsize,
}

fn away() -> IndexError {
    let (url, reason) = ("http://model".to_owned(), "connection refused".to_owned());
    InferenceError::Server { url, status: None, reason, transient: false, outage: true, after: None }.into()
}

impl Prepare for Away {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let is_bad = contents.iter().any(|content| content.chunk.text.starts_with("bad"));
        let fails = is_bad || !self.is_back;
        async move { if fails { Err(away()) } else { Ok(Prepared { embedded: contents.len() }) } }.boxed()
    }

    fn lacking(&self, contents: &[Content]) -> Vec<Content> {
        contents.iter().filter(|content| !content.chunk.text.starts_with("known")).cloned().collect()
    }
}

fn content(id: &str, text: &str) -> Content {
    Content { chunk: chunk(id, text) }
}

fn feeds(chunks: &[(&str, &str)]) -> BTreeMap<u64, Chunks> {
    [(0, Chunks::of(chunks.iter().map(|(id, text)| chunk(id, text)).collect()))].into()
}

fn preparing() -> (Preparing, Arc<dyn Prepare>) {
    (Preparing::new("docs".into(), DeadLetters::counted(), None), Arc::new(Away::default()))
}

#[tokio::test]
async fn a_content_on_which_the_server_fails_keeps_back_no_other() {
    let contents: Vec<Content> = (0..20)
        .map(|n| content(&format!("{n}"), &format!("{} {n}", if n % 8 == 5 { "bad" } else { "good" })))
        .collect();
    let all = Chunks::of(contents.iter().map(|content| content.chunk.clone()).collect());
    let (preparing, _) = preparing();
    let well = Arc::new(Away { is_back: true, calls: AtomicUsize::new(0) });
    let model: Arc<dyn Prepare> = well.clone();
    preparing.contents(&model, contents.clone()).await;
    assert_eq!((preparing.count_waiting(&model, &all), well.calls.load(Ordering::Relaxed)), (2, 21));
    // A server that is away is not asked for each.
    let gone = Arc::new(Away::default());
    let model: Arc<dyn Prepare> = gone.clone();
    for _ in 0..5 {
        preparing.contents(&model, contents.clone()).await;
    }
    assert_eq!((preparing.count_waiting(&model, &all), gone.calls.load(Ordering::Relaxed)), (20, 5 + AWAY));
}

fn failed(status: Option<u16>, after: Option<Duration>) -> IndexError {
    let (url, reason) = ("http://model".to_owned(), "no".to_owned());
    InferenceError::Server { url, status, reason, transient: false, outage: true, after }.into()
}

/// A preparation whose server refuses everything, or what it has not seen, or never answers.
struct Odd {
    refuses: bool,
    takes_others: bool,
}

fn refusal() -> IndexError {
    let (url, reason) = ("http://model".to_owned(), "no quota".to_owned());
    let (status, transient, outage) = (Some(400), false, false);
    InferenceError::Server { url, status, reason, transient, outage, after: None }.into()
}

impl Prepare for Odd {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        let is_known = contents.iter().all(|content| content.chunk.text.starts_with("known"));
        match self.refuses {
            true if is_known => async { Ok(Prepared { embedded: 0 }) }.boxed(),
            true => async { Err(refusal()) }.boxed(),
            false => std::future::pending().boxed(),
        }
    }

    fn lacking(&self, contents: &[Content]) -> Vec<Content> {
        contents.iter().filter(|content| !content.chunk.text.starts_with("known")).cloned().collect()
    }

    fn probe(&self) -> BoxFuture<'static, Result<(), IndexError>> {
        let takes = self.takes_others;
        async move { if takes { Ok(()) } else { Err(refusal()) } }.boxed()
    }

    fn asks_a_server(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_server_that_refuses_all_is_at_fault_and_one_that_refuses_some_is_not() {
    let contents = |count: u32| (0..count).map(|n| content(&n.to_string(), &format!("text {n}"))).collect::<Vec<_>>();
    for (count, takes_others) in [(1, false), (3, false), (1, true), (3, true)] {
        let (preparing, _) = preparing();
        let odd: Arc<dyn Prepare> = Arc::new(Odd { refuses: true, takes_others });
        let all = [contents(count), vec![content("k", "known")]].concat();
        let waiting = preparing.give_up(&odd, &all, None, &refusal(), Instant::now()).await;
        // What is known already waits for nothing, and says nothing of the server.
        let missing = if takes_others { 0 } else { u64::from(count) };
        assert_eq!(preparing.progress.lacking_here().missing, missing);
        assert_eq!(waiting.is_empty(), takes_others);
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_holds_back_nothing() {
    let (preparing, _) = preparing();
    let preparing = preparing.silent_for(Some(Duration::from_millis(30)));
    let silent: Arc<dyn Prepare> = Arc::new(Odd { refuses: false, takes_others: false });
    preparing.contents(&silent, vec![content("a", "one")]).await;
    assert_eq!(preparing.progress.lacking_here().missing, 1);
    // It is known to be away: nothing is asked.
    let preparing = preparing.silent_for(Some(Duration::from_secs(3600)));
    preparing.contents(&silent, vec![content("b", "two")]).await;
    let lacking = preparing.progress.lacking_here();
    assert_eq!(lacking.missing, 2);
    assert!(lacking.problem.unwrap().contains("did not respond within"));
}

#[test]
fn the_pause_is_as_long_as_the_server_asks() {
    let seconds = Duration::from_secs;
    let waiting = Waiting::default();
    [20, 70, 0].into_iter().for_each(|asked| waiting.failed(&failed(Some(429), Some(seconds(asked)))));
    assert_eq!((waiting.pause(seconds(1)), waiting.pause(seconds(2))), (seconds(70), seconds(2)));
    waiting.failed(&failed(Some(429), Some(seconds(0))));
    waiting.failed(&failed(None, None));
    assert_eq!(waiting.pause(seconds(30)), seconds(30), "no pause is asked for");
    waiting.failed(&failed(Some(503), Some(seconds(86_400))));
    assert_eq!(waiting.pause(seconds(1)), LONGEST);
}

#[test]
fn a_server_that_answers_is_away_later_than_one_that_does_not() {
    for (status, most) in [(None, AWAY), (Some(503), AWAY), (Some(500), AWAY * OF_THE_INPUT)] {
        let (error, mut failures, mut count) = (failed(status, None), Failures::default(), 0);
        while !failures.are_an_absence() {
            failures.add(&error);
            count += 1;
        }
        assert_eq!(count, most, "{status:?}");
    }
}

#[tokio::test]
async fn what_has_left_the_corpus_waits_no_longer() {
    let (preparing, away_model) = preparing();
    let missing = || preparing.progress.lacking_here().missing;
    let part = [content("a", "one"), content("b", "two"), content("c", "known three")];
    preparing.set_aside(&away_model, &part, Some((0, 4)), &away());
    assert_eq!(missing(), 2, "what is prepared does not wait");
    // The commit is not in the corpus yet.
    preparing.forget_gone(&feeds(&[]), &[(0, 4)].into());
    assert_eq!(missing(), 2);
    // Another passage has the same text.
    preparing.forget_gone(&feeds(&[("z", "one")]), &[(0, 5)].into());
    assert_eq!((missing(), preparing.count_waiting(&away_model, &feeds(&[("z", "one"), ("y", "one")])[&0])), (1, 2));
    // A later commit brings it again.
    preparing.set_aside(&away_model, &part[..1], Some((0, 7)), &away());
    preparing.forget_gone(&feeds(&[]), &[(0, 6)].into());
    assert_eq!(missing(), 1);
    preparing.forget_gone(&feeds(&[]), &[(0, 8)].into());
    assert_eq!(preparing.progress.lacking_here(), crate::publish::Lacking::default());
}

#[tokio::test]
async fn what_waits_is_not_set_aside_again_and_goes_with_its_index() {
    let (preparing, away_model) = preparing();
    let part = vec![content("a", "one"), content("b", "two")];
    preparing.contents(&away_model, part.clone()).await;
    assert!(preparing.not_waiting(&away_model, part.clone()).is_empty());
    assert_eq!(preparing.not_waiting(&(Arc::new(Away::default()) as Arc<dyn Prepare>), part).len(), 2);
    preparing.forget_index(&away_model);
    assert_eq!(preparing.progress.lacking_here().missing, 0);
}

/// A preparation whose server never answers one text.
#[derive(Default)]
struct Hangs {
    asked: Mutex<Vec<usize>>,
}

impl Prepare for Hangs {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        self.asked.lock().push(contents.len());
        match contents.iter().any(|content| content.chunk.text.starts_with("bad")) {
            true => std::future::pending().boxed(),
            false => async move { Ok(Prepared { embedded: contents.len() }) }.boxed(),
        }
    }

    fn asks_a_server(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_content_that_the_server_hangs_at_is_tried_behind_the_others() {
    let (preparing, _) = preparing();
    let preparing = preparing.silent_for(Some(Duration::from_millis(500)));
    let hangs = Arc::new(Hangs::default());
    let model: Arc<dyn Prepare> = hangs.clone();
    let mut contents: Vec<Content> = (0..4).map(|n| content(&n.to_string(), &format!("good {n}"))).collect();
    contents.push(content("bad", "bad"));
    preparing.set_aside(&model, &contents, None, &"away");
    let left = || -> Vec<Content> {
        let waiting = preparing.waiting.state.lock();
        waiting.of(&model).into_iter().flat_map(HashMap::values).map(|waits| waits.content.clone()).collect()
    };
    // At most once in each place among the others.
    for round in 0..contents.len() {
        preparing.try_again(&model, left(), round).await;
    }
    assert_eq!(left().len(), 1);
    let before = hangs.asked.lock().len();
    let new = content("new", "good new");
    preparing.try_again(&model, vec![contents[4].clone(), new], 9).await;
    assert_eq!(hangs.asked.lock()[before..], [1, 1], "the new one first, and not with the bad one");
}

/// A preparation whose server refuses our question and long texts, and takes short ones.
#[derive(Default)]
struct Choosy {
    taken: Mutex<HashSet<String>>,
}

impl Prepare for Choosy {
    fn prepare(self: Arc<Self>, contents: Vec<Content>) -> BoxFuture<'static, Result<Prepared, IndexError>> {
        let refuses = contents.iter().any(|content| content.chunk.text.starts_with("long"));
        if !refuses {
            self.taken.lock().extend(contents.iter().map(|content| content.chunk.text.to_string()));
        }
        async move { if refuses { Err(refusal()) } else { Ok(Prepared { embedded: contents.len() }) } }.boxed()
    }

    fn probe(&self) -> BoxFuture<'static, Result<(), IndexError>> {
        async { Err(refusal()) }.boxed()
    }
}

#[tokio::test]
async fn a_server_that_refuses_the_question_and_takes_texts_keeps_back_none_of_them() {
    let (preparing, _) = preparing();
    let choosy = Arc::new(Choosy::default());
    let model: Arc<dyn Prepare> = choosy.clone();
    let text = |n: usize| format!("{} {n}", if n < 3 { "long" } else { "short" });
    let all: Vec<Content> = (0..12).map(|n| content(&n.to_string(), &text(n))).collect();
    // Those that are tried first are other ones each time.
    while choosy.taken.lock().len() < 9 {
        preparing.give_up(&model, &all, None, &refusal(), Instant::now()).await;
    }
}
