#!/usr/bin/env python3
"""Writes the trees that tests use.

    python3 pipelines/convert/tiny_trees.py operators/tests-data/trees/trees.onnx

Two trees over the lists `one` and `two`: the first prefers a good rank in `two`, and takes a missing rank for a bad one;
the second prefers a high score in `one`. The same bytes each time. Needs what trees.py needs.
"""

import pathlib
import sys

import trees


class Booster:
    """Trees in the form of LightGBM's `dump_model`."""

    def dump_model(self):
        def branch(feature, threshold, left, right, default_left):
            return {"split_feature": feature, "threshold": threshold, "decision_type": "<=", "missing_type": "NaN",
                    "default_left": default_left, "left_child": {"leaf_value": left},
                    "right_child": {"leaf_value": right}}

        first, second = branch(0, 1.5, 2.0, -1.0, False), branch(1, 0.25, 0.0, 0.5, True)
        return {"tree_info": [{"tree_structure": first}, {"tree_structure": second}]}


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(trees.onnx_model([Booster()], ["two.rank", "one.score"]).SerializeToString())
