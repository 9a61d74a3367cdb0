"""How long an edit takes until it is published, at growing numbers of documents.

Starts `turnflow serve` with a corpus whose documents are put over HTTP and searched with `Bm25`. At each size, single
documents are replaced one after another, and each request returns when its change is published. Standard library only.

    python3 examples/compare/published.py --turnflow target/debug/turnflow --corpus corpus.jsonl --dir DIR
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import time
from pathlib import Path

PIPELINE = """Pipeline(
    name: "published",
    corpora: { "docs": Corpus(source: Documents(), chunk: Whole()) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 10),
        "answer": ExtractiveAnswer(input: "found", passages: 1),
    },
)
"""
# Documents in a request; a server takes up to 2,048.
BATCH = 2000
# Seconds in which merges of the index end before edits are timed.
SETTLE = 20


def grown(given: list[str]):
    """The given texts, then new ones of their sentences."""
    yield from given
    rng = random.Random(11)
    sentences = [text.split(". ") for text in given]
    while True:
        of = [rng.choice(rng.choice(sentences)) for _ in range(len(rng.choice(sentences)))]
        yield ". ".join(of)


class Server:
    def __init__(self, turnflow: str, directory: Path, port: int):
        (directory / "pipeline.ron").write_text(PIPELINE)
        (directory / "serve.ron").write_text("Serve(limits: (rate: 0.0))\n")
        address = f"127.0.0.1:{port}"
        command = [turnflow, "serve", "pipeline.ron", "--config", "serve.ron", "--state", "state", "--listen", address]
        self.process = subprocess.Popen(command, cwd=directory)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        for _ in range(100):
            try:
                self.connection.connect()
                return
            except ConnectionRefusedError:
                time.sleep(0.1)
        raise SystemExit("the server does not answer")

    def send(self, method: str, path: str, body) -> dict:
        self.connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: {response.status} {answer[:300]!r}")
        return json.loads(answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turnflow", required=True, help="the program")
    parser.add_argument("--corpus", required=True, help="JSON Lines with `text`")
    parser.add_argument("--dir", required=True, type=Path, help="an empty or absent directory")
    parser.add_argument("--passages", default="10000,100000,1000000")
    parser.add_argument("--edits", type=int, default=60)
    parser.add_argument("--port", type=int, default=8197)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    if any(args.dir.iterdir()):
        raise SystemExit(f"{args.dir} is not empty")
    texts = grown([json.loads(line)["text"] for line in open(args.corpus, encoding="utf-8")])
    turnflow = str(Path(args.turnflow).resolve())
    server = Server(turnflow, args.dir, args.port)
    try:
        there = 0
        for size in map(int, args.passages.split(",")):
            begun = time.perf_counter()
            while there < size:
                count = min(BATCH, size - there)
                batch = [{"id": f"p{there + n}", "text": next(texts)} for n in range(count)]
                there += count
                server.send("POST", "/v1/documents" + ("?wait=true" if there == size else ""), batch)
            took = time.perf_counter() - begun
            time.sleep(SETTLE)
            edits = []
            for number in range(args.edits):
                body = {"text": f"A new text about ferries, number {number}."}
                begun = time.perf_counter()
                server.send("PUT", f"/v1/documents/p{number * 7919 % size}?wait=true", body)
                edits.append(time.perf_counter() - begun)
                time.sleep(0.05)
            edits.sort()
            p95 = edits[int(0.95 * (len(edits) - 1))]
            print(
                f"{size} documents, put in {took:.1f} s: an edit is published after {statistics.median(edits) * 1000:.1f} ms "
                f"(median), {p95 * 1000:.1f} ms (p95), {edits[-1] * 1000:.1f} ms (greatest)",
                flush=True,
            )
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    main()
