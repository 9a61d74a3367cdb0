#!/usr/bin/env python3
"""Compares the metrics of `turnflow eval` that need no model with those of MTRAG's own scripts, answer by answer.

    git clone https://github.com/IBM/mt-rag-benchmark
    turnflow import mtrag mt-rag-benchmark/mtrag-human/evaluations/FILE.json -o DIR
    turnflow eval --published DIR/evaluations/FILE --output figures.json
    python3 published.py mt-rag-benchmark DIR/evaluations/FILE figures.json

It needs rouge_score, pandas, beautifulsoup4, lxml, tqdm and pyyaml. The scripts' functions are called as they are; only
their library `evaluate`, which fetches its metrics from the network, is replaced by `rouge_score`, which it wraps. The
function that conditions a metric gets our labels.
"""

import ast
import json
import pathlib
import sys
import types

from rouge_score import rouge_scorer

clone, folder, figures = map(pathlib.Path, sys.argv[1:4])


class Rouge:
    def compute(self, predictions, references, rouge_types, use_aggregator, use_stemmer):
        scorer = rouge_scorer.RougeScorer(rouge_types, use_stemmer=use_stemmer)
        scores = [scorer.score(reference, said) for said, reference in zip(predictions, references)]
        return {name: [score[name].fmeasure for score in scores] for name in rouge_types}


sys.modules["evaluate"] = types.SimpleNamespace(load=lambda name, **_: Rouge() if name == "rouge" else None)
sys.path.insert(0, str(clone / "scripts/evaluation"))
import run_algorithmic as theirs  # noqa: E402


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


tasks = {task["task_id"]: task for task in lines(folder / "tasks.jsonl")}
ours = json.load(open(figures, encoding="utf-8"))["tasks"]
compared, wrong, unlike = {}, 0, 0
for file in sorted((folder / "answers").glob("*.jsonl")):
    for answer in lines(file):
        task, said = tasks[answer["task_id"]], answer["predictions"][0]["text"]
        raw = ours[file.stem][answer["task_id"]]["raw"]
        passages = [context["text"] for context in answer["contexts"]]
        # Ours are of the first five passages.
        extracted = [theirs.extractiveness_rouge(said, passage) for passage in passages[:5]]
        for name, value in [
            ("rouge_l", theirs.rouge_l(said, task["target"])),
            ("token_recall", theirs.recall(said, task["target"])),
            ("extractiveness", max(extracted, default=0.0)),
            ("characters", theirs.length(said.strip(), "")),
        ]:
            compared[name] = compared.get(name, 0) + 1
            if abs(raw[name] - value) >= 1e-4:
                wrong += 1
                print(f"{file.stem} {answer['task_id']} {name}: {raw[name]}, not {value}")

# The function that conditions, without the module around them, which needs PyTorch.
source = (clone / "scripts/evaluation/judge_wrapper.py").read_text(encoding="utf-8")
wanted = [node for node in ast.parse(source).body if getattr(node, "name", "") == "get_idk_underspec_score"]
space = {"print": lambda *_: None}
exec(compile(ast.Module(wanted, []), "judge_wrapper.py", "exec"), space)
scripts = space["get_idk_underspec_score"]


# Each answer's label, and what it counts.
for answers in ours.values():
    for task, scored in answers.items():
        kind, idk = tasks[task]["answerability"], {"yes": 1, "partial": 0.5, "no": 0}[scored["idk"]]
        asks = {True: 1, False: 0, None: 0}[scored["clarifies"]]
        for name, value in scored["by_scripts"].items():
            row = {"answerability": [kind], "metrics": {"idk_eval": [idk], name: [scored["raw"].get(name)],
                                                         "underspecified_eval": [asks]}}
            unlike += abs(scripts(row, name) - value) >= 1e-4

print(", ".join(f"{name}: {n} answers" for name, n in compared.items()))
print(f"{wrong} differ; conditioned otherwise: {unlike}")
sys.exit(wrong > 0 or unlike > 0)
