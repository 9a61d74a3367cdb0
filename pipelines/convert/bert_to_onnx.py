#!/usr/bin/env python3
"""Converts a BERT encoder from safetensors to ONNX, in 32-bit floats, for ONNX Runtime.

    bert_to_onnx.py MODEL_DIRECTORY OUT.onnx

MODEL_DIRECTORY holds `config.json` and `model.safetensors` as the transformers
library writes them for a BertModel. The graph's inputs are `input_ids`,
`attention_mask` and `token_type_ids` (int64, [batch, sequence]), its output is
`last_hidden_state` (float32, [batch, sequence, hidden]); pooling is the caller's.

The graph is written with the fused operators of ONNX Runtime (`com.microsoft`)
rather than left to its pattern matching, which changes between releases. All of
them compute BERT exactly, the GELU by the error function. Attention is
MultiHeadAttention behind three plain MatMuls and not one Attention operator
(equally fast), so that every large weight is a MatMul's and quantize.py has one
kind of node to treat.

The same input gives the same bytes. Needs numpy and onnx.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FUSED = "com.microsoft"


class UnsupportedModel(Exception):
    """The directory holds something other than a plain BERT encoder."""


def read_safetensors(path):
    """Tensors by name, as float32. Layout: header length (u64), JSON header, data."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = int(data[:8].view("<u8")[0])
    header = json.loads(bytes(data[8 : 8 + length]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in ("F32", "F16", "BF16"):
            continue
        begin, end = (8 + length + at for at in entry["data_offsets"])
        raw = bytes(data[begin:end])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4" if entry["dtype"] == "F32" else "<f2")
        # Heads around the encoder are dropped, so its prefix means nothing here.
        tensors[name.removeprefix("bert.")] = values.astype(np.float32).reshape(entry["shape"])
    return tensors


class Graph:
    """Collects nodes and weights; every value is named after the node that makes it."""

    def __init__(self, weights):
        self.weights, self.nodes, self.constants = weights, [], {}

    def constant(self, name, value):
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def weight(self, name, transposed=False):
        """A weight of the model under its own name; Linear layers store theirs transposed."""
        if name not in self.weights:
            raise UnsupportedModel(f"no tensor {name}")
        value = self.weights[name]
        return self.constant(name, value.T if transposed else value)

    def node(self, kind, inputs, name, domain="", **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name], name, domain=domain, **attributes))
        return name


def embed(graph, config):
    """Word, position and type embeddings, added and normalised."""
    part = "embeddings."
    words = graph.node("Gather", [graph.weight(part + "word_embeddings.weight"), "input_ids"], part + "words")
    types = graph.node("Gather", [graph.weight(part + "token_type_embeddings.weight"), "token_type_ids"], part + "types")
    # Positions are 0, 1, 2, …: the first rows of the table, as many as the input is long.
    length = graph.node("Shape", ["input_ids"], part + "length", start=1, end=2)
    zero = graph.constant("zero", np.array([0], np.int64))
    places = graph.node("Slice", [graph.weight(part + "position_embeddings.weight"), zero, length, zero], part + "positions")
    total = graph.node("Add", [graph.node("Add", [words, types], part + "sum"), places], part + "total")
    return graph.node(
        "LayerNormalization",
        [total, graph.weight(part + "LayerNorm.weight"), graph.weight(part + "LayerNorm.bias")],
        part + "normal",
        axis=-1,
        epsilon=config["layer_norm_eps"],
    )


def linear(graph, x, layer):
    """x times a Linear layer's weight; the bias goes into whichever fused operator follows."""
    return graph.node("MatMul", [x, graph.weight(layer + ".weight", transposed=True)], layer)


def normalised_sum(graph, x, branch, part, name, config):
    """LayerNorm(x + branch + the branch's bias)."""
    inputs = [branch, x, part + ".LayerNorm.weight", part + ".LayerNorm.bias", part + ".dense.bias"]
    inputs[2:] = [graph.weight(weight) for weight in inputs[2:]]
    return graph.node("SkipLayerNormalization", inputs, name, FUSED, epsilon=config["layer_norm_eps"])


def encoder_layer(graph, x, mask, part, output, config):
    """One transformer block; its result is called `output`."""
    attention = part + "attention.self."
    three = ("query", "key", "value")
    projected = [linear(graph, x, attention + each) for each in three]
    biases = [graph.weights[f"{attention}{each}.bias"] for each in three]
    heads = graph.node(
        "MultiHeadAttention",
        [*projected, graph.constant(attention + "bias", np.concatenate(biases)), mask],
        attention + "heads",
        FUSED,
        num_heads=config["num_attention_heads"],
    )
    mixed = linear(graph, heads, part + "attention.output.dense")
    x = normalised_sum(graph, x, mixed, part + "attention.output", part + "attention.normal", config)
    wide = linear(graph, x, part + "intermediate.dense")
    wide = graph.node("BiasGelu", [wide, graph.weight(part + "intermediate.dense.bias")], part + "gelu", FUSED)
    narrow = linear(graph, wide, part + "output.dense")
    return normalised_sum(graph, x, narrow, part + "output", output, config)


def convert(weights, config):
    """The whole model as an ONNX ModelProto."""
    expected = {"hidden_act": "gelu", "position_embedding_type": "absolute", "model_type": "bert"}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise UnsupportedModel(f"{key} is {config[key]}, not {value}")
    graph = Graph(weights)
    mask = graph.node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
    x, last = embed(graph, config), config["num_hidden_layers"] - 1
    for n in range(last + 1):
        part = f"encoder.layer.{n}."
        output = "last_hidden_state" if n == last else part + "normal"
        x = encoder_layer(graph, x, mask, part, output, config)

    def value(name, kind, *more):
        return helper.make_tensor_value_info(name, kind, ["batch", "sequence", *more])

    inputs = [value(name, TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")]
    outputs = [value(x, TensorProto.FLOAT, config["hidden_size"])]
    whole = helper.make_graph(graph.nodes, "bert", inputs, outputs, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9, producer_name="turnflow")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: bert_to_onnx.py MODEL_DIRECTORY OUT.onnx")
    source, out = map(pathlib.Path, sys.argv[1:])
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        onnx.save(convert(read_safetensors(source / "model.safetensors"), config), out)
    except (OSError, KeyError, ValueError, UnsupportedModel) as error:
        sys.exit(f"bert_to_onnx.py: {source}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
