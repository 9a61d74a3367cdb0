"""How long turns take while a corpus of 80,000 short rows is embedded.

    python examples/compare/ingest.py target/debug/turnflow models/minilm-int8 [SECONDS]

Works in a directory of its own. The model is a directory with `model.onnx` and `tokenizer.json`.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PIPELINE = """Pipeline(
    models: {{ "minilm": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json") }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm"),
        "answer": ExtractiveAnswer(input: "dense", model: "minilm"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    }},
)
"""


def row(number):
    text = f"Row {number} tells of a ferry at pier {number * 7919 % 10007}."
    return json.dumps({"_id": f"r{number}", "text": text}) + "\n"


def summary(latencies):
    ordered = sorted(latencies)

    def at(share):
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]

    return f"{len(ordered)} turns, ms: p50 {at(0.5):.0f}, p99 {at(0.99):.0f}, longest {ordered[-1]:.0f}"


def main():
    binary, model = (Path(argument).resolve() for argument in sys.argv[1:3])
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 35
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "pipeline.ron").write_text(PIPELINE.format(model=model))
        (work / "turns.jsonl").write_text("")
        (work / "docs.jsonl").write_text("".join(map(row, range(10))))

        def say(number):
            record = {"conversation_id": f"c{number}", "turn": 1, "speaker": "user"}
            with open(work / "turns.jsonl", "a") as log:
                log.write(json.dumps({**record, "text": f"Where does ferry {number} leave?"}) + "\n")

        def answers():
            path = work / "answers.jsonl"
            return [json.loads(line) for line in open(path)] if path.exists() else []

        run = subprocess.Popen(
            [binary, "run", "pipeline.ron", "--state", "state"], cwd=work, stderr=subprocess.DEVNULL
        )
        say(0)
        while not answers():
            time.sleep(0.1)
        for number in range(1, 21):
            say(number)
            time.sleep(0.2)
        time.sleep(1)
        print("idle:", summary([answer["latency_ms"] for answer in answers()][1:]))
        (work / "docs.new").write_text("".join(map(row, range(80_000))))
        (work / "docs.new").rename(work / "docs.jsonl")
        time.sleep(1.5)
        begun, number = time.time(), 1000
        while time.time() - begun < seconds:
            say(number)
            number += 1
            time.sleep(0.2)
        while len(answers()) < 21 + number - 1000:
            time.sleep(0.1)
        beside = [answer["latency_ms"] for answer in answers() if int(answer["conversation_id"][1:]) >= 1000]
        print("beside the ingest:", summary(beside))
        run.kill()
        run.wait()


if __name__ == "__main__":
    main()
