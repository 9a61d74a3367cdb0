"""How many spans turnflow takes in a second of processor time.

    python3 pipelines/stress/spans.py TURNFLOW [SPANS]

Sends spans over HTTP in JSON, 500 a request, to a pipeline without a model, which runs on one core. First one in ten is
the call of a model, then each. Prints the time of the processor until the last request was answered, and until the last
turn was.
"""

import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

TOGETHER = 500
PATIENCE_S = 300


def attribute(key, value):
    return {"key": key, "value": {"stringValue": value}}


def said(role, text):
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def span(number, is_call):
    if is_call:
        attributes = [
            attribute("gen_ai.operation.name", "chat"),
            attribute("gen_ai.conversation.id", f"c{number // 40}"),
            attribute("gen_ai.input.messages", said("user", f"What is said of subject {number} after thirty days?")),
            attribute("gen_ai.output.messages", said("assistant", f"That it can be sent back, {number}.")),
        ]
    else:
        attributes = [
            attribute("db.system", "postgresql"),
            attribute("db.statement", f"SELECT * FROM orders WHERE id = {number}"),
            attribute("http.method", "GET"),
            attribute("net.peer.name", "db.internal"),
        ]
    begun = 1_772_700_000_000_000_000 + number * 1_000_000
    return {
        "traceId": f"{number:032x}",
        "spanId": f"{number:016x}",
        "name": "chat" if is_call else "SELECT",
        "kind": 3,
        "startTimeUnixNano": str(begun),
        "endTimeUnixNano": str(begun + 500_000),
        "attributes": attributes,
    }


def body(first, every):
    spans = [span(number, number % every == 0) for number in range(first, first + TOGETHER)]
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]})


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def processor_s(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def send(connection, text):
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            connection.request("POST", "/v1/traces", text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                return
        except OSError:
            connection.close()
        time.sleep(0.1)
    sys.exit("the spans are not taken")


def measure(turnflow, count, every):
    with tempfile.TemporaryDirectory() as directory:
        directory, port = pathlib.Path(directory), free_port()
        (directory / "p.ron").write_text(
            f"""Pipeline(nodes: {{
                "turns": Otlp(listen: "127.0.0.1:{port}", max_waiting: 10000000),
                "query": LastTurn(input: "turns"),
                "out": JsonLinesSink(input: "query", path: "answers.jsonl"),
            }})"""
        )
        bodies = [body(first, every) for first in range(0, count, TOGETHER)]
        command = ["taskset", "-c", "0", turnflow, "run", str(directory / "p.ron"), "--state", str(directory / "state")]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            send(connection, "{}")
            begun = processor_s(process)
            for text in bodies:
                send(connection, text)
            taken = processor_s(process) - begun
            expected, answers = len(range(0, len(bodies) * TOGETHER, every)), directory / "answers.jsonl"
            until = time.monotonic() + PATIENCE_S
            while sum(1 for _ in answers.open()) < expected:
                if time.monotonic() > until:
                    sys.exit(f"{expected} answers do not come")
                time.sleep(0.5)
            answered = processor_s(process) - begun
        finally:
            process.terminate()
            process.wait()
    spans = len(bodies) * TOGETHER
    print(f"one in {every} is a call: {spans / taken:,.0f} spans a second until taken, {spans / answered:,.0f} until answered")


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
for every in (10, 1):
    measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 20_000, every)
