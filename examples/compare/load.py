"""Puts load on a running `turnflow serve`: PORT SECONDS CONVERSATIONS [DOCUMENTS].

Each conversation asks over /v1/turns, as a stream of events, and pauses for up to two seconds between
turns. With DOCUMENTS, a directory that the pipeline watches, one document in it changes every second.
Prints the number of answers, the errors, and the times to the first event and to the answer.
"""

import asyncio
import collections
import json
import pathlib
import random
import sys
import time

QUESTIONS = ["What is an epoch?", "How are lists fused?", "What does a sink do?", "How is a corpus declared?"]

port, seconds, conversations = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
documents = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else None
until = time.monotonic() + seconds
first, answered, errors, status = [], [], [], collections.Counter()


async def ask(conversation, turn):
    """Asks one turn; returns the HTTP status."""
    text = f"{random.choice(QUESTIONS)} {conversation}.{turn}"
    record = {"conversation_id": f"c{conversation}", "turn": turn, "speaker": "user", "text": text}
    body = json.dumps(record).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()
    head = (
        "POST /v1/turns?stream=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    code = int((await reader.readline()).split()[1])
    status[code] += 1
    has_event = has_answer = False
    while line := await reader.readline():
        if line.startswith(b"event:") and not has_event:
            has_event = True
            first.append(time.monotonic() - begun)
        has_answer |= line.startswith(b"event: answer")
    writer.close()
    if has_answer:
        answered.append(time.monotonic() - begun)
    elif code == 200:
        errors.append("a stream without an answer")
    return code


async def talk(conversation):
    turn = 0
    while time.monotonic() < until:
        await asyncio.sleep(random.random() * 2)
        turn += 1
        try:
            if await ask(conversation, turn) == 429:
                await asyncio.sleep(1)
        except (OSError, ValueError, IndexError) as error:
            errors.append(repr(error))


async def edit():
    number = 0
    while documents and time.monotonic() < until:
        number += 1
        (documents / f"load-{number % 7}.md").write_text(f"# Note\n\nSink number {number} changes now.\n")
        await asyncio.sleep(1)


async def main():
    await asyncio.gather(edit(), *(talk(number) for number in range(conversations)))


def times(name, values):
    values = sorted(values)
    if values:
        at = [values[min(len(values) - 1, int(share * len(values)))] * 1000 for share in (0.5, 0.95, 0.99)]
        print(f"{name}: p50 {at[0]:.0f} ms, p95 {at[1]:.0f} ms, p99 {at[2]:.0f} ms")


asyncio.run(main())
print(f"{len(answered)} answers, {len(errors)} errors {errors[:3]}, by status {dict(status)}")
times("first event", first)
times("answer", answered)
sys.exit(1 if errors else 0)
