//! What holds for every sink holds for this one: hostile answers, deliveries that are dropped, and those that come again.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use futures::executor::block_on;
use serde_json::{Value, json};
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::{AnswerSink as _, Delivery, ReviewPage, ReviewQueue, Verdict};
use turnflow_engine::record::{AnswerRecord, Asked};

use super::{Bench, answer, list, says};
use crate::export::Export;

/// Texts that could break a line, a terminal, a parser or a limit.
fn hostile() -> Vec<AnswerRecord> {
    let texts = [
        "",
        "two\nlines\r\n",
        "\0\u{1b}[31m\u{7f}",
        "\u{2028}\u{feff}\u{202e}",
        "\"}\n{\"",
        "🙂👨‍👩‍👧 語",
        "\\u{0}\t\\n)]",
        &"語".repeat(30_000),
    ];
    let record = |(number, text): (usize, &&str)| {
        let passage: String = text.chars().take(50).collect();
        let hits = json!([{"passage": passage, "document": text, "score": 1.0, "text": text}]);
        let mut record = answer(number, json!({"answer": text, "query": text, "hits": hits}));
        record.conversation_id = text.chars().take(1000).collect::<String>().into();
        record.question = Some(Asked { text: (*text).into(), collection: Some((*text).into()) });
        record
    };
    texts.iter().enumerate().map(record).collect()
}

#[test]
fn hostile_answers_are_kept_once_and_in_order() {
    let bench = Bench::new(r#"rules: { "all": (of: Any) }"#);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let context = ComponentContext::alone("review", runtime.handle().clone());
    let answers = hostile();
    let mut sink = bench.config.sink(&context).unwrap();
    sink.begin().unwrap();
    let taken = AtomicUsize::new(0);
    for batch in answers.chunks(3) {
        block_on(sink.deliver(Delivery::new(batch, &taken))).unwrap();
    }
    // One that is dropped before it has begun leaves nothing behind, and what comes again is known.
    drop(sink.deliver(Delivery::new(&[answer(99, json!({}))], &taken)));
    let file = bench.file();
    drop(sink);
    let mut sink = bench.config.sink(&context).unwrap();
    block_on(sink.deliver(Delivery::new(&answers, &taken))).unwrap();
    assert_eq!(bench.file(), file);
    assert_eq!(file.lines().count(), answers.len() + 1);

    let queue: Arc<dyn ReviewQueue> = sink.review().unwrap();
    let listed = queue.list(&ReviewPage { limit: 100, ..ReviewPage::default() }).unwrap();
    let names = |of: Vec<Arc<str>>| of.into_iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(
        names(listed.items.iter().map(|item| item.conversation_id.clone()).collect()),
        names(answers.iter().map(|answer| answer.conversation_id.clone()).collect())
    );
    for (item, answer) in listed.items.iter().zip(&answers) {
        let whole = answer.answer.chars().count() <= 16_000;
        assert!(if whole { item.answer == answer.answer } else { item.answer.ends_with("語…") });
        assert_eq!(queue.item(&item.id).unwrap(), *item);
        queue.judge(&item.id, &says(Verdict::Good)).unwrap();
    }
    // Each line of an export is one.
    let queue = bench.open();
    assert_eq!(list(&queue, true).len(), answers.len());
    let export = Export::of(&queue.judged().unwrap());
    let tasks: Vec<Value> = export.tasks.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // One has no question.
    assert_eq!((tasks.len() as u64, tasks.len() + 1), (export.counts[0], answers.len()));
    assert!(export.qrels.lines().all(|line| line.split('\t').count() == 3), "{}", export.qrels);
}
