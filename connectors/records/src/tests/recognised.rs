//! Which preset fits a log.

use super::*;

/// Of the presets that make turns of a log, the one for its form comes first.
#[test]
fn logs_of_other_programs_are_recognised() {
    let Some(logs) = std::env::var_os("TURNFLOW_LOGS").map(PathBuf::from) else {
        println!("skipped: TURNFLOW_LOGS names no folder of logs");
        return;
    };
    let mut wrong = Vec::new();
    for (name, _) in presets::PRESETS.iter().filter(|(name, _)| *name != "wildchat-parquet") {
        let folder = logs.join(name);
        if !folder.is_dir() {
            continue;
        }
        let input = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let input = input.filter(|path| path.file_stem().is_some_and(|stem| stem == "input")).collect::<Vec<_>>();
        let found = recognise(&input, None).unwrap();
        if found.first().is_none_or(|(first, _)| first != name) {
            wrong.push((*name, found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Calls with repeated histories and a log of whole conversations look alike: what joins more is the better one.
#[test]
fn of_presets_that_find_the_same_the_one_that_joins_more_comes_first() {
    let place = tempfile::tempdir().unwrap();
    let whole = |question: &str, answer: &str| {
        format!(
            r#""choices": [{{"message": {{"role": "assistant", "content": "{answer}"}}}}], "question": "{question}""#
        )
    };
    let first = r#"{"role": "user", "content": "When?"}"#;
    let log = format!(
        "{{\"model\": \"m\", \"id\": \"1\", \"created\": 100, \"messages\": [{first}], {}}}\n{{\"model\": \"m\", \"id\": \"2\", \"created\": 110, \
         \"messages\": [{first}, {{\"role\": \"assistant\", \"content\": \"At ten.\"}}, {{\"role\": \"user\", \"content\": \"Where?\"}}], {}}}\n",
        whole("When?", "At ten."),
        whole("Where?", "At ten.")
    );
    let path = place.path().join("log.jsonl");
    std::fs::write(&path, log).unwrap();
    let found = recognise(&[path], None).unwrap();
    let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
    assert!(names[0] == "openai-chat" && names.contains(&"openai-finetune"), "{names:?}");

    for (name, text) in [
        ("1.request.json", r#"{"metadata": {"chat": "c"}, "messages": [{"role": "user", "content": "When?"}]}"#),
        (
            "1.response.json",
            r#"{"created": 100, "choices": [{"message": {"role": "assistant", "content": "At ten."}}]}"#,
        ),
    ] {
        std::fs::create_dir_all(place.path().join("capture")).unwrap();
        std::fs::write(place.path().join("capture").join(name), text).unwrap();
    }
    let found = recognise(&[place.path().join("capture")], None).unwrap();
    assert_eq!(found.first().map(|(name, _)| *name), Some("openai-sse-capture"));
}
