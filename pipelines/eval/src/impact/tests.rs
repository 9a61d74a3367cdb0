use super::*;
use turnflow_engine::component::Delta;
use turnflow_engine::document::Chunk;
use turnflow_engine::record::{HitRecord, Provenance};

fn record(status: Status, answer: &str, hits: &[(&str, &str)]) -> AnswerRecord {
    let hit = |(passage, text): &(&str, &str)| HitRecord {
        passage: (*passage).into(),
        document: passage.split('#').next().unwrap_or_default().into(),
        score: 1.0,
        text: (*text).into(),
        metadata: Default::default(),
        corpus: Default::default(),
        found: Default::default(),
    };
    AnswerRecord {
        conversation_id: "c".into(),
        turn: 1,
        revision: 0,
        key: "k".into(),
        retracted: false,
        withdrawn: false,
        status,
        query: "q".into(),
        answer: answer.into(),
        error: None,
        hits: hits.iter().map(hit).collect(),
        checks: Default::default(),
        stamp: Provenance {
            pipeline: "p".into(),
            epoch: 1,
            computed_at: None,
            similar_to: None,
            models: Arc::default(),
            warnings: Arc::default(),
        },
        latency_ms: 1.0,
        tokens: Default::default(),
        timestamp: None,
        question: None,
        extra: Default::default(),
    }
}

fn change(removed: &[(&str, &str)], added: &[(&str, &str)]) -> Change {
    let chunk = |(id, text): &(&str, &str)| {
        let document = id.split('#').next().unwrap_or_default();
        Arc::new(Chunk::new((*id).into(), document.into(), "".into(), (*text).into()))
    };
    let delta =
        Delta { added: added.iter().map(chunk).collect(), removed: removed.iter().map(chunk).collect(), whole: false };
    Change { corpus: "docs".into(), delta: Arc::new(delta) }
}

#[test]
fn the_net_change_of_documents_is_told() {
    let changes = [
        change(&[("a#0", "noon"), ("b#0", "gone")], &[("a#0", "one"), ("c#0", "new")]),
        // Put back: nothing has changed in the end.
        change(&[("d#0", "x")], &[]),
        change(&[], &[("d#0", "x")]),
    ];
    let changed = Changed::of(&changes);
    let edits: Vec<(&str, Edit)> = changed.documents.iter().map(|(id, edit)| (&**id, *edit)).collect();
    assert_eq!(edits, [("a", Edit::Edited), ("b", Edit::Removed), ("c", Edit::Added)]);
    assert_eq!(changed.gone.iter().map(|id| &**id).collect::<Vec<_>>(), ["b#0"]);
}

#[test]
fn each_answer_has_its_fate_and_its_cause() {
    let answered = |text: &str, hits: &[(&str, &str)]| record(Status::Answered, text, hits);
    let idk = record(Status::Idk, "I do not know.", &[]);
    let asked = |question: &str, before: AnswerRecord, after: Option<AnswerRecord>| Asked {
        question: question.into(),
        before,
        after,
    };
    let all = vec![
        asked("same", answered("At noon.", &[("e#0", "x")]), None),
        asked("spaces", answered("At noon.", &[("e#0", "x")]), Some(answered("At  noon.", &[("e#0", "x")]))),
        asked("passages", answered("At noon.", &[("e#0", "x")]), Some(answered("At noon.", &[("c#0", "x")]))),
        asked("gained", idk.clone(), Some(answered("New.", &[("c#0", "new")]))),
        asked("changed", answered("At noon.", &[("a#0", "noon")]), Some(answered("At one.", &[("a#0", "one")]))),
        asked("lost <b>|", answered("Gone.", &[("b#0", "gone")]), Some(idk)),
    ];
    let changed = Changed::of(&[change(&[("a#0", "noon"), ("b#0", "gone")], &[("a#0", "one"), ("c#0", "new")])]);
    let impact = Impact::of(("p.ron".into(), "docs=new".into()), all, Some(changed), 5, (2.0, 0.5));
    let fates: Vec<(&str, Fate)> = impact.affected.iter().map(|one| (&*one.question, one.fate)).collect();
    let expected =
        [("lost <b>|", Fate::Lost), ("changed", Fate::Changed), ("gained", Fate::Gained), ("passages", Fate::Passages)];
    assert_eq!(fates, expected);
    assert_eq!(impact.affected[0].vanished, ["b#0".into()]);
    assert_eq!(impact.affected[1].edits, ["a".into()]);
    assert!(impact.has_vanished());
    let text = impact.to_text();
    for line in [
        "3 documents: 1 added, 1 edited, 1 removed",
        "5 of 6 questions answered again",
        "1 lost, 1 changed, 1 gained, 1 same from other passages",
        "by b; gone: b#0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let markdown = impact.to_markdown();
    assert!(markdown.contains("<b>lost</b>: lost &lt;b&gt;|</summary>"), "{markdown}");
    assert!(markdown.contains("| At noon. | At one. |"), "{markdown}");
    let html = impact.to_html();
    assert!(html.contains("At <del>noon.</del>") && html.contains("At <ins>one.</ins>"), "{html}");
    assert!(!html.contains("lost <b>"), "{html}");
}
