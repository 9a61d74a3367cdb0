"""Whether any number of processes and workers gives the same answers while documents change.

Runs whole ObliQA or whole MTRAG through `turnflow cluster`, in rounds. In each round, some documents are edited, some
are removed and some come back, and then the next part of the log is asked. Every shape starts with the state of the one
before and with the first documents. The hits, their scores and the answers are compared with those of the first shape,
bit by bit. Standard library only.

    python3 examples/scale/changing.py --turnflow target/debug/turnflow --model models/minilm-int8 \\
        --data DATA/obliqa --dir DIR
    python3 examples/scale/changing.py --turnflow target/debug/turnflow --model models/minilm-int8 \\
        --data DATA/mtrag --dir DIR
"""

import argparse
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

SHAPES = "1x1,1x2,2x1,2x2,4x1,4x2"
# Seconds that a round may take.
PATIENCE = 900

HEAD = """Pipeline(
    name: "changing",
    conversations: (max_in_flight: 64),
    models: { "minilm": Onnx(path: "MODEL/model.onnx", tokenizer: "MODEL/tokenizer.json", pooling: Mean, max_tokens: 256) },
    corpora: { CORPORA },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl", follow: true),
"""
OBLIQA = """        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 50),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 50),
"""
MTRAG = """        "query": RuleRewrite(input: "turns"),
        "lexical": Bm25(input: "query", corpus: FromTurn, idf: Okapi, top: 50),
        "dense": Dense(input: "query", corpus: FromTurn, model: "minilm", top: 50),
"""
TAIL = """        "fused": Rrf(inputs: ["lexical", "dense"], k: 60, top: 20),
        "answer": ExtractiveAnswer(input: "fused", passages: 3),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)
"""


def rows_of(path: Path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def changed(rows: list[dict], version: int):
    """The documents of a version: those of the first one, with some edited and others left out."""
    if version == 0:
        return list(rows)
    kept = (row for at, row in enumerate(rows) if (at + version) % 97 != 0)
    edited = []
    for at, row in enumerate(kept):
        if (at + 7 * version) % 41 == 0:
            row = {**row, "text": f"{row['text']} Amended in version {version}."}
        edited.append(row)
    return edited


class Benchmark:
    def __init__(self, data: Path):
        if (data / "queries.dev.jsonl").exists():
            self.corpora = {"docs": rows_of(data / "corpus.jsonl")}
            self.nodes = OBLIQA
            self.turns = [
                {"conversation_id": row["_id"], "turn": 1, "speaker": "user", "text": row["text"]}
                for row in rows_of(data / "queries.dev.jsonl")
            ]
        else:
            self.corpora = {path.stem: rows_of(path) for path in sorted((data / "corpus").glob("*.jsonl"))}
            self.nodes = MTRAG
            self.turns = rows_of(data / "turns.dev.jsonl")

    def pipeline(self, model: Path):
        source = '"{0}": Corpus(source: JsonLines(path: "{0}.jsonl", watch: true), chunk: Whole())'
        corpora = ", ".join(source.format(name) for name in self.corpora)
        return (HEAD + self.nodes + TAIL).replace("MODEL", str(model)).replace("CORPORA", corpora)


class Cluster:
    """A running cluster, and the files that it reads and writes."""

    def __init__(self, turnflow: Path, directory: Path, benchmark: Benchmark, shape: str):
        self.directory, self.benchmark, self.markers, self.asked = directory, benchmark, 0, 0
        for left in ["answers.jsonl", "state/turns.redb"]:
            (directory / left).unlink(missing_ok=True)
        (directory / "turns.jsonl").write_text("")
        self.publish(0)
        processes, workers = shape.split("x")
        command = [turnflow, "cluster", "p.ron", "--processes", processes, "--workers", workers, "--state", "state"]
        self.process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL)

    def publish(self, version: int):
        """Replaces the documents."""
        for name, rows in self.benchmark.corpora.items():
            marker = {"_id": "marker", "text": f"zqmarker{version}"}
            beside = self.directory / f"{name}.new"
            beside.write_text("".join(json.dumps(row) + "\n" for row in [*changed(rows, version), marker]))
            beside.rename(self.directory / f"{name}.jsonl")

    def ask(self, turns: list[dict]):
        """Asks, and waits for the answers."""
        with open(self.directory / "turns.jsonl", "a", encoding="utf-8") as log:
            log.writelines(json.dumps(turn) + "\n" for turn in turns)
        self.asked += sum(turn["speaker"] == "user" for turn in turns)
        until = time.monotonic() + PATIENCE
        while self.answered() < self.asked:
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{self.asked - self.answered()} turns are not answered")
            time.sleep(0.05)

    def answered(self):
        answers = self.directory / "answers.jsonl"
        return answers.read_bytes().count(b"\n") if answers.exists() else 0

    def wait_for(self, version: int):
        """Asks for the marker of a version until it is found: then the version is published."""
        for name in self.benchmark.corpora:
            found = False
            while not found:
                self.markers += 1
                turn = {"conversation_id": f"marker {self.markers}", "turn": 1, "speaker": "user"}
                self.ask([{**turn, "text": f"zqmarker{version}", "collection": name}])
                last = rows_of(self.directory / "answers.jsonl")[-1]
                found = any(f"zqmarker{version}" in hit["text"] for hit in last["hits"])
                time.sleep(0 if found else 0.2)

    def said(self):
        """What each turn's answer says."""
        said = {}
        for record in rows_of(self.directory / "answers.jsonl"):
            key = (record["conversation_id"], record["turn"])
            if key in said:
                raise SystemExit(f"{key} is answered twice")
            hits = [(hit["passage"], hit["score"], hit["text"]) for hit in record["hits"]]
            said[key] = (record["answer"], hits)
        return {key: value for key, value in said.items() if not key[0].startswith("marker ")}

    def end(self):
        self.process.send_signal(signal.SIGINT)
        if self.process.wait() != 0:
            raise SystemExit("the cluster did not end in order")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turnflow", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="a directory with model.onnx and tokenizer.json")
    parser.add_argument("--data", type=Path, required=True, help="the directory of ObliQA or of MTRAG")
    parser.add_argument("--dir", type=Path, required=True, help="working directory; it is emptied first")
    parser.add_argument("--shapes", default=SHAPES, help=f"PROCESSESxWORKERS, in order [default: {SHAPES}]")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    shutil.rmtree(options.dir, ignore_errors=True)
    options.dir.mkdir(parents=True)
    benchmark = Benchmark(options.data)
    (options.dir / "p.ron").write_text(benchmark.pipeline(options.model.resolve()))
    expected = None
    for shape in options.shapes.split(","):
        begun = time.monotonic()
        cluster = Cluster(options.turnflow.resolve(), options.dir, benchmark, shape)
        try:
            turns = benchmark.turns
            size = -(-len(turns) // options.rounds)
            for version in range(options.rounds):
                if version > 0:
                    cluster.publish(version)
                cluster.wait_for(version)
                cluster.ask(turns[version * size : (version + 1) * size])
            cluster.end()
        finally:
            cluster.process.kill()
        said = cluster.said()
        expected = expected or said
        differ = [key for key in said.keys() | expected.keys() if said.get(key) != expected.get(key)]
        took = time.monotonic() - begun
        print(f"{shape}: {len(said)} answers in {options.rounds} versions of the documents, {took:.0f} s; {len(differ)} differ")
        if differ:
            raise SystemExit(f"for example {differ[0]}: {said.get(differ[0])} instead of {expected.get(differ[0])}")


if __name__ == "__main__":
    main()
