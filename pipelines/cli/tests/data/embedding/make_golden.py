#!/usr/bin/env python3
"""Writes golden.json beside it: what onnxruntime and tokenizers make of a few texts.

    make_golden.py MODELS_DIRECTORY

Each text goes through the model alone; token states are averaged in 64-bit floats. Needs
numpy, onnxruntime and tokenizers.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

TEXTS = [
    "How long are records kept?",
    "A Relevant Person must notify the Regulator in writing within ten business days of any change of its "
    "controllers, and must keep a register of such changes.",
    "Ünïcödé – 日本語 and\nline breaks",
    "x",
]
MODELS = [("minilm", 256, ""), ("minilm-int8", 256, ""), ("e5-int8", 512, "passage: ")]


def outputs(directory, max_tokens, texts):
    """The first output of the model for each text."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(directory / "model.onnx", options)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    wanted = {value.name for value in session.get_inputs()}
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids])
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        yield session.run(None, {name: value for name, value in inputs.items() if name in wanted})[0][0]


def main():
    models = pathlib.Path(sys.argv[1])
    golden = {"texts": TEXTS, "models": {}, "splade": []}
    for name, max_tokens, prefix in MODELS:
        vectors = []
        for states in outputs(models / name, max_tokens, [prefix + text for text in TEXTS]):
            mean = states.astype(np.float64).mean(axis=0)
            vectors.append([round(float(value), 7) for value in mean / np.linalg.norm(mean)])
        golden["models"][name] = {"max_tokens": max_tokens, "prefix": prefix, "vectors": vectors}
    for weights in outputs(models / "splade", 256, TEXTS):
        heaviest = sorted(np.argsort(-weights)[:32])
        golden["splade"].append({str(int(term)): round(float(weights[term]), 5) for term in heaviest if weights[term] > 0})
    out = pathlib.Path(__file__).parent / "golden.json"
    out.write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
