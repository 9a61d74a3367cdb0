#!/usr/bin/env python3
"""Creates the encoder-decoder for testing OnnxSeq2Seq: a few kB, with T5's inputs and outputs.

    tiny_seq2seq.py OUT_DIRECTORY

It copies: the logits after the decoder's token number t are high for the encoder's token
number t, so that the output equals the input, including its end. A table of small
numbers by the decoder's last token is added, which decides where the encoder has
no token (beyond the end of its input). `operators/tests-data/seq2seq` contains its
output. The same bytes each time. Needs numpy and onnx.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = "<pad> </s> <unk> the cat dog sat on a mat and saw bird red blue house".split()
LONGEST = 64


def model(name, nodes, inputs, outputs, constants):
    def info(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    values = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, name, [info(*each) for each in inputs], [info(*each) for each in outputs], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="turnflow")


def encoder():
    """Each token's unit vector, 0 for padding."""
    nodes = [
        helper.make_node("Gather", ["units", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["last_hidden_state"]),
    ]
    inputs = [(name, TensorProto.INT64, "batch", "read") for name in ("input_ids", "attention_mask")]
    outputs = [("last_hidden_state", TensorProto.FLOAT, "batch", "read", len(WORDS))]
    constants = {"units": np.eye(len(WORDS), dtype=np.float32), "axis": np.array([2], np.int64)}
    return model("encoder", nodes, inputs, outputs, constants)


def decoder():
    """8 for the encoder's token at the same place, and a little for what follows the last token."""
    nodes = [
        helper.make_node("Cast", ["encoder_attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["column"]),
        helper.make_node("Mul", ["encoder_hidden_states", "column"], ["read"]),
        helper.make_node("Pad", ["read", "room"], ["long"]),
        helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
        helper.make_node("Slice", ["long", "zero", "length", "one"], ["same_place"]),
        helper.make_node("Mul", ["same_place", "eight"], ["copied"]),
        helper.make_node("Gather", ["follows", "input_ids"], ["followed"]),
        helper.make_node("Add", ["copied", "followed"], ["logits"]),
    ]
    follows = np.random.default_rng(3).integers(-16, 16, (len(WORDS), len(WORDS))).astype(np.float32) / 16
    constants = {
        "axis": np.array([2], np.int64),
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "room": np.array([0, 0, 0, 0, LONGEST, 0], np.int64),
        "eight": np.float32(8),
        "follows": follows,
    }
    inputs = [
        ("input_ids", TensorProto.INT64, "batch", "tokens"),
        ("encoder_attention_mask", TensorProto.INT64, "batch", "read"),
        ("encoder_hidden_states", TensorProto.FLOAT, "batch", "read", len(WORDS)),
    ]
    return model("decoder", nodes, inputs, [("logits", TensorProto.FLOAT, "batch", "tokens", len(WORDS))], constants)


def tokenizer():
    """Words, with an end behind them."""
    special = [
        {"id": n, "content": WORDS[n], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for n in range(3)
    ]
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [text, end],
            "pair": [text, end, {"Sequence": {"id": "B", "type_id": 0}}, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(WORDS)}, "unk_token": "<unk>"},
    }


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: tiny_seq2seq.py OUT_DIRECTORY")
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(), out / "encoder.onnx")
    onnx.save(decoder(), out / "decoder.onnx")
    (out / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
