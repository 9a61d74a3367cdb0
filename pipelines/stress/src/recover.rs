//! `turnflow-stress recover`: measures the start of a process whose corpus is already indexed.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Context;
use turnflow_engine::wording::count;

use crate::checks::turnflow;
use crate::world::World;
use crate::{Common, checks};

pub(crate) fn run(common: &Common, chunks: u32) -> anyhow::Result<()> {
    let world = common.world(false, None)?;
    let model =
        common.model.as_ref().context("--model is required: the encoder for the dense index")?.canonicalize()?;
    let mut rows = String::new();
    for number in 0..chunks {
        let _ = writeln!(rows, "{{\"_id\": \"r{number}\", \"text\": \"{}\"}}", World::words("row", number));
    }
    std::fs::write(world.dir.join("docs.jsonl"), rows)?;
    let pipeline = format!(
        "Pipeline(\n    name: \"recovery\",\n    models: {{ \"minilm\": Onnx(path: {:?}, tokenizer: {:?}) }},\n    \
         corpora: {{ \"docs\": Corpus(source: JsonLines(path: \"docs.jsonl\"), chunk: Whole()) }},\n    nodes: {{\n        \
         \"turns\": Stdin(),\n        \"query\": LastTurn(input: \"turns\"),\n        \"lexical\": Bm25(input: \"query\", \
         corpus: \"docs\", top: 10),\n        \"dense\": Dense(input: \"query\", corpus: \"docs\", model: \"minilm\", top: \
         10),\n        \"fused\": Rrf(inputs: [\"lexical\", \"dense\"], top: 10),\n        \"answer\": \
         ExtractiveAnswer(input: \"fused\"),\n        \"out\": Stdout(input: \"answer\"),\n    }},\n)\n",
        model.join("model.onnx"),
        model.join("tokenizer.json")
    );
    std::fs::write(world.pipeline(), pipeline)?;
    let state = world.dir.join("state");
    let begun = Instant::now();
    let (text, well) = turnflow(&world, &state, &["index"])?;
    if !well {
        return Err(anyhow::anyhow!("cannot index the corpus: {text}"));
    }
    println!("indexed in {:.1} s: {}", begun.elapsed().as_secs_f64(), text.trim());
    let mut wrong = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        let (text, well) = turnflow(&world, &state, &["ask", &World::words("row", chunks / 2)])?;
        println!("start to first answer: {:.2} s", begun.elapsed().as_secs_f64());
        if !well || !text.contains(&format!("r{}", chunks / 2)) {
            wrong.push(format!("the answer does not contain its row: {}", text.trim()));
        }
    }
    wrong.extend(checks::restart(&world, &state)?);
    println!("{}", count(wrong.len(), "broken promise"));
    checks::verdict(&wrong)
}
