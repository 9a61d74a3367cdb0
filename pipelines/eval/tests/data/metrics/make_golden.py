#!/usr/bin/env python3
"""Writes golden.json beside itself: small retrieval runs and what pytrec_eval says of them.

The unit test of src/eval/metrics.rs compares its own figures with these. To rewrite:

    python3 -m venv golden-venv
    golden-venv/bin/pip install pytrec-eval-terrier==0.5.11
    golden-venv/bin/python make_golden.py

pytrec-eval-terrier is pytrec_eval with wheels: the same module and the same C
code (trec_eval 9.0.8, which holds scores as 32-bit floats).
"""

import json
import pathlib
import random

import pytrec_eval

CUTOFFS = (1, 2, 3, 5, 10)
FAMILIES = {"recall": "recall", "ndcg_cut": "ndcg", "map_cut": "map", "P": "precision", "success": "hit"}


def figures(row):
    """pytrec_eval's names to turnflow's. mrr@10 follows from the reciprocal rank itself."""
    out = {f"{ours}@{k}": row[f"{theirs}_{k}"] for theirs, ours in FAMILIES.items() for k in CUTOFFS}
    out["mrr"] = row["recip_rank"]
    out["mrr@10"] = row["recip_rank"] if row["recip_rank"] > 1 / 10.5 else 0.0
    return out


def case(name, qrels, run):
    """One golden case; the mean is given only where both tools average over the same queries."""
    cuts = ",".join(map(str, CUTOFFS))
    measures = {f"{family}.{cuts}" for family in FAMILIES} | {"recip_rank"}
    rows = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    per_query = {q: figures(r) for q, r in rows.items()}
    judged = {q for q, docs in qrels.items() if any(r > 0 for r in docs.values())}
    mean = None
    if judged and judged == set(per_query):
        names = next(iter(per_query.values()))
        mean = {m: sum(r[m] for r in per_query.values()) / len(per_query) for m in names}
    return {"name": name, "qrels": qrels, "run": run, "per_query": per_query, "mean": mean}


def ranked(docs):
    """Strictly falling scores in the order given."""
    return {d: float(len(docs) - i) for i, d in enumerate(docs)}


def drawn(seed, queries, pool, grades, levels, longest):
    """Random judgements and results; few score levels make many ties, and a cut-off may fall inside one."""
    rng = random.Random(seed)
    docs = [f"d{i}" for i in range(pool)]
    qrels, run = {}, {}
    for q in range(queries):
        judged = rng.sample(docs, rng.randint(1, pool // 2))
        qrels[f"q{q}"] = {d: rng.choice(grades) for d in judged}
        qrels[f"q{q}"][judged[0]] = max(grades)
        got = rng.sample(docs, rng.randint(1, longest))
        run[f"q{q}"] = {d: (rng.randint(0, levels) / 8 if levels else rng.random()) for d in got}
    return qrels, run


CASES = [
    case("plain", {"q": {"a": 1, "b": 1, "c": 0}}, {"q": ranked(["a", "x", "b", "c"])}),
    case("all-tied", {"q": {"a": 1, "m": 1}}, {"q": {d: 0.5 for d in "abcmxyz"}}),
    case("tied-prefixes", {"q": {"d1": 1, "d10": 2}}, {"q": {d: 1.0 for d in ["d1", "d2", "d10", "d100", "D1"]}}),
    case("tied-utf8", {"q": {"é": 1, "z": 1}}, {"q": {d: 1.0 for d in ["é", "z", "Z", "中", "😀", "\uffee"]}}),
    case("tied-as-float32", {"q": {"a": 1}, "r": {"a": 1}}, {"q": {"a": 0.500000001, "z": 0.5}, "r": {"a": 16777217.0, "z": 16777216.0}}),
    case("close-but-distinct", {"q": {"a": 1}}, {"q": {"a": 0.5000001, "z": 0.5}}),
    case("signed-zero", {"q": {"a": 1}}, {"q": {"a": 0.0, "z": -0.0, "b": -1.0}}),
    case("negative-scores", {"q": {"a": 1, "b": 2}}, {"q": {"a": -3.0, "b": -1.5, "c": -2.0}}),
    case("query-missing", {"q": {"a": 1}, "gone": {"a": 1}}, {"q": ranked(["b", "a"])}),
    case("query-unjudged", {"q": {"a": 1}}, {"q": ranked(["b", "a"]), "extra": ranked(["a"])}),
    case("no-results", {"q": {"a": 1}, "empty": {"a": 1, "b": 2}}, {"q": ranked(["a"]), "empty": {}}),
    case("nothing-relevant", {"q": {"a": 1}, "zeros": {"a": 0, "b": 0}}, {"q": ranked(["a"]), "zeros": ranked(["a", "b"])}),
    case("judged-negative", {"q": {"a": -1, "b": 2, "c": -2, "d": 1}, "n": {"a": -1}}, {"q": ranked(["a", "d", "c", "b"]), "n": ranked(["a"])}),
    case("graded", {"q": {"a": 3, "b": 2, "c": 1, "d": 0, "e": 3, "f": 7}}, {"q": ranked(["d", "c", "b", "x", "a", "e"])}),
    case("grade-gap", {"q": {"a": 5, "b": 5, "c": 1}}, {"q": ranked(["c", "a", "b"])}),
    case("more-relevant-than-cut", {"q": {f"d{i:02}": 1 + i % 3 for i in range(24)}}, {"q": ranked([f"d{i:02}" for i in range(20, 0, -1)])}),
    case("first-hit-at-ten", {"q": {"a": 1}, "r": {"a": 1}}, {"q": ranked(list("bcdefghij") + ["a"]), "r": ranked(list("bcdefghijk") + ["a"])}),
    case("random-binary", *drawn(1, 12, 24, [0, 1], 0, 20)),
    case("random-ties", *drawn(2, 16, 24, [0, 1], 3, 20)),
    case("random-graded-ties", *drawn(3, 16, 30, [-1, 0, 1, 2, 3], 4, 24)),
    case("random-short", *drawn(4, 10, 12, [0, 1, 2], 2, 4)),
]

if __name__ == "__main__":
    path = pathlib.Path(__file__).with_name("golden.json")
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in CASES)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(CASES)} cases, {path.stat().st_size} bytes")
