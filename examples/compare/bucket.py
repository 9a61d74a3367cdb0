"""A corpus of many objects in a bucket: how long the first listing and reading take, a round after one change, and a restart.

Starts moto's S3 server in this process, fills a bucket, and starts `turnflow serve` with a corpus of it. Needs moto
(`pip install 'moto[server]'`), whose server takes most of the time: figures are of requests, and of both together.

    python3 examples/compare/bucket.py --turnflow target/debug/turnflow --objects 100000 --dir DIR
"""

import argparse
import collections
import http.client
import json
import logging
import subprocess
import time
from pathlib import Path

from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

ACCOUNT = "123456789012"
EVERY_S = 5
PIPELINE = """Pipeline(
    name: "bucket",
    corpora: {{ "docs": Corpus(source: Bucket(
        url: "s3://many/docs",
        options: {{"region": "us-east-1", "endpoint": "http://127.0.0.1:{port}", "allow_http": "true", "access_key_id": "any"}},
        secrets: {{"secret_access_key": File("key")}},
        every_s: {every_s},
    ), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 10),
        "answer": ExtractiveAnswer(input: "found", passages: 1),
    }},
)
"""


class Requests(logging.Handler):
    """Counts the requests that the server logs, by kind."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def emit(self, record):
        line = record.getMessage()
        self.counts["listings" if "list-type=2" in line else "objects read" if '"GET' in line else "others"] += 1

    def take(self):
        counts, self.counts = dict(self.counts), collections.Counter()
        return counts


def found(port: int, query: str) -> list[str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"query": query})
    connection.request("POST", "/v1/search", body, {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    return [hit["document"] for hit in reply.get("hits", [])]


def wait_for(port: int, query: str, document: str) -> float:
    begun = time.monotonic()
    while time.monotonic() - begun < 3600:
        try:
            if document in found(port, query):
                return time.monotonic() - begun
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"`{document}` is not found")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--turnflow", required=True)
    arguments.add_argument("--objects", type=int, default=100_000)
    arguments.add_argument("--dir", type=Path, required=True)
    arguments.add_argument("--port", type=int, default=8790)
    given = arguments.parse_args()
    turnflow = Path(given.turnflow).resolve()
    given.dir.mkdir(parents=True, exist_ok=True)
    requests = Requests()
    log = logging.getLogger("werkzeug")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(requests)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=given.port + 1, verbose=False)
    server.start()
    log.handlers = [requests]
    backend = s3_backends[ACCOUNT]["aws"]
    backend.create_bucket("many", "us-east-1")

    def put(number: int, text: str):
        backend.put_object("many", f"docs/{number // 1000:03}/{number:06}.txt", text.encode())

    for number in range(given.objects):
        put(number, f"Object number{number} tells of topic{number % 997} and topic{number % 7919}.")
    (given.dir / "key").write_text("any")
    pipeline = PIPELINE.format(port=given.port + 1, every_s=EVERY_S)
    (given.dir / "pipeline.ron").write_text(pipeline)
    (given.dir / "serve.ron").write_text("Serve(limits: (rate: 0.0))\n")
    command = [str(turnflow), "serve", "pipeline.ron", "--config", "serve.ron", "--state", "state"]
    command += ["--listen", f"127.0.0.1:{given.port}"]
    begun = time.monotonic()
    process = subprocess.Popen(command, cwd=given.dir)
    try:
        last = given.objects - 1
        wait_for(given.port, f"number{last}", f"{last // 1000:03}/{last:06}.txt")
        print(f"{given.objects} objects: found after {time.monotonic() - begun:.1f} s, {requests.take()}", flush=True)
        for number in (0, last // 2):
            put(number, f"Object number{number} was changed to changed{number}.")
            took = wait_for(given.port, f"changed{number}", f"{number // 1000:03}/{number:06}.txt")
            print(f"  one object changed: found after {took:.1f} s, {requests.take()}", flush=True)
        memory = Path(f"/proc/{process.pid}/status").read_text()
        print("  resident:", next(line for line in memory.splitlines() if line.startswith("VmRSS")).split(None, 1)[1])
        process.terminate()
        process.wait()
        requests.take()
        put(last, "This object was changed to changedmeanwhile.")
        begun = time.monotonic()
        process = subprocess.Popen(command, cwd=given.dir)
        answered = wait_for(given.port, "number1", "000/000001.txt")
        wait_for(given.port, "changedmeanwhile", f"{last // 1000:03}/{last:06}.txt")
        took = time.monotonic() - begun
        print(f"  restart: answers after {answered:.1f} s, change found after {took:.1f} s, {requests.take()}")
    finally:
        process.terminate()
        process.wait()
        server.stop()


if __name__ == "__main__":
    main()
