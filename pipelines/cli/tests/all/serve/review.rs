//! The review queue over HTTP and on the page.

use super::groups::send;
use super::page::browser;
use super::*;

/// A corpus whose documents have readers and come from elsewhere, and one that everybody may read.
const PIPELINE: &str = r#"Pipeline(
    name: "demo",
    corpora: {
        "closed": Corpus(source: Directory(path: "closed", pattern: "*.md"), chunk: Whole(), access: "groups"),
        "open": Corpus(source: Directory(path: "open", pattern: "*.md"), chunk: Whole()),
    },
    nodes: {
        "turns": Turns(),
        "query": LastTurn(input: "turns"),
        "board": Bm25(input: "query", corpus: "closed"),
        "all": Bm25(input: "query", corpus: "open"),
        "found": Rrf(inputs: ["board", "all"]),
        "answer": ExtractiveAnswer(input: "found"),
        "final": IdkNormalize(input: "answer"),
        "out": Answers(input: "final"),
        "review": Review(input: "final", path: "review.jsonl", rules: {
            "all": (of: Any),
            "declined": (of: Declined),
        }),
    },
)"#;

const SECRETS: [(&str, &str); 3] = [("ADMIN", "admin-secret"), ("CHIEF", "chief-secret"), ("ANN", "ann-secret")];

fn start(directory: &Path, pipeline: &str) -> Server {
    for (folder, name, text) in [
        ("open", "plan.md", "A plan of the island hangs at the pier."),
        ("closed", "plan.md", "---\ngroups: board\n---\nThe secret plan for the ferry is to sell it."),
        ("open", "ferry.md", "The ferry to the island leaves at nine."),
    ] {
        std::fs::create_dir_all(directory.join(folder)).unwrap();
        std::fs::write(directory.join(folder).join(name), text).unwrap();
    }
    let config = r#"Serve(tokens: [
        (name: "admin", token: Env("ADMIN"), documents: Manage),
        (name: "chief", token: Env("CHIEF"), documents: Manage, extra: {"groups": ["board"]}),
        (name: "ann", token: Env("ANN"), extra: {"groups": ["board"]}),
    ])"#;
    std::fs::write(directory.join("serve.ron"), config).unwrap();
    Server::start(directory, pipeline, &["--config", "serve.ron"], &SECRETS)
}

async fn ask(server: &Server, name: &str, conversation: &str, text: &str) {
    let turn = json!({ "conversation_id": conversation, "turn": 1, "speaker": "user", "text": text });
    let (status, told) = send(server, name, "POST", "/v1/turns", Some(turn)).await;
    assert_eq!(status, 200, "{told}");
}

/// Waits until so many are open.
async fn opened(server: &Server, open: usize) {
    until(async || send(server, "chief", "GET", "/v1/review", None).await.1["open"] == open).await;
}

#[tokio::test]
async fn answers_are_listed_and_judged_by_those_who_may() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), PIPELINE);
    ask(&server, "ann", "secret", "What is the plan for the ferry?").await;
    opened(&server, 1).await;
    for number in 0..4 {
        ask(&server, "ann", &format!("c{number}"), "Xylophones?").await;
        opened(&server, 2 + number).await;
    }
    assert_eq!(send(&server, "ann", "GET", "/v1/review", None).await.0, 403);
    let list = async |name: &str, query: &str| {
        let (status, list) = send(&server, name, "GET", &format!("/v1/review?{query}"), None).await;
        assert_eq!(status, 200, "{list}");
        list
    };
    // Who is on the board reads it, and who is not sees that there is something.
    let all = list("chief", "").await;
    assert_eq!((&all["node"], &all["nodes"], &all["has_more"]), (&json!("review"), &json!(["review"]), &json!(false)));
    let first = &all["data"][0];
    assert_eq!((&first["conversation_id"], &first["withheld"]), (&json!("secret"), &json!(false)), "{first:#}");
    assert!(first["hits"].to_string().contains("sell"), "{first:#}");
    let of_admin = list("admin", "").await;
    let hidden = &of_admin["data"][0];
    assert_eq!((&hidden["answer"], &hidden["withheld"]), (&json!(null), &json!(true)), "{hidden:#}");
    assert!(
        !of_admin.to_string().contains("sell") && hidden["hits"].to_string().contains("leaves at nine"),
        "{hidden:#}"
    );
    let id = |item: &Value| item["id"].as_str().unwrap().to_owned();
    let good = json!({ "verdict": "good" });
    let judge = async |name: &str, id: &str, body: Value| {
        send(&server, name, "POST", &format!("/v1/review/{id}"), Some(body)).await
    };
    assert_eq!(judge("ann", &id(first), good.clone()).await.0, 403);
    let (status, told) = judge("admin", &id(first), good.clone()).await;
    assert!(status == 403 && told["error"]["message"].to_string().contains("may not judge it"), "{told}");

    // Pages, and rules.
    let page = list("admin", "limit=2").await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (2, &json!(true)));
    let next = page["next"].as_str().unwrap();
    let page = list("admin", &format!("limit=3&after={next}")).await;
    let names: Vec<&str> =
        page["data"].as_array().unwrap().iter().map(|item| item["conversation_id"].as_str().unwrap()).collect();
    assert_eq!((names, &page["has_more"]), (vec!["c1", "c2", "c3"], &json!(false)));
    assert_eq!(list("admin", "rule=declined").await["data"].as_array().unwrap().len(), 4);
    assert_eq!(list("admin", "rule=none").await["data"], json!([]));
    for (query, word) in [
        ("limit=0", "`limit` must be 1 to 100"),
        ("limit=x", "bad query"),
        ("state=closed", "unknown variant `closed`"),
        ("stat=open", "unknown field `stat`"),
        ("after=none", "`after` is the id of no answer in this list"),
    ] {
        let (status, told) = send(&server, "admin", "GET", &format!("/v1/review?{query}"), None).await;
        assert!(status == 400 && told["error"]["message"].as_str().unwrap().contains(word), "{query}: {status} {told}");
    }
    for query in ["pipeline=none", "node=none"] {
        assert_eq!(send(&server, "admin", "GET", &format!("/v1/review?{query}"), None).await.0, 404, "{query}");
    }

    // Verdicts.
    let second = id(&all["data"][1]);
    for (body, word) in [
        (json!({}), "missing field `verdict`"),
        (json!({ "verdict": "fine" }), "unknown verdict `fine`"),
        (json!({ "verdict": 1 }), "invalid type"),
        (json!({ "verdict": "bad", "corection": "x" }), "unknown field `corection`"),
        (json!({ "verdict": "bad", "by": "somebody" }), "unknown field `by`"),
        (json!({ "verdict": "bad", "relevant": "a" }), "invalid type"),
        (json!({ "verdict": "bad", "answerable": "yes" }), "invalid type"),
        (json!({ "verdict": "good", "correction": "x" }), "a good answer needs no `correction`"),
        (json!({ "verdict": "bad", "relevant": ["a"], "irrelevant": ["a"] }), "cannot be both"),
        (json!([]), "the body must be a JSON object"),
    ] {
        let (status, told) = judge("admin", &second, body.clone()).await;
        assert!(status == 400 && told["error"]["message"].as_str().unwrap().contains(word), "{body}: {status} {told}");
    }
    assert_eq!(judge("admin", "none", good.clone()).await.0, 404);
    let bad = json!({ "verdict": "bad", "answerable": true, "correction": "At nine.", "relevant": ["ferry.md#0"],
        "irrelevant": ["plan.md#0"], "comment": "It is in the timetable." });
    let (status, told) = judge("admin", &second, bad.clone()).await;
    assert_eq!((status, &told["id"]), (200, &json!(second)), "{told}");
    for (field, value) in bad.as_object().unwrap() {
        assert_eq!(&told["judgement"][field], value, "{told}");
    }
    assert_eq!(told["judgement"]["by"], "admin");
    // The last one counts, and both are kept.
    assert_eq!(judge("chief", &second, good.clone()).await.0, 200);
    let judged = list("admin", "state=judged").await;
    assert_eq!((&judged["open"], &judged["judged"]), (&json!(4), &json!(1)), "{judged:#}");
    let last = &judged["data"][0]["judgement"];
    assert_eq!((&last["verdict"], &last["by"], &last["correction"]), (&json!("good"), &json!("chief"), &json!(null)));
    let journal = std::fs::read_to_string(directory.path().join("review.jsonl")).unwrap();
    assert!(journal.contains("It is in the timetable.") && journal.contains("\"chief\""));
    // A verdict on a closed answer quotes it.
    let quote = json!({ "verdict": "bad", "correction": "They buy more.", "comment": "see the minutes" });
    assert_eq!(judge("chief", &id(first), quote).await.0, 200);
    let judged = list("admin", "state=judged").await.to_string();
    assert!(!judged.contains("buy more") && !judged.contains("minutes"), "{judged}");
    drop(server);

    // It is all there after a kill; without access, everything is readable; without the node, there is no queue.
    let open = PIPELINE.replace(", access: \"groups\"", "");
    let server = start(directory.path(), &open);
    let (_, list) = send(&server, "admin", "GET", "/v1/review?state=judged", None).await;
    assert_eq!((&list["judged"], &list["open"]), (&json!(2), &json!(3)), "{list:#}");
    assert!(list.to_string().contains("buy more"), "{list:#}");
    drop(server);
    let without = open.replace("\"review\": Review", "\"file\": JsonLinesSink").replace("review.jsonl", "file.jsonl");
    let at = without.find(", rules:").unwrap();
    let end = at + without[at..].find("}),").unwrap();
    let server = start(directory.path(), &format!("{}),{}", &without[..at], &without[end + 3..]));
    let (status, told) = send(&server, "admin", "GET", "/v1/review", None).await;
    assert!(status == 404 && told["error"]["message"].to_string().contains("no sink `Review`"), "{told}");
}

#[tokio::test]
async fn the_page_shows_the_queue_and_takes_verdicts() {
    let Some(with) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path(), PIPELINE);
    ask(&server, "ann", "secret", "What is the plan for the ferry?").await;
    opened(&server, 1).await;
    for number in 0..30 {
        ask(&server, "ann", &format!("c{number}"), &format!("Xylophones {number}?")).await;
    }
    opened(&server, 31).await;
    let hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> \u{202e}ferry";
    ask(&server, "ann", "hostile", hostile).await;
    opened(&server, 32).await;
    python::run(with, "page_review.py", &server, &["chief-secret"]).await;
    let journal = std::fs::read_to_string(directory.path().join("review.jsonl")).unwrap();
    assert!(journal.contains("At nine o'clock."), "{journal}");
}
