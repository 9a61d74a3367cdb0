//! Verdicts.

use std::sync::Arc;

use turnflow_engine::connector::{Judgement, ReviewError, ReviewQueue, Verdict};

use super::{Bench, DECLINED, declined, list, open, says};
use crate::journal::Judged;
use crate::queue::{Counts, Queue};
use crate::verdicts;

#[test]
fn a_verdict_is_kept_and_a_later_one_replaces_it() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0), declined(1)]);
    let id = list(&queue, false)[0].id.clone();
    let bad = Judgement {
        correction: Some("At noon.".into()),
        relevant: vec!["a#0".into()],
        by: Some("ann".into()),
        ..says(Verdict::Bad)
    };
    let item = queue.judge(&id, &bad).unwrap();
    let kept = item.judgement.unwrap();
    assert!(kept.at > 1e9 && kept.says_what(&bad), "{kept:?}");
    // The same once more is nothing new.
    let file = bench.file();
    queue.judge(&id, &bad).unwrap();
    assert_eq!(bench.file(), file);
    let good = Judgement { by: Some("bob".into()), ..says(Verdict::Good) };
    queue.judge(&id, &good).unwrap();
    drop(queue);
    let queue = bench.open();
    let judged = list(&queue, true);
    assert_eq!((judged.len(), open(&queue)), (1, vec!["c1".to_owned()]));
    assert!(judged[0].judgement.as_ref().unwrap().says_what(&good));
    assert_eq!(queue.counts().unwrap(), Counts { open: 1, judged: 1, left_out: 0 });
    // What Ann said is in the journal.
    assert!(bench.file().contains("At noon.") && bench.file().contains("ann"));
    // The answer comes again.
    bench.take(&queue, &[declined(0)]);
    assert_eq!(open(&queue), ["c1"]);
}

#[test]
fn a_verdict_that_makes_no_sense_is_refused() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0)]);
    let (id, file) = (list(&queue, false)[0].id.clone(), bench.file());
    let refused = |judgement: Judgement| queue.judge(&id, &judgement).unwrap_err().to_string();
    let text = |text: &str| Some(text.to_owned());
    let both = vec!["a".to_owned()];
    let cases = [
        (Judgement { correction: text(" "), ..says(Verdict::Bad) }, "`correction` is empty: leave it out"),
        (Judgement { correction: text("x"), ..says(Verdict::Good) }, "a good answer needs no `correction`"),
        (
            Judgement { correction: text("x"), answerable: Some(false), ..says(Verdict::Bad) },
            "a question that the documents do not answer has no `correction`",
        ),
        (
            Judgement { comment: Some("x".repeat(8001)), ..says(Verdict::Bad) },
            "`comment` has more than 8000 characters",
        ),
        (
            Judgement { relevant: both.clone(), irrelevant: both, ..says(Verdict::Bad) },
            "`a` cannot be both `relevant` and `irrelevant`",
        ),
        (
            Judgement { relevant: vec!["a\tb".into()], ..says(Verdict::Bad) },
            "`relevant` has something that is no id of a passage",
        ),
        (Judgement { at: -1.0, ..says(Verdict::Bad) }, "`at` is no time in seconds since 1970"),
    ];
    for (judgement, reason) in cases {
        assert_eq!(refused(judgement), reason);
    }
    assert_eq!(bench.file(), file);
    let unknown = queue.judge("none", &says(Verdict::Good)).unwrap_err();
    assert!(matches!(unknown, ReviewError::Unknown(_)), "{unknown}");
}

#[test]
fn verdicts_of_a_file_are_taken_all_or_none() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &[declined(0), declined(1)]);
    let ids: Vec<Arc<str>> = list(&queue, false).iter().map(|item| item.id.clone()).collect();
    let judged = |id: &str| Judged { id: id.into(), judgement: says(Verdict::Good) };
    let errors = queue.judge_all(&[judged(&ids[0]), judged("none"), judged(&ids[1])]).unwrap_err();
    assert_eq!((errors.len(), errors[0].0, queue.counts().unwrap().open), (1, 1, 2));
    assert_eq!(queue.judge_all(&[judged(&ids[0]), judged(&ids[1])]).unwrap(), 2);
    assert_eq!(queue.counts().unwrap(), Counts { open: 0, judged: 2, left_out: 0 });
    assert_eq!(bench.file().lines().count(), 4);
}

#[test]
fn a_file_of_verdicts_that_is_given_again_changes_nothing() {
    let bench = Bench::new(DECLINED);
    let queue = bench.open();
    bench.take(&queue, &(0..50).map(declined).collect::<Vec<_>>());
    let ids: Vec<Arc<str>> = list(&queue, false).iter().map(|item| item.id.clone()).collect();
    let verdict = |verdict, id: &Arc<str>| Judged { id: id.clone(), judgement: says(verdict) };
    // Of two verdicts on one answer, the last one counts.
    let mut verdicts: Vec<Judged> = ids.iter().map(|id| verdict(Verdict::Good, id)).collect();
    verdicts.extend(ids.iter().map(|id| verdict(Verdict::Bad, id)));
    verdicts.insert(0, verdict(Verdict::Bad, &ids[0]));
    assert_eq!(queue.judge_all(&verdicts).unwrap(), 100);
    let (file, judged) = (bench.file(), list(&queue, true));
    assert!(judged.iter().all(|item| item.judgement.as_ref().unwrap().verdict == Verdict::Bad));
    for queue in [queue, bench.open()] {
        assert_eq!(queue.judge_all(&verdicts).unwrap(), 0);
        assert_eq!((bench.file(), list(&queue, true)), (file.clone(), judged.clone()));
    }
    // A kill has left a part of it.
    let part = file.lines().count() - 2;
    std::fs::write(bench.path(), file.lines().take(part).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let queue = bench.open();
    assert!(queue.judge_all(&verdicts).unwrap() > 0);
    assert!(list(&queue, true).iter().all(|item| item.judgement.as_ref().unwrap().verdict == Verdict::Bad));
    // A person may say again what was said before.
    let item = queue.judge(&ids[0], &says(Verdict::Good)).unwrap();
    assert_eq!(item.judgement.unwrap().verdict, Verdict::Good);
}

#[test]
fn lines_of_verdicts_are_read_with_their_numbers() {
    let text = concat!(
        "{\"id\": \"a\", \"verdict\": \"good\", \"question\": \"of the item\", \"hits\": []}\n",
        "\n",
        "{\"id\": \"b\", \"verdict\": \"fine\"}\n",
        "{\"id\": \"c\", \"verdict\": \"bad\", \"by\": \"bob\", \"corection\": \"x\"}\n",
        "{\"verdict\": \"bad\"}\n",
        "{\"id\": \"d\", \"verdict\": \"bad\", \"by\": \"bob\"}\n",
        "{\"id\": \"e\"\n",
        "{\"id\": \"f\", \"verdict\": \"good\", \"correction\": \"x\"}\n",
        "{\"id\": \"g\", \"verdict\": 1}\n",
    );
    let (verdicts, errors) = verdicts::read(text, Some("ann"));
    let by: Vec<(usize, &str)> =
        verdicts.iter().map(|(number, one)| (*number, one.judgement.by.as_deref().unwrap())).collect();
    assert_eq!(by, [(1, "ann"), (6, "bob")]);
    let errors: Vec<String> = errors.iter().map(|(number, error)| format!("{number}: {error}")).collect();
    assert_eq!(
        errors,
        [
            "3: unknown verdict `fine`, expected `good`, `bad` or `unsure`",
            "4: a verdict has no field `corection`",
            "5: missing field `id`",
            "7: EOF while parsing an object",
            "8: a good answer needs no `correction`",
            "9: invalid type: integer `1`, expected a string",
        ]
    );
}

#[test]
fn processes_that_write_at_once_do_not_harm_each_other() {
    let bench = Bench::new(r#"rules: { "all": (of: Any) }"#);
    let run = bench.open();
    bench.take(&run, &(0..50).map(declined).collect::<Vec<_>>());
    let ids: Vec<Arc<str>> = list(&run, false).iter().map(|item| item.id.clone()).collect();
    std::thread::scope(|scope| {
        // A run, a server and two commands.
        scope.spawn(|| {
            for number in 50..150 {
                bench.take(&run, &[declined(number)]);
            }
        });
        for part in ids.chunks(20) {
            let bench = &bench;
            scope.spawn(move || {
                let queue = bench.open();
                for id in part {
                    queue.judge(id, &says(Verdict::Good)).unwrap();
                }
            });
        }
    });
    for queue in [run, bench.open(), Queue::existing("review", &bench.path()).unwrap().unwrap()] {
        assert_eq!(queue.counts().unwrap(), Counts { open: 100, judged: 50, left_out: 0 });
    }
}
