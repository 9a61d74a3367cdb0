//! Tests of IDK answers and other answers.

use super::*;
use crate::test_generator::{Scripted, answer, call, operator};
use crate::test_turn::turn;
use turnflow_engine::record::Query;

fn normalize(text: &str, support: Option<f32>) -> (String, Status) {
    let config = IdkNormalizeConfig {
        _input: String::new(),
        sentence: "IDK.".into(),
        prefixes: default_prefixes(),
        phrases: vec![],
        encoder: None,
        head: None,
        ambiguous: false,
        hedges: vec![],
        min_support: Some(0.3),
        min_shared: None,
        patterns: default_patterns(),
        confidence: None,
        judge: None,
        prompt: None,
        sampling: SamplingFields::default(),
    };
    let query = Query::new("q");
    let answer = Answer {
        query,
        text: text.into(),
        status: Status::Answered,
        hits: vec![],
        checks: Default::default(),
        support,
    };
    let operator = IdkNormalize::new(config, None);
    let stance = operator.rules.stance(text);
    let (answer, _) = operator.normalize(answer, stance);
    (answer.text.to_string(), answer.status)
}

#[test]
fn ways_of_not_knowing_become_one() {
    for text in [
        "I don’t know.",
        "Answer: I do not know the price",
        "",
        "  IDK ",
        "Unanswerable.",
        "The passages do not say.",
        "I'm sorry, but I don't have the answer to your question.",
        "Based on the sources, I'm sorry, but I don't have the answer to your question.",
        "I'm not confident in my answer based on the available documents.",
        "[1][2]",
        "…",
        "**Answer:** Nothing I was given says when the ferry leaves [1].",
    ] {
        assert_eq!(normalize(text, None), ("IDK.".into(), Status::Idk), "{text:?}");
    }
}

#[test]
fn answers_stay_without_their_prefixes() {
    for (text, want) in [
        ("Answer: Paris.", "Paris."),
        ("ANSWER: Response:  Paris.", "Paris."),
        ("Unknowns are solved for.", "Unknowns are solved for."),
        ("I do not know all. However, it is blue.", "I do not know all. However, it is blue."),
        ("Based on the sources, Paris.", "Paris."),
        ("Answer: based on the provided context: it is", "it is"),
        ("é", "é"),
        ("The documents do not have to be signed.", "The documents do not have to be signed."),
        (
            "I am not sure which ferry you mean. The northern one?",
            "I am not sure which ferry you mean. The northern one?",
        ),
    ] {
        assert_eq!(normalize(text, Some(0.9)), (want.into(), Status::Answered), "{text:?}");
    }
}

#[test]
fn low_support_is_not_knowing() {
    assert_eq!(normalize("Paris.", Some(0.29)).1, Status::Idk);
    assert_eq!(normalize("Paris.", Some(0.3)).1, Status::Answered);
}

#[test]
fn evidence_is_weighed() {
    let config = r#"(input: "answer", sentence: "IDK.",
            confidence: Some((weights: {"dense top": 4.0, "support": 1.0}, bias: -2.0, threshold: 0.6)))"#;
    let operator = operator::<IdkNormalizeConfig>(config, &Default::default());
    for (top, want, probability) in [(0.9, "Paris.", 0.832018), (0.5, "IDK.", 0.5)] {
        let Value::Answer(given) = answer("q", "Paris.", &[]) else { panic!() };
        let mut given = Answer::clone(&given);
        given.checks.insert("evidence".into(), serde_json::json!({"dense top": top}));
        let (Value::Answer(got), warnings) = call(&operator, turn(&[], "q"), Value::Answer(Arc::new(given))) else {
            panic!()
        };
        assert_eq!((&*got.text, &got.checks["confidence"]), (want, &serde_json::json!(probability)));
        assert_eq!(warnings, ["missing evidence: support"]);
    }
}

#[test]
fn the_judge_is_asked_where_rules_cannot_decide() {
    let config = r#"(input: "answer", sentence: "IDK.", judge: Some("llm"))"#;
    let undecided = "It is blue. The price is not mentioned.";
    for (text, judge, want, calls, label, warnings) in [
        ("Paris.", Scripted::fails(), "Paris.", 0, None, 0),
        ("I do not know.", Scripted::fails(), "IDK.", 0, None, 0),
        (undecided, Scripted::says(" Yes."), "IDK.", 1, Some("yes"), 0),
        (undecided, Scripted::says("Label: partial"), undecided, 1, Some("partial"), 0),
        (undecided, Scripted::says("Hm"), undecided, 1, None, 1),
        (undecided, Scripted::fails(), undecided, 1, None, 1),
    ] {
        let operator = operator::<IdkNormalizeConfig>(config, &judge.models());
        let (Value::Answer(got), told) = call(&operator, turn(&[], "q"), answer("q", text, &[])) else { panic!() };
        let said = got.checks.get("idk").and_then(|label| label.as_str());
        assert_eq!((&*got.text, judge.calls(), said, told.len()), (want, calls, label, warnings), "{text}");
    }
}

#[test]
fn ambiguity_and_doubt_are_not_knowing_if_asked() {
    for (options, text, want) in [
        ("", "It is blue. The passages do not give a price.", Status::Answered),
        ("ambiguous: true", "It is blue. The passages do not give a price.", Status::Idk),
        ("ambiguous: true", "I do not know all. However, it is blue.", Status::Idk),
        ("ambiguous: true", "The unknown soldier lies in Paris.", Status::Answered),
        ("ambiguous: true", "It is blue, which does not matter.", Status::Answered),
        (r#"hedges: ["not certain"]"#, "It is blue, but that is Not  certain!", Status::Idk),
        (r#"hedges: ["not certain"]"#, "It is not certainly blue.", Status::Answered),
    ] {
        let config = format!(r#"(input: "answer", {options})"#);
        let operator = operator::<IdkNormalizeConfig>(&config, &Default::default());
        let (Value::Answer(got), _) = call(&operator, turn(&[], "q"), answer("q", text, &[])) else { panic!() };
        assert_eq!(got.status, want, "{options}: {text}");
    }
}

#[test]
fn answers_that_share_too_little_with_their_passages_are_not_knowing() {
    let config = r#"(input: "answer", min_shared: Some(0.5))"#;
    let operator = operator::<IdkNormalizeConfig>(config, &Default::default());
    for (text, passages, want, shared) in [
        ("It leaves at noon.", &["The ferry leaves at noon."][..], Status::Answered, 1.0),
        ("It leaves at dusk from Rome.", &["The ferry leaves at noon."], Status::Idk, 0.333333),
        ("It leaves at noon.", &[], Status::Idk, 0.0),
        ("Which ferry do you mean?", &[], Status::Answered, 0.0),
    ] {
        let (Value::Answer(got), _) = call(&operator, turn(&[], "q"), answer("q", text, passages)) else { panic!() };
        assert_eq!((got.status, &got.checks["shared"]), (want, &serde_json::json!(shared)), "{text}");
    }
}

#[test]
fn phrases_of_other_languages_are_added() {
    let config = r#"(input: "answer", phrases: ["ich weiß es nicht"])"#;
    let operator = operator::<IdkNormalizeConfig>(config, &Default::default());
    for (text, want) in
        [("Ich weiß es nicht.", Status::Idk), ("I do not know.", Status::Idk), ("Mittags.", Status::Answered)]
    {
        let (Value::Answer(got), _) = call(&operator, turn(&[], "q"), answer("q", text, &[])) else { panic!() };
        assert_eq!(got.status, want, "{text}");
    }
}

#[test]
fn text_is_certain_when_a_sentence_answers() {
    let rules = IdkRules::new(&[]);
    for (beginning, certain) in [
        ("The ferry leaves", ""),
        ("The ferry leaves at noon.", ""),
        ("The ferry leaves at noon. It", "The ferry leaves at noon. It"),
        ("Answer: At noon. It", "At noon. It"),
        ("I do not know. Please", ""),
        ("The time is not stated. Please ask the office. The", ""),
        ("He said \"I do not know. It", ""),
    ] {
        assert_eq!(rules.certain(beginning), certain, "{beginning}");
    }
    let long = "and the ferry leaves ".repeat(16);
    assert_eq!(rules.certain(&long), long.trim_end());
}
