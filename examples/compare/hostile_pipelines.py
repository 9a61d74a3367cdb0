"""Pipeline files that grow without end if they are read naively, for BENCHMARKS.md.

    python examples/compare/hostile_pipelines.py DIR
    turnflow check DIR/include/0.ron
    turnflow run DIR/diamond-22.ron --once --state DIR/state

Each of 15 files includes the next one three times; in `diamond-N.ron` each of N layers has two nodes
that read both nodes of the layer before.
"""

import json
import sys
from pathlib import Path


def diamond(layers):
    nodes = ['"turns": JsonLines(path: "turns.jsonl")', '"query": LastTurn(input: "turns")']
    nodes += [f'"{side}0": Bm25(input: "query", corpus: "docs")' for side in "ab"]
    for layer in range(1, layers + 1):
        nodes += [f'"{side}{layer}": Rrf(inputs: ["a{layer - 1}", "b{layer - 1}"])' for side in "ab"]
    nodes += [f'"answer": ExtractiveAnswer(input: "a{layers}")']
    nodes += ['"out": JsonLinesSink(input: "answer", path: "answers.jsonl")']
    corpus = 'corpora: {"docs": Corpus(source: JsonLines(path: "docs.jsonl"))}'
    return f"Pipeline({corpus}, nodes: {{{', '.join(nodes)}}})"


def main():
    to = Path(sys.argv[1])
    (to / "include").mkdir(parents=True, exist_ok=True)
    for number in range(15):
        includes = f'"{number + 1}.ron", ' * 3
        text = f'Pipeline(include: [{includes}], nodes: {{"n{number}": Stdin()}})'
        (to / "include" / f"{number}.ron").write_text(text)
    (to / "include" / "15.ron").write_text('Pipeline(name: "x", nodes: {"query": LastTurn(input: "n0")})')
    for layers in (16, 20, 22, 40):
        (to / f"diamond-{layers}.ron").write_text(diamond(layers))
    row = {"_id": "d", "text": "The ferry leaves the harbour at noon."}
    (to / "docs.jsonl").write_text(json.dumps(row) + "\n")
    turn = {"turn": 1, "speaker": "user", "text": "When does the ferry leave?"}
    (to / "turns.jsonl").write_text("".join(json.dumps({"conversation_id": f"c{n}", **turn}) + "\n" for n in range(20)))


if __name__ == "__main__":
    main()
