"""How many turns of calls without an id come into the right conversation.

    python3 pipelines/stress/conversations.py TURNFLOW MTRAG_TURNS

Each call repeats the messages of its conversation, as a proxy logs them, and names no conversation. First the conversations
of MTRAG's log of turns, then 1,000 that begin with the same question and answer. Calls of all conversations come mixed. At
most 500 messages wait at once, so that most calls go on with what is stored. Prints the share of questions that are in the
conversation of the others with which they belong.
"""

import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile


def of_mtrag(path):
    conversations = collections.defaultdict(list)
    for line in pathlib.Path(path).read_text().splitlines():
        turn = json.loads(line)
        role = "user" if turn["speaker"] == "user" else "assistant"
        conversations[turn["conversation_id"]].append({"role": role, "content": turn["text"]})
    return list(conversations.values())


def alike(number):
    subjects = random.Random(1)
    conversations = []
    for _ in range(number):
        said = [("user", "Hello"), ("assistant", "Hello! How can I help?")]
        for _ in range(4):
            subject = subjects.randrange(5000)
            said += [("user", f"What about subject {subject}?"), ("assistant", f"Subject {subject} is on page {subject % 97}.")]
        conversations.append([{"role": role, "content": text} for role, text in said])
    return conversations


def calls(conversations):
    """The calls, mixed; those of a conversation stay in their order."""
    questions = [[at for at, said in enumerate(all) if said["role"] == "user"] for all in conversations]
    order = [number for number, of in enumerate(questions) for _ in of]
    random.Random(2).shuffle(order)
    taken = collections.Counter()
    for call, number in enumerate(order):
        at = questions[number][taken[number]]
        taken[number] += 1
        said = conversations[number]
        answer = said[at + 1 : at + 2]
        choices = [{"message": answer[0]}] if answer and answer[0]["role"] == "assistant" else []
        yield {
            "id": f"call-{call}",
            "timestamp": 1_772_700_000 + call,
            "request": {"model": "m", "messages": said[: at + 1]},
            "response": {"choices": choices},
        }


def measure(turnflow, name, conversations):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        with (directory / "log.jsonl").open("w") as log:
            for call in calls(conversations):
                log.write(json.dumps(call) + "\n")
        (directory / "p.ron").write_text(
            """Pipeline(nodes: {
                "turns": JsonLines(path: "log.jsonl", map: Preset("openai-chat"), conversations: (max_waiting: 500)),
                "query": LastTurn(input: "turns"),
                "out": JsonLinesSink(input: "query", path: "out.jsonl", body: Jq("[.conversation_id, .turn, .query]")),
            })"""
        )
        subprocess.run([turnflow, "run", str(directory / "p.ron"), "--once"], check=True, stderr=subprocess.DEVNULL)
        found = collections.defaultdict(list)
        for line in (directory / "out.jsonl").read_text().splitlines():
            conversation, turn, query = json.loads(line)
            found[conversation].append((turn, query))
    questions = [[said["content"] for said in all if said["role"] == "user"] for all in conversations]
    asked = sum(map(len, questions))
    # What is in one conversation, in its order, is compared with the one that begins with most of it.
    by_first = collections.defaultdict(list)
    for all in questions:
        by_first[tuple(all[:2])].append(all)
    right = 0
    for turns in found.values():
        texts = [text for _, text in sorted(turns)]
        candidates = by_first.get(tuple(texts[:2]), [])
        best = max(candidates, key=lambda all: sum(a == b for a, b in zip(all, texts)), default=None)
        if best is not None:
            right += sum(a == b for a, b in zip(best, texts))
            candidates.remove(best)
    print(f"{name}: {right} of {asked} questions ({100 * right / asked:.2f} %) in {len(conversations)} conversations")


if len(sys.argv) != 3:
    sys.exit(__doc__)
measure(sys.argv[1], "MTRAG", of_mtrag(sys.argv[2]))
measure(sys.argv[1], "alike", alike(1000))
