//! Tests of what is read of a response.

use super::*;

fn gather(pieces: &[&str]) -> Result<Generation, AnswerError> {
    let mut gathered = Gathered::default();
    for piece in pieces {
        gathered.take(piece)?;
    }
    gathered.end()
}

fn fails(reason: &str) -> AnswerError {
    AnswerError::Reported { reason: reason.to_owned(), passing: false }
}

/// Why it exists: the answer was there twice.
#[test]
fn a_whole_message_behind_pieces_repeats_them() {
    let piece = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
    let last = |text: &str| {
        format!(r#"{{"choices":[{{"delta":{{}},"message":{{"content":"{text}"}},"finish_reason":"stop"}}]}}"#)
    };
    for whole in ["At ten.", "At ten", "At"] {
        let all = gather(&[&piece("At"), &piece(if whole == "At" { "" } else { " ten" }), &last(whole), "[DONE]"]);
        assert_eq!(all.unwrap().text, whole);
    }
    for (pieces, whole) in [
        ("<think>hm</think>At ten.", "At ten."),
        ("\\n\\nAt  ten.\\n", "At ten."),
        ("Le cafe\\u0301 ouvre.", "Le café ouvre."),
    ] {
        let text = gather(&[&piece(pieces), &last(whole), "[DONE]"]).unwrap().text;
        let kept: String = serde_json::from_str(&format!("\"{pieces}\"")).unwrap();
        assert_eq!(text, kept);
    }
}

#[test]
fn signs_of_life_are_no_part_of_a_text() {
    let mut gathered = Gathered::default();
    let signs =
        [("ping", "ping"), ("ping", "2026-11-28 12:00"), ("", "ping"), ("", ": PROCESSING"), ("Heartbeat", "{}")];
    for (name, data) in signs {
        assert_eq!(gathered.event(name, data), Ok(false));
    }
    gathered.event("", r#"{"choices":[{"delta":{"content":"ping"},"finish_reason":"stop"}]}"#).unwrap();
    assert_eq!(gathered.end().unwrap().text, "ping");
}

#[test]
fn pieces_become_a_text() {
    let first = r#"{"choices":[{"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#;
    let piece = r#"{"choices":[{"delta":{"content":"Yes"}}]}"#;
    let last = r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#;
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
    let all = gather(&[first, piece, piece, last, usage, "[DONE]"]).unwrap();
    assert_eq!((all.text.as_str(), all.finish, all.prompt_tokens, all.tokens), ("YesYes", Finish::Length, 5, 2));
    assert_eq!(gather(&[piece, "[DONE]"]).unwrap().finish, Finish::Stop);
    assert_eq!(gather(&[first, piece]), Err(AnswerError::Cut));
    assert_eq!(gather(&[first, piece, "[DONE]"]), Err(AnswerError::Cut), "interrupted by another request");
    assert_eq!(gather(&[]), Err(AnswerError::Nothing));
    assert_eq!(gather(&[usage, "[DONE]"]), Err(AnswerError::NoChoices));
    assert_eq!(Gathered::whole(r#"{"choices":[]}"#), Err(AnswerError::NoChoices));
    let filtered = r#"{"choices":[{"delta":{},"finish_reason":"content_filter"}]}"#;
    assert_eq!(gather(&[filtered]), Err(AnswerError::Withheld));
}

#[test]
fn errors_are_told_in_the_servers_words() {
    let event = r#"{"error":{"message":"out of memory","code":"x"}}"#;
    assert_eq!(gather(&[event]), Err(fails("out of memory")));
    assert!(matches!(gather(&["<html>"]), Err(AnswerError::NoJson { .. })));
    for (body, text) in [
        (event, "out of memory"),
        (r#"{"error":"busy"}"#, "busy"),
        ("Bad gateway\n", "Bad gateway"),
        (r#"{"detail":"no such field"}"#, "no such field"),
        (r#"{"message":"no such model"}"#, "no such model"),
    ] {
        assert_eq!(said(body), text);
    }
    assert_eq!(said(&"x".repeat(1000)).chars().count(), 301);
    let mut gathered = Gathered::default();
    let named = gathered.event("error", r#"{"message": "CUDA out of memory", "type": "server_error"}"#).unwrap_err();
    assert!(named.passes() && named.to_string().contains("CUDA out of memory"), "{named}");
    let field = unread("error: {\"code\":400,\"message\":\"too long\"}\n\n").unwrap();
    assert_eq!(field, fails("too long"));
    assert_eq!(unread(": ping\n\n"), None);
}

#[test]
fn a_passing_error_within_a_response_is_one_that_passes() {
    for (error, passing) in [
        (r#"{"code":429,"message":"slow down"}"#, true),
        (r#"{"code":"503","message":"x"}"#, true),
        (r#"{"type":"overloaded_error","message":"x"}"#, true),
        (r#"{"status":"RESOURCE_EXHAUSTED","message":"x"}"#, true),
        (r#"{"code":400,"message":"x"}"#, false),
        (r#""x""#, false),
    ] {
        let result = gather(&[&format!(r#"{{"error":{error}}}"#)]);
        assert_eq!(result.unwrap_err().passes(), passing, "{error}");
    }
}

#[test]
fn only_what_is_needed_is_read_whatever_its_type() {
    let stop = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    for (piece, tokens) in [
        (
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"Yes"}]}}]}"#,
            0,
        ),
        (r#"{"choices":[{"delta":{"content":"Yes","reasoning_content":"hm","reasoning":"hm"}}]}"#, 0),
        (r#"{"choices":[{"delta":{"content":"Yes"}}],"usage":{"completion_tokens":null}}"#, 0),
        (r#"{"choices":[{"delta":{"content":"Yes"}}],"usage":{"completion_tokens":2.0}}"#, 2),
        (r#"{"choices":[{"delta":{"content":"Yes"}}],"usage":{"completion_tokens":-1}}"#, 0),
        (r#"{"choices":[{"delta":{"content":"Yes"}}],"usage":{"completion_tokens":1e300}}"#, u64::MAX),
        (r#"{"choices":[{"delta":{"content":"Yes"}}],"usage":[],"error":""}"#, 0),
        (r#"{"choices":[{"delta":{"content":"Yes"},"finish_reason":""}],"error":false}"#, 0),
        (r#"{"choices":[{"delta":{"content":"Yes"}}],"error":{}}"#, 0),
        (r#"{"choices":[{"delta":null,"message":{"content":"Yes"}}]}"#, 0),
        (r#"{"choices":[{"text":"Yes"}]}"#, 0),
        (r#"{"choices":[{"delta":{"content":"Yes","content_filter":{}},"index":"0","logprobs":7}]}"#, 0),
    ] {
        let generation = gather(&[piece, stop]).unwrap();
        assert_eq!((generation.text.as_str(), generation.tokens), ("Yes", tokens), "{piece}");
        assert!(["", "hm"].contains(&generation.thoughts.as_str()), "{piece}");
    }
}

#[test]
fn how_a_text_ends_is_understood() {
    let end = |reason: &str| {
        let last = format!(r#"{{"choices":[{{"delta":{{"content":"Half"}},"finish_reason":{reason}}}]}}"#);
        gather(&[&last, "[DONE]"])
    };
    for reason in [r#""stop""#, r#""STOP""#, r#""eos""#, "0", r#""end_turn""#] {
        assert_eq!(end(reason).unwrap().doubt, None, "{reason}");
    }
    for reason in [r#""max_tokens""#, r#""MAX_TOKENS""#, r#""model_context_window_exceeded""#] {
        assert_eq!(end(reason).unwrap().finish, Finish::Length, "{reason}");
    }
    for reason in [r#""error""#, r#""abort""#, r#""insufficient_system_resource""#] {
        assert!(end(reason).unwrap_err().passes(), "{reason}");
    }
    for reason in [r#""SAFETY""#, r#""RECITATION""#] {
        assert_eq!(end(reason), Err(AnswerError::Withheld), "{reason}");
    }
    assert!(end(r#""moon""#).unwrap().doubt.unwrap().contains("`moon`"));
    let broken =
        r#"{"choices":[{"delta":{"content":""},"finish_reason":"error","error":{"code":502,"message":"gone"}}]}"#;
    assert_eq!(gather(&[broken]).unwrap_err().to_string(), "the server reported an error: gone");
}

#[test]
fn one_of_several_texts_is_read() {
    let of = |number: usize, text: &str| format!(r#"{{"index":{number},"delta":{{"content":"{text}"}}}}"#);
    let both = |text: &str, other: &str| format!(r#"{{"choices":[{},{}]}}"#, of(1, other), of(0, text));
    let other = format!(r#"{{"choices":[{}]}}"#, of(1, "no"));
    let all = gather(&[&both("One", "Two"), &other, &both(" more", "no"), "[DONE]"]).unwrap();
    assert_eq!(all.text, "One more");
}

#[test]
fn an_error_without_its_field_is_an_error() {
    for (response, passing) in [
        (r#"{"object":"error","message":"slow down","code":429}"#, true),
        (r#"{"message":"slow down","type":"rate_limit_error"}"#, true),
        (r#"{"detail":"slow down"}"#, false),
    ] {
        let error = Gathered::whole(response).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.passes()), ("the server reported an error: slow down", passing));
    }
    assert_eq!(gather(&[r#"{"choices":[{"delta":{"content":"a\u0000b"}}]}"#, "[DONE]"]).unwrap().text, "ab");
}

#[test]
fn a_response_without_a_text_says_why() {
    let last = |message: &str, reason: &str| {
        gather(&[&format!(r#"{{"choices":[{{"message":{message},"finish_reason":"{reason}"}}]}}"#)])
    };
    for (message, reason, why) in [
        (r#"{"content":null,"reasoning_content":"hm"}"#, "length", "for its thoughts"),
        (r#"{"content":"","reasoning":"hm"}"#, "stop", "thoughts and nothing else"),
        (r#"{"content":null,"tool_calls":[{"id":"c"}]}"#, "tool_calls", "calls a tool"),
        (r#"{"content":null,"refusal":"I will not."}"#, "stop", "refuses: I will not."),
    ] {
        let error = last(message, reason).unwrap_err();
        assert!(error.to_string().contains(why) && !error.passes(), "{error}");
    }
}

#[test]
fn halves_of_a_letter_are_joined() {
    let half = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
    let mut gathered = Gathered::default();
    gathered.take(&half(r"Ship \ud83d")).unwrap();
    assert_eq!(gathered.text(), "Ship ");
    gathered.take(&half(r"\udea2!")).unwrap();
    assert_eq!(gathered.text(), "Ship 🚢!");
    assert_eq!(gather(&[&half(r"a\ud83d b"), "[DONE]"]).unwrap().text, "a\u{fffd} b");
    assert_eq!(gather(&[&half(r"\\ud83d \ud83d\udea2"), "[DONE]"]).unwrap().text, r"\ud83d 🚢");
}
