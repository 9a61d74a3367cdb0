"""How fast messages become turns, and what that takes in memory and on disk.

    python3 pipelines/stress/messages.py TURNFLOW [CONVERSATIONS]

Ten messages a conversation, half of them questions, from many conversations mixed and in no order within a hundred. First
`turnflow map` with everything in memory, then `turnflow run --once` with a state directory and a pipeline without a model,
which also answers each question. Prints messages a second, the most memory, and the size of the store of the assembly.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

PROGRAM = "{id, conversation: .chat, speaker: (.role | role), text: .content, time, order: .time}"


def write(path, conversations):
    chance = random.Random(1)
    with path.open("w") as log:
        for first in range(0, conversations, 100):
            some = range(first, min(first + 100, conversations))
            messages = [(at, chat) for chat in some for at in range(10)]
            chance.shuffle(messages)
            for at, chat in messages:
                role = "user" if at % 2 == 0 else "assistant"
                text = f"message {at} of chat {chat} about subject {chance.randrange(1000)} " + "and so on " * 8
                record = {"id": f"{chat}-{at}", "chat": f"c{chat}", "role": role, "content": text, "time": 1_772_700_000 + at}
                log.write(json.dumps(record) + "\n")


def measure(name, command, messages, out=None):
    begun = time.monotonic()
    with open(out or os.devnull, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{command} ended with {status}")
    took, processor = time.monotonic() - begun, used.ru_utime + used.ru_stime
    print(
        f"{name}: {messages / took:,.0f} messages a second, {1e6 * processor / messages:.0f} µs of processor time each, "
        f"{used.ru_maxrss / 1024:,.0f} MiB at most"
    )


def main(turnflow, conversations):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        log, messages = directory / "log.jsonl", 10 * conversations
        write(log, conversations)
        (directory / "m.jq").write_text(PROGRAM)
        measure("map", [turnflow, "map", "--jq", str(directory / "m.jq"), str(log)], messages)
        (directory / "p.ron").write_text(
            """Pipeline(nodes: {
                "turns": JsonLines(path: "log.jsonl", map: JqFile("m.jq")),
                "query": LastTurn(input: "turns"),
                "out": JsonLinesSink(input: "query", path: "out.jsonl"),
            })"""
        )
        state = directory / "state"
        measure("run", [turnflow, "run", str(directory / "p.ron"), "--once", "--state", str(state)], messages)
        with (directory / "out.jsonl").open() as file:
            answers = sum(1 for _ in file)
        store = sum(file.stat().st_size for file in state.rglob("assembly.redb"))
        print(f"{answers} answers; the store of the assembly: {store / 2**20:,.0f} MiB, {store / messages:.0f} bytes a message")


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 100_000)
