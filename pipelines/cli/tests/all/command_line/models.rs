//! Models that are not there or are none.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Ended, directory, run, turnflow};
use crate::support::{model, root};

#[test]
fn models_that_cannot_be_used_are_told_in_a_line() {
    let directory = directory();
    let path = directory.path();
    let missing = run(path, &["check", "answering.ron", "--set", "models.minilm.path=\"modle.onnx\""]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.out.contains("error[no-such-path]") && missing.out.contains("`model.onnx`?"), "{missing:?}");

    fs::remove_file(path.join("tokenizer.json")).unwrap();
    let missing = run(path, &["index", "answering.ron"]);
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""), "found before anything runs: {missing:?}");
    assert!(missing.err.contains("error[no-such-path]"), "{missing:?}");

    let Some(real) = model("minilm-int8") else { return };
    fs::copy(real.join("tokenizer.json"), path.join("tokenizer.json")).unwrap();
    let library = root().join("models/onnxruntime/libonnxruntime.so");
    let with = |library: &Path| -> Ended {
        let mut command = turnflow(path, &["index", "answering.ron", "--state", "state"]);
        command.env("ORT_DYLIB_PATH", library).output().unwrap().into()
    };
    with(&library).one_line(3, &["model `minilm`", "model.onnx"]);
    with(&path.join("nowhere.so")).one_line(3, &["ORT_DYLIB_PATH", "nowhere.so", "unset it"]);
    with(&path.join("model.onnx")).one_line(3, &["cannot load", "model.onnx"]);
    // Neither set nor near the model.
    run(path, &["index", "answering.ron", "--state", "state"])
        .one_line(3, &["turnflow models fetch", "ORT_DYLIB_PATH"]);
}

#[test]
fn models_list_shows_what_is_there() {
    let directory = directory();
    let list = run(directory.path(), &["models", "list"]).good();
    assert!(list.out.lines().any(|line| line.starts_with("minilm-int8 ") && line.contains("missing")), "{list:?}");
    let json = run(directory.path(), &["models", "list", "--json"]).good();
    let models: Value = serde_json::from_str(&json.out).unwrap();
    assert!(models.as_array().unwrap().iter().any(|model| model["name"] == "minilm-int8"), "{models}");
}
