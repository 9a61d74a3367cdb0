#!/usr/bin/env python3
"""Learns boosted trees for the operator TreeRerank, and writes them as an ONNX file.

    python3 pipelines/convert/trees.py FEATURES --output trees.onnx

FEATURES is a directory that `turnflow tune FILE --node NODE --features FEATURES` has written. LambdaMART (Burges 2010)
orders the candidates of each question; LightGBM learns it. For each fold, trees are learned on the other folds, with
features that know nothing of the fold, and are measured on the fold. Nothing is written unless the held-out order is
better than that of the best single list, by MAP@10 and by Recall@10.

Needs numpy, lightgbm and onnx; with onnxruntime, the file is compared with LightGBM.
"""

import argparse
import json
import math
import pathlib
import sys

import lightgbm
import numpy
from onnx import TensorProto, checker, helper

DEPTH = 10


class Part:
    """The features and labels of some questions."""

    def __init__(self, directory):
        load = lambda name: numpy.load(directory / f"{name}.npy", mmap_mode="r")
        self.rows, self.labels, self.groups = load("rows"), numpy.array(load("labels")), numpy.array(load("groups"))
        self.folds, self.relevant = numpy.array(load("folds")), numpy.array(load("relevant"))
        self.ends = numpy.cumsum(self.groups)
        self.starts = self.ends - self.groups

    def of_fold(self, fold):
        """The rows, labels, group sizes and numbers of relevant passages of a fold's questions."""
        questions = numpy.flatnonzero(self.folds == fold)
        spans = [numpy.arange(self.starts[q], self.ends[q]) for q in questions]
        at = numpy.concatenate(spans) if spans else numpy.array([], dtype=int)
        return numpy.array(self.rows[at]), self.labels[at], self.groups[questions], self.relevant[questions]


def joined(parts):
    rows, labels, groups, relevant = zip(*parts)
    return numpy.concatenate(rows), numpy.concatenate(labels), numpy.concatenate(groups), numpy.concatenate(relevant)


def learned(part, settings, seeds):
    """One booster for each seed."""
    rows, labels, groups, _ = part
    boosters = []
    for seed in range(seeds):
        parameters = {
            "objective": "lambdarank",
            "learning_rate": settings.rate,
            "num_leaves": settings.leaves,
            "min_data_in_leaf": settings.rows,
            "feature_fraction": 0.3,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "lambda_l2": 10.0,
            "lambdarank_truncation_level": 12,
            "label_gain": [2**grade - 1 for grade in range(int(labels.max()) + 1)],
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        data = lightgbm.Dataset(rows, labels, group=groups, free_raw_data=True)
        boosters.append(lightgbm.train(parameters, data, num_boost_round=settings.rounds))
    return boosters


def scores(boosters, rows):
    return sum(booster.predict(rows, num_threads=2) for booster in boosters) / len(boosters)


def figures(values, labels, groups, relevant):
    """Recall@10, MAP@10 and nDCG@10 of each question, as trec_eval computes them. NaN values are last."""
    values = numpy.where(numpy.isnan(values), -numpy.inf, values)
    found, end = [], 0
    for size, total in zip(groups, relevant):
        start, end = end, end + size
        order = numpy.argsort(-values[start:end], kind="stable")[:DEPTH]
        grades = labels[start:end][order]
        hits = grades > 0
        precision = numpy.cumsum(hits) / numpy.arange(1, len(hits) + 1)
        best = sorted(labels[start:end], reverse=True)[:DEPTH]
        gain = lambda some: sum(grade / math.log2(rank + 2) for rank, grade in enumerate(some))
        # Relevant passages that are no candidates count in the ideal order with grade 1.
        ideal = gain((list(best) + [1] * int(total))[: min(DEPTH, int(total))]) or 1.0
        found.append((hits.sum() / total, (precision * hits).sum() / total, gain(grades) / ideal))
    return numpy.array(found)


def interval(differences, rounds=2000):
    """The mean with its 95 % bootstrap interval."""
    random = numpy.random.default_rng(0)
    means = [differences[random.integers(0, len(differences), len(differences))].mean() for _ in range(rounds)]
    return differences.mean(), numpy.percentile(means, 2.5), numpy.percentile(means, 97.5)


def below(threshold):
    """The greatest 32-bit float that is not above a threshold: the same branch for every 32-bit value."""
    # LightGBM has thresholds above all 32-bit floats.
    with numpy.errstate(over="ignore"):
        single = numpy.float32(threshold)
    return float(single if float(single) <= threshold else numpy.nextafter(single, numpy.float32(-numpy.inf)))


def onnx_model(boosters, columns):
    """The mean of the boosters as one TreeEnsembleRegressor."""
    nodes = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids",
                                   "falsenodeids", "missing_value_tracks_true")}
    leaves = {"treeids": [], "nodeids": [], "ids": [], "weights": []}

    def add(tree, node, number):
        """Adds a node and those below it; returns the number of the next node."""
        mine = number
        row = dict(treeids=tree, nodeids=mine, featureids=0, values=0.0, modes="LEAF", truenodeids=0, falsenodeids=0,
                   missing_value_tracks_true=0)
        if "leaf_value" in node:
            leaves["treeids"].append(tree)
            leaves["nodeids"].append(mine)
            leaves["ids"].append(0)
            leaves["weights"].append(node["leaf_value"] / len(boosters))
            number += 1
        else:
            if node["decision_type"] != "<=":
                sys.exit(f"a decision of the type {node['decision_type']} cannot be written")
            row.update(featureids=node["split_feature"], values=below(node["threshold"]), modes="BRANCH_LEQ")
            # Without missing values in the data, LightGBM takes a missing value for 0.
            is_left = node["default_left"] if node["missing_type"] == "NaN" else 0.0 <= node["threshold"]
            row["missing_value_tracks_true"] = int(is_left)
            row["truenodeids"] = mine + 1
            number = add(tree, node["left_child"], mine + 1)
            row["falsenodeids"] = number
            number = add(tree, node["right_child"], number)
        rows[mine] = row
        return number

    tree = 0
    for booster in boosters:
        for one in booster.dump_model()["tree_info"]:
            rows = {}
            add(tree, one["tree_structure"], 0)
            for number in sorted(rows):
                for name in nodes:
                    nodes[name].append(rows[number][name])
            tree += 1
    attributes = {f"nodes_{name}": values for name, values in nodes.items()}
    attributes |= {f"target_{name}": values for name, values in leaves.items()}
    node = helper.make_node("TreeEnsembleRegressor", ["rows"], ["scores"], domain="ai.onnx.ml", n_targets=1,
                            aggregate_function="SUM", post_transform="NONE", **attributes)
    graph = helper.make_graph(
        [node], "trees",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["rows", len(columns)])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="turnflow")
    helper.set_model_props(model, {"columns": json.dumps(columns)})
    checker.check_model(model)
    return model


def compare(model, boosters, rows):
    """Ends the program if ONNX Runtime computes other scores than LightGBM, beyond rounding."""
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is not installed: the file's scores are not compared with LightGBM's")
        return
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    differences = numpy.abs(session.run(None, {"rows": rows})[0][:, 0] - scores(boosters, rows))
    if differences.max() > 1e-3:
        sys.exit(f"the file's scores differ from LightGBM's by up to {differences.max()}: nothing is written")
    print(f"scores of {len(rows)} rows equal LightGBM's to {differences.max():.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, help="the ONNX file; without it, nothing is written")
    parser.add_argument("--rounds", type=int, default=700, help="trees of each booster (default 700)")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate (default 0.02)")
    parser.add_argument("--leaves", type=int, default=15, help="leaves of a tree (default 15)")
    parser.add_argument("--rows", type=int, default=200, help="least number of rows in a leaf (default 200)")
    parser.add_argument("--seeds", type=int, default=1, help="boosters whose scores are averaged (default 1)")
    parser.add_argument("--drop", default="", help="features to leave out, separated by commas; a name ends in * to "
                        "leave out all that begin so, or begins with * for all that end so")
    settings = parser.parse_args()

    about = json.loads((settings.features / "features.json").read_text())
    columns, folds = about["columns"], about["folds"]
    part = {tuple(of): Part(settings.features / ("without-" + "-".join(map(str, of)))) for of in about["sets"]}
    patterns = [name for name in settings.drop.split(",") if name]
    matches = lambda name, of: (name.startswith(of[:-1]) if of.endswith("*") else
                                name.endswith(of[1:]) if of.startswith("*") else name == of)
    kept = [at for at, name in enumerate(columns) if not any(matches(name, of) for of in patterns)]
    names = [columns[at] for at in kept]

    def some(found):
        rows, *rest = found
        return (rows[:, kept], *rest)

    results, alone = [], {name: [] for name in [f"{of}.score" for of in about["lists"]] + ["rrf"]}
    for fold in range(folds):
        others = [other for other in range(folds) if other != fold]
        train = joined([some(part[tuple(sorted((fold, other)))].of_fold(other)) for other in others])
        whole, labels, groups, relevant = part[(fold,)].of_fold(fold)
        boosters = learned(train, settings, settings.seeds)
        results.append(figures(scores(boosters, whole[:, kept]), labels, groups, relevant))
        for name in alone:
            alone[name].append(figures(whole[:, columns.index(name)], labels, groups, relevant))
        recall, precision, _ = 100 * results[-1].mean(axis=0)
        print(f"fold {fold + 1}: {len(groups)} questions, R@10 {recall:.1f}, MAP@10 {precision:.1f}", flush=True)
    held_out = numpy.concatenate(results)
    alone = {name: numpy.concatenate(values) for name, values in alone.items()}
    print(f"{'':24} {'R@10':>6} {'MAP@10':>7} {'nDCG@10':>8}")
    for name, values in [*alone.items(), ("trees, held out", held_out)]:
        recall, precision, gain = 100 * values.mean(axis=0)
        print(f"{name:24} {recall:6.1f} {precision:7.1f} {gain:8.1f}")
    best = max(alone, key=lambda name: alone[name][:, 1].mean())
    for at, metric in ((0, "R@10"), (1, "MAP@10"), (2, "nDCG@10")):
        mean, low, high = (100 * value for value in interval(held_out[:, at] - alone[best][:, at]))
        print(f"against {best}: {metric} {mean:+.1f} ({low:+.1f} to {high:+.1f})")

    boosters = learned(joined([some(part[(fold,)].of_fold(fold)) for fold in range(folds)]), settings, settings.seeds)
    gains = sum(booster.feature_importance("gain") for booster in boosters)
    for at in numpy.argsort(-gains)[:15]:
        print(f"  {100 * gains[at] / (gains.sum() or 1.0):5.1f} % {names[at]}")
    if settings.output is None:
        return
    if (held_out.mean(axis=0)[:2] <= alone[best].mean(axis=0)[:2]).any():
        sys.exit(f"held-out questions are not better than with {best}: nothing is written")
    model = onnx_model(boosters, names).SerializeToString()
    compare(model, boosters, some(part[(0,)].of_fold(0))[0][:10_000])
    settings.output.write_bytes(model)
    print(f"written to {settings.output}")


if __name__ == "__main__":
    main()
