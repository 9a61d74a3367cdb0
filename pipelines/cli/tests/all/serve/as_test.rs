//! An answer of the page as a test of the pipeline: what of an answer it is held to.

use super::*;

/// Answers, the number of their passages, and what a test says of them.
const ANSWERS: &[(&str, usize, &str)] = &[
    ("It is paid within thirty days [1]. Ask the desk.", 3, "It is paid within thirty days"),
    ("[1] It is paid within thirty days.", 3, "It is paid within thirty days."),
    ("No mark is in this answer. It has two sentences.", 3, "No mark is in this answer."),
    // A year and a number of a list are no marks.
    ("In [2024] it was paid within a month [2].", 3, "In [2024] it was paid within a month"),
    (
        "It is [9] days for three passages, and ten for four [3].",
        3,
        "It is [9] days for three passages, and ten for four",
    ),
    ("It says [1] in an answer without passages.", 0, "It says [1] in an answer without passages."),
    ("These are needed:\n\n- a ticket of the journey [1]\n- b [2]", 3, "a ticket of the journey"),
    ("1. Open the settings [1].\n2. Close them.", 3, "Open the settings"),
    ("- b [2]\n- c", 3, "b"),
    ("Ja [1]. Die Gebühr beträgt fünf Euro [2].", 3, "Die Gebühr beträgt fünf Euro"),
    ("返金は三十日以内に行われます[1]。窓口で聞いてください。", 3, "返金は三十日以内に行われます"),
    ("It is so [1, 2; 3-3] and stays so for all.", 3, "and stays so for all."),
    ("[1][2]", 3, ""),
    ("", 3, ""),
    ("**Fees** are five euros [1].", 3, "**Fees** are five euros"),
];

#[tokio::test]
async fn a_test_holds_an_answer_to_what_it_says() {
    if !Command::new("node").arg("--version").output().is_ok_and(|done| done.status.success()) {
        println!("skipped: there is no node");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/page");
    for name in ["astest.js", "text.js", "dom.js"] {
        std::fs::copy(page.join(name), directory.path().join(name)).unwrap();
    }
    std::fs::write(directory.path().join("package.json"), r#"{"type": "module"}"#).unwrap();
    let turns: Vec<Value> = ANSWERS
        .iter()
        .map(|(answer, passages, _)| {
            let hits: Vec<Value> = (0..*passages).map(|n| json!({"passage": format!("d#{n}"), "document": "d"})).collect();
            json!({"text": "q", "answer": answer, "history": [], "helpful": true, "record": {"hits": hits, "citations": []}})
        })
        .collect();
    let script = format!(
        "import {{ asTest }} from './astest.js';\nconsole.log(JSON.stringify({}.map(asTest)));",
        serde_json::to_string(&turns).unwrap()
    );
    std::fs::write(directory.path().join("run.js"), script).unwrap();
    let done = Command::new("node").current_dir(directory.path()).arg("run.js").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let tests: Vec<String> = serde_json::from_slice(&done.stdout).unwrap();
    for (test, (answer, _, wanted)) in tests.iter().zip(ANSWERS) {
        let said = test.split("answer: \"").nth(1).map_or("", |rest| rest.split('"').next().unwrap());
        assert_eq!(said, *wanted, "{answer}");
        assert!(answer.contains(said), "a test must hold");
    }
    assert_eq!(tests.len(), ANSWERS.len());
}
