"""Compares two builds of turnflow as clusters of two processes on this machine: first indexing and latency.

The builds take turns, so that both meet the same noise; each figure is the second build's divided by the first's, by
round. The processes have a secret. Process 1 is asked, with one request at a time: a search asks process 0 for its part,
and the list of
pipelines is a request that is forwarded. Standard library only.

    python3 examples/scale/two_versions.py --turnflow BUILD1 BUILD2 --data DATA/obliqa --dir DIR
"""

import argparse
import http.client
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

PIPELINE = """Pipeline(
    name: "two",
    corpora: { "docs": Corpus(source: JsonLines(path: "corpus.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 10),
        "answer": ExtractiveAnswer(input: "found"),
        "out": Stdout(input: "answer"),
    },
)
"""


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def asked(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def measured(build, directory, questions, requests):
    """Seconds of indexing, and the median milliseconds of a search and of a forwarded request."""
    for name in ("s0", "s1"):
        shutil.rmtree(directory / name, ignore_errors=True)
    ports = [free_port() for _ in range(4)]
    (directory / "hosts").write_text(f"127.0.0.1:{ports[0]}\n127.0.0.1:{ports[1]}\n")
    begun = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = []
    for process in range(2):
        command = [build, "serve", "p.ron", "--process", str(process), "--hosts", "hosts", "--secret", "secret"]
        command += ["--workers", "1", "--state", f"s{process}", "--config", "serve.ron"]
        command += ["--listen", f"127.0.0.1:{ports[2 + process]}"]
        with open(directory / f"log{process}", "w", encoding="utf-8") as log:
            started.append(subprocess.Popen(command, cwd=directory, stderr=log, stdin=subprocess.DEVNULL))
    try:
        for port in ports[2:]:
            while True:
                try:
                    if asked(port, "/readyz")[0] == 200:
                        break
                except OSError:
                    pass
                if any(process.poll() is not None for process in started) or time.monotonic() - begun > 600:
                    raise SystemExit((directory / "log0").read_text() + (directory / "log1").read_text())
                time.sleep(0.01)
        indexed = time.monotonic() - begun
        medians = []
        connection = http.client.HTTPConnection("127.0.0.1", ports[3], timeout=60)
        for kind in ("search", "forwarded"):
            taken = []
            for number in range(requests):
                question = quote(questions[number % len(questions)])
                path = f"/v1/search?query={question}&top=3" if kind == "search" else "/v1/pipelines"
                before = time.perf_counter()
                connection.request("GET", path)
                response = connection.getresponse()
                told = response.read()
                taken.append(time.perf_counter() - before)
                if response.status != 200:
                    raise SystemExit(f"{path}: {response.status}: {told!r}")
            medians.append(statistics.median(taken[requests // 10 :]) * 1000)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return [indexed, *medians, cpu]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turnflow", nargs=2, type=os.path.abspath, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=300_000)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    directory = options.dir
    directory.mkdir(parents=True, exist_ok=True)
    texts = [json.loads(line)["text"] for line in open(options.data / "corpus.jsonl", encoding="utf-8")]
    questions = [json.loads(line)["text"] for line in open(options.data / "queries.dev.jsonl", encoding="utf-8")]
    with open(directory / "corpus.jsonl", "w", encoding="utf-8") as corpus:
        for number in range(options.passages):
            again, at = divmod(number, len(texts))
            row = {"_id": f"{again}-{at}", "text": f"{texts[at]} {again}" if again else texts[at]}
            corpus.write(json.dumps(row) + "\n")
    (directory / "p.ron").write_text(PIPELINE)
    (directory / "serve.ron").write_text("Serve(limits: (rate: 0))")
    (directory / "secret").write_text("a secret of a measurement")
    ratios = [[], [], [], []]
    for number in range(options.rounds):
        builds = list(enumerate(options.turnflow))
        found = [None, None]
        # The one that is first in a round is second in the next.
        for at, build in builds if number % 2 == 0 else reversed(builds):
            found[at] = measured(build, directory, questions, options.requests)
            indexed, search, forwarded, cpu = found[at]
            told = f"indexed in {indexed:.2f} s, a search {search:.3f} ms, forwarded {forwarded:.3f} ms, processors {cpu:.2f} s"
            print(f"round {number}, build {at + 1}: {told}", flush=True)
        for kind, of in enumerate(ratios):
            of.append(found[1][kind] / found[0][kind])
    for name, of in zip(("indexing", "search", "forwarded request", "processor time"), ratios):
        print(f"{name}: {min(of):.2f} to {max(of):.2f}, median {statistics.median(of):.2f} times")


if __name__ == "__main__":
    main()
