"""Memory, and the time of a stop, after a log of agent records, each in a conversation of its own.

    python examples/compare/agent_records.py target/debug/turnflow [RECORDS] [BYTES]

Linux only. The last record of the log is a user's turn; its answer says that all are read. Works in a directory of
its own, which needs room for the log and as much for the conversations.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PIPELINE = """Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Headings()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs"),
        "answer": ExtractiveAnswer(input: "found"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)
"""


def record(conversation, speaker, text):
    return json.dumps({"conversation_id": conversation, "turn": 1, "speaker": speaker, "text": text}) + "\n"


def peak_mb(process):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def main():
    turnflow = str(Path(sys.argv[1]).resolve())
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 400_000
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 2_000
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "docs").mkdir()
        (here / "docs" / "lamp.md").write_text("# Lamp\n\nThe keeper lights the lamp at dusk.\n")
        (here / "pipeline.ron").write_text(PIPELINE)
        with open(here / "turns.jsonl", "w") as log:
            for number in range(count):
                log.write(record(f"c{number}", "agent", "y" * size))
            log.write(record("last", "user", "Who lights the lamp?"))
        answers = here / "answers.jsonl"
        begun = time.monotonic()
        process = subprocess.Popen([turnflow, "run", "pipeline.ron", "--state", "state"], cwd=here)
        while not (answers.exists() and answers.stat().st_size):
            if process.poll() is not None:
                sys.exit(f"turnflow ended with {process.returncode}")
            time.sleep(0.05)
        read, peak = time.monotonic() - begun, peak_mb(process)
        stopped = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait()
        print(
            f"{count} records of {size} bytes: read in {read:.1f} s, at most {peak} MB, "
            f"stopped in {time.monotonic() - stopped:.2f} s"
        )


if __name__ == "__main__":
    main()
