"""An edit with standing questions: turnflow beside Pathway, with the same rows, questions, model and edits.

    python examples/compare/standing.py TURNFLOW OBLIQA MODEL_DIR [--questions 2000] [--edits 20]
        [--passages N] [--only turnflow|pathway]

Needs Python 3.11 with the packages pathway, onnxruntime, tokenizers and numpy. OBLIQA has `corpus.jsonl` and
`queries.dev.jsonl`; MODEL_DIR has `model.onnx` and `tokenizer.json`; ORT_DYLIB_PATH names the ONNX Runtime that turnflow loads.

Both follow a JSON Lines file and keep the best ten passages of every question up to date: turnflow with `mode: Live`,
Pathway with a live query of its index (`query`, not `query_as_of_now`). Of the indexes of Pathway 0.33 only `LshKnn`, which is
approximate, answers live queries; BM25, usearch and brute force are "supported only in the as-of-now variant". turnflow's
`Dense` is exact here. An edit adds a sentence to one row, and the file is
replaced. Counted are the processor time of the process from then on, and the time until its output changes for the last time
before two seconds of silence.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
TOP, SILENCE, FIRST = 10, 2.0, 900.0


def rows_of(path, most=None):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return rows[:most]


def seconds(pid):
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def serve_pathway(folder, model):
    import pathway as pw
    from pathway.stdlib.indexing import LshKnnFactory
    from peers import Encoder

    class Row(pw.Schema):
        key: str = pw.column_definition(primary_key=True)
        title: str
        text: str

    class Question(pw.Schema):
        number: int = pw.column_definition(primary_key=True)
        query: str

    @pw.udf(deterministic=True)
    def joined(title: str, text: str) -> str:
        return f"{title}\n{text}".strip()

    @pw.udf(deterministic=True)
    def listed(keys: tuple) -> str:
        return " ".join(str(key) for key in keys or ())

    fields, often = {"key": "/_id"}, {"autocommit_duration_ms": 10}
    rows = pw.io.jsonlines.read(folder / "docs.jsonl", schema=Row, mode="streaming", json_field_paths=fields, **often)
    rows = rows.select(rows.key, passage=joined(rows.title, rows.text))
    questions = pw.io.jsonlines.read(folder / "questions.jsonl", schema=Question, mode="static")
    encoder = Encoder(model, folder / "count")

    @pw.udf(deterministic=True, return_type=pw.internals.dtype.ANY_ARRAY, cache_strategy=pw.udfs.DiskCache("encoder"))
    def embed(text: str):
        return encoder([text])[0]

    factory = LshKnnFactory(dimensions=384, distance_type="cosine", embedder=embed)
    index = factory.build_index(rows.passage, rows)
    found = index.query(questions.query, number_of_matches=TOP, collapse_rows=True).select(
        number=pw.left.number, keys=listed(pw.right.key))
    pw.io.jsonlines.write(found, folder / "answers.jsonl")
    storage = pw.persistence.Backend.filesystem(folder / "cache")
    mode = pw.PersistenceMode.UDF_CACHING
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=pw.persistence.Config(storage, persistence_mode=mode))


def command(name, folder, options):
    if name == "pathway":
        return [sys.executable, __file__, "--serve-pathway", str(folder), options.model]
    (folder / "turns.jsonl").write_text("".join(
        json.dumps({"conversation_id": f"c{row['number']}", "turn": 1, "speaker": "user", "text": row["query"]}) + "\n"
        for row in rows_of(folder / "questions.jsonl")))
    models = f'models: {{ "encoder": Onnx(path: "{options.model}/model.onnx", tokenizer: "{options.model}/tokenizer.json") }},'
    hits = f'Dense(input: "query", corpus: "docs", model: "encoder", top: {TOP})'
    (folder / "live.ron").write_text(f"""Pipeline(
        mode: Live(),
        {models}
        corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
        nodes: {{
            "turns": JsonLines(path: "turns.jsonl"),
            "query": LastTurn(input: "turns"),
            "hits": {hits},
            "out": JsonLinesSink(input: "hits", path: "answers.jsonl"),
        }},
    )""")
    return [os.path.abspath(options.turnflow), "run", "live.ron", "--state", "state"]


def quiet(path, since, patience):
    """Waits until the file has not changed for a while; returns when it last did, or None if it did not."""
    last, size = None, path.stat().st_size if path.exists() else 0
    while True:
        time.sleep(0.01)
        now = path.stat().st_size if path.exists() else 0
        if now != size:
            last, size = time.monotonic(), now
        if time.monotonic() - (last or since) >= (SILENCE if last else patience):
            return last


def measure(name, options, rows, questions):
    with tempfile.TemporaryDirectory(prefix="standing-") as place:
        folder = Path(place)

        def publish():
            text = "".join(json.dumps({"_id": row["_id"], "title": row.get("title", ""), "text": row["text"]}) + "\n" for row in rows)
            (folder / "docs.new").write_text(text)
            os.replace(folder / "docs.new", folder / "docs.jsonl")

        publish()
        lines = (json.dumps({"number": number, "query": text}) + "\n" for number, text in enumerate(questions))
        (folder / "questions.jsonl").write_text("".join(lines))
        log = open(folder / "log", "w")
        process = subprocess.Popen(command(name, folder, options), cwd=folder, stdout=log, stderr=log)
        try:
            answers, begun = folder / "answers.jsonl", time.monotonic()
            first = quiet(answers, begun, FIRST)
            if first is None:
                raise SystemExit(f"{name}: no answers: {(folder / 'log').read_text()[-2000:]}")
            print(f"{name}: first answers {first - begun:.1f} s, processor {seconds(process.pid):.1f} s", flush=True)
            random.seed(7)
            took, cost, changed = [], [], []
            for number in range(options.edits):
                row = random.choice(rows)
                row["text"] = f"{row['text']} Clause {number} also applies to the rules on capital."
                before, lines_before = seconds(process.pid), answers.read_bytes().count(b"\n")
                start = time.monotonic()
                publish()
                last = quiet(answers, start, 5.0)
                took.append((last or start) - start)
                cost.append(seconds(process.pid) - before)
                changed.append(answers.read_bytes().count(b"\n") - lines_before)
            waited = [value for value, lines in zip(took, changed) if lines]
            print(f"{name}: an edit: processor {statistics.mean(cost):.2f} s, until the last answer "
                  f"{statistics.median(waited or [0]):.2f} s (greatest {max(waited or [0]):.2f}), "
                  f"{len(waited)} of {options.edits} change answers, {sum(changed)} lines, {resident(process.pid):.0f} MB", flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turnflow")
    parser.add_argument("data")
    parser.add_argument("model")
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--edits", type=int, default=20)
    parser.add_argument("--only", choices=["turnflow", "pathway"])
    parser.add_argument("--passages", type=int)
    options = parser.parse_args()
    options.model = os.path.abspath(options.model)
    texts = [row["text"] for row in rows_of(os.path.join(options.data, "queries.dev.jsonl"))]
    questions = [texts[n % len(texts)] + (f" {n}" if n >= len(texts) else "") for n in range(options.questions)]
    for name in [options.only] if options.only else ["turnflow", "pathway"]:
        measure(name, options, rows_of(os.path.join(options.data, "corpus.jsonl"), options.passages), questions)


if sys.argv[1:2] == ["--serve-pathway"]:
    serve_pathway(Path(sys.argv[2]), sys.argv[3])
elif __name__ == "__main__":
    main()
