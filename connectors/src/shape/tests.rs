use std::sync::atomic::{AtomicUsize, Ordering};

use futures::executor::block_on;
use parking_lot::Mutex;
use turnflow_engine::spec::from_str;

use super::*;

/// Notes the turns that it gets, and fails on turn 5. It says only at the end what it has taken.
#[derive(Default)]
struct Notes(Arc<Mutex<Vec<u32>>>);

impl AnswerSink for Notes {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        let mut turns = delivery.answers().iter().map(|answer| answer.turn);
        let fails = turns.clone().any(|turn| turn == 5);
        self.0.lock().extend(turns.by_ref());
        let failed = ConnectorError::Refused { reason: "five".to_owned() };
        async move { if fails { Err(failed) } else { Ok(()) } }.boxed()
    }
}

fn answers(statuses: &[Status]) -> Vec<AnswerRecord> {
    let answer = |(turn, status): (u32, &Status)| AnswerRecord { turn, status: *status, ..crate::testing::answer() };
    (1..).zip(statuses).map(answer).collect()
}

fn sent(when: &str, answers: &[AnswerRecord]) -> (Vec<u32>, usize, Option<String>) {
    let when: When = from_str(when).unwrap();
    let notes = Arc::<Mutex<Vec<u32>>>::default();
    let mut sink = Chosen { condition: when.compiled().unwrap(), inner: Box::new(Notes(notes.clone())) };
    let taken = AtomicUsize::new(0);
    let delivered = block_on(sink.deliver(Delivery::new(answers, &taken)));
    let got = notes.lock().clone();
    (got, taken.load(Ordering::Acquire), delivered.err().map(|error| error.to_string()))
}

#[test]
fn only_answers_that_meet_the_condition_are_sent_and_all_are_acknowledged() {
    use Status::{Answered, Failed, Idk};
    let all = answers(&[Answered, Idk, Idk, Answered]);
    assert_eq!(sent("Answered", &all), (vec![1, 4], 4, None));
    assert_eq!(sent("Idk", &all), (vec![2, 3], 4, None));
    assert_eq!(sent("Failed", &all), (vec![], 4, None));
    assert_eq!(sent("Any([Idk, Failed])", &answers(&[Failed, Idk, Answered])), (vec![1, 2], 3, None));
    assert_eq!(sent("Jq(\".turn > 2 and .status == \\\"answered\\\"\")", &all), (vec![4], 4, None));
    // A retraction reaches those who have what it retracts.
    let mut retracted = answers(&[Idk, Answered]);
    retracted[0].retracted = true;
    assert_eq!(sent("Answered", &retracted), (vec![1, 2], 2, None));
}

#[test]
fn an_error_leaves_what_comes_before_it_acknowledged() {
    use Status::{Answered, Idk};
    let all = answers(&[Answered, Idk, Answered, Idk, Answered, Answered]);
    let (got, taken, error) = sent("Answered", &all);
    assert_eq!((got, taken), (vec![1, 3, 5, 6], 4));
    assert!(error.unwrap().contains("five"));
    let (got, taken, error) = sent("Jq(\"if .turn == 3 then error(\\\"no\\\") else true end\")", &all);
    assert_eq!((got, taken), (vec![1, 2], 2));
    assert!(error.unwrap().contains("`when`: no"));
}

#[test]
fn a_message_is_one_value_or_none() {
    let answer = &answers(&[Status::Answered])[0];
    let message = |body: &str| {
        let body: BodyConfig = from_str(body).unwrap();
        Shape { when: None, body: Some(&body) }.bodies().unwrap().message(answer)
    };
    assert_eq!(message("Jq(\"{turn}\")").unwrap().unwrap(), br#"{"turn":1}"#);
    assert_eq!(message("Jq(\"\\\"turn \\\\(.turn)\\\"\")").unwrap().unwrap(), b"turn 1");
    assert_eq!(message("Jq(\"empty\")").unwrap(), None);
    for (body, wrong) in [("Jq(\"1, 2\")", "2 values"), ("Jq(\"error(\\\"why\\\")\")", "`body`: why")] {
        assert!(message(body).unwrap_err().to_string().contains(wrong));
    }
    let record = Bodies::default().message(answer).unwrap().unwrap();
    assert_eq!(serde_json::from_slice::<AnswerRecord>(&record).unwrap(), *answer);
}
