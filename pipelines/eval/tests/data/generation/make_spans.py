#!/usr/bin/env python3
"""Writes spans.json beside itself: exact match and token F1 as SQuAD's own script computes them.

The unit test of src/generation/span.rs compares its own figures with these. To rewrite, with
evaluate-v2.0.py of the repository rajpurkar/SQuAD-explorer, which needs numpy:

    python3 make_spans.py evaluate-v2.0.py
"""

import importlib.util
import json
import pathlib
import random
import sys

spec = importlib.util.spec_from_file_location("squad", sys.argv[1])
squad = importlib.util.module_from_spec(spec)
spec.loader.exec_module(squad)

SPANS = [
    "The Eiffel Tower", "eiffel tower!", "Eiffel", "a tower", "the", "", "…", "yes", "No.", "yes, the tower",
    "1,234.5", "12345", "U.S.A.", "usa", "Theodore the Great", "the great Theodore", "an\ta\nthe", "“the” Tower",
    "A–the–B", "Straße", "STRASSE", "İstanbul", "ΟΔΟΣ", "οδος", "tower tower bridge", "bridge tower", "snake_case",
    "snakecase", "中 文", "the中", "rock 'n' roll", "rock n roll", "2 the 3", "$5", "5 €",
]


def case(prediction, golds):
    paragraph = {"qas": [{"id": "q", "answers": [{"text": gold} for gold in golds]}]}
    exact, f1 = squad.get_raw_scores([{"paragraphs": [paragraph]}], {"q": prediction})
    return {"prediction": prediction, "golds": golds, "exact": exact["q"], "f1": f1["q"]}


rng = random.Random(1)
cases = [case(a, [b]) for a in SPANS for b in rng.sample(SPANS, 8) + [a]]
cases += [case(rng.choice(SPANS), rng.sample(SPANS, rng.randint(2, 4))) for _ in range(80)]
WORDS = "the a an tower Eiffel, of Paris. is tall (and) old".split()
words = lambda: " ".join(rng.choices(WORDS, k=rng.randint(1, 7)))
cases += [case(words(), [words() for _ in range(rng.randint(1, 3))]) for _ in range(80)]
lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
pathlib.Path(__file__).with_name("spans.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
print(f"{len(cases)} cases")
