#!/usr/bin/env python3
"""Converts a BERT encoder from safetensors to ONNX, in 32-bit floats, for ONNX Runtime.

    bert_to_onnx.py [--head splade] MODEL_DIRECTORY OUT.onnx

MODEL_DIRECTORY contains `config.json` and `model.safetensors` as the transformers
library writes them for a BertModel. The graph's inputs are `input_ids`,
`attention_mask` and `token_type_ids` (int64, [batch, sequence]), its output is
`last_hidden_state` (float32, [batch, sequence, hidden]); pooling is up to the caller.

With `--head splade` the output is `term_weights` (float32, [batch, vocabulary]): the
masked-language-model head's logits w become log(1 + max(w, 0)), and each term gets the
maximum over the tokens under the mask (Formal et al. 2021, SPLADE v2).

The graph is written with the fused operators of ONNX Runtime (`com.microsoft`)
instead of relying on its pattern matching, which changes between releases. All of
them compute BERT exactly, the GELU by the error function. Attention is
MultiHeadAttention after three plain MatMuls, not one Attention operator
(equally fast), so that every large weight belongs to a MatMul and quantize.py has one
kind of node to handle.

The same input produces the same bytes. Needs numpy and onnx.
"""

import argparse
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
        # The encoder's prefix tells it from the heads around it, whose names do not clash;
        # files from TensorFlow call LayerNorm's parameters gamma and beta.
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        tensors[name] = values.astype(np.float32).reshape(entry["shape"])
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


def embed_words(graph, name):
    """Rows of the word table. One in blocks of small integers, each block with its scale, stays so."""
    if name + ".codes" not in graph.weights:
        return graph.node("Gather", [graph.weight(name), "input_ids"], "embeddings.words")
    codes = graph.node("Gather", [graph.weight(name + ".codes"), "input_ids"], "embeddings.codes")
    scales = graph.node("Gather", [graph.weight(name + ".scales"), "input_ids"], "embeddings.scales")
    values = graph.node("Cast", [codes], "embeddings.values", to=TensorProto.FLOAT)
    scaled = graph.node("Mul", [values, scales], "embeddings.scaled")
    shape = graph.constant("embeddings.shape", np.array([0, 0, -1], np.int64))
    return graph.node("Reshape", [scaled, shape], "embeddings.words")


def embed(graph, config):
    """Word, position and type embeddings, added and normalised."""
    part = "embeddings."
    words = embed_words(graph, part + "word_embeddings.weight")
    types = graph.weights[part + "token_type_embeddings.weight"]
    if len(types) == 1:
        types = graph.constant(part + "types", types[0])
    else:
        table = graph.weight(part + "token_type_embeddings.weight")
        types = graph.node("Gather", [table, "token_type_ids"], part + "types")
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


def splade(graph, x, config):
    """Term weights of token states: [batch, vocabulary]."""
    part = "cls.predictions."
    x = linear(graph, x, part + "transform.dense")
    x = graph.node("BiasGelu", [x, graph.weight(part + "transform.dense.bias")], part + "gelu", FUSED)
    normal = part + "transform.LayerNorm."
    inputs = [x, graph.weight(normal + "weight"), graph.weight(normal + "bias")]
    x = graph.node("LayerNormalization", inputs, part + "normal", axis=-1, epsilon=config["layer_norm_eps"])
    words = graph.weights["embeddings.word_embeddings.weight"]
    decoder = graph.constant(part + "decoder", words.T)
    logits = graph.node("MatMul", [x, decoder], part + "products")
    logits = graph.node("Add", [logits, graph.weight(part + "bias")], part + "logits")
    # Padding never wins: what is under the mask is at least 0, and the rest is made 0. The
    # logarithm grows with its argument, so it may come after the maximum.
    weights = graph.node("Relu", [logits], part + "positive")
    under = graph.node("Cast", ["attention_mask"], part + "mask", to=TensorProto.FLOAT)
    under = graph.node("Unsqueeze", [under, graph.constant("two", np.array([2], np.int64))], part + "under")
    weights = graph.node("Mul", [weights, under], part + "masked")
    one_axis = graph.constant("one.axis", np.array([1], np.int64))
    weights = graph.node("ReduceMax", [weights, one_axis], part + "greatest", keepdims=0)
    one = graph.constant("one.float", np.float32(1))
    return graph.node("Log", [graph.node("Add", [weights, one], part + "above")], "term_weights")


def convert(weights, config, head=None):
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

    names = ["input_ids", "attention_mask"]
    if len(weights["embeddings.token_type_embeddings.weight"]) > 1:
        names.append("token_type_ids")
    inputs = [value(name, TensorProto.INT64) for name in names]
    if head == "splade":
        x, size = splade(graph, x, config), config["vocab_size"]
        outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", size])]
    else:
        outputs = [value(x, TensorProto.FLOAT, config["hidden_size"])]
    whole = helper.make_graph(graph.nodes, "bert", inputs, outputs, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(whole, opset_imports=opsets, ir_version=9, producer_name="turnflow")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="MODEL_DIRECTORY", type=pathlib.Path)
    parser.add_argument("out", metavar="OUT.onnx", type=pathlib.Path)
    parser.add_argument("--head", choices=["splade"], help="what to put on top of the encoder")
    options = parser.parse_args()
    source = options.source
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        weights = read_safetensors(source / "model.safetensors")
        onnx.save(convert(weights, config, options.head), options.out)
    except (OSError, KeyError, ValueError, UnsupportedModel) as error:
        sys.exit(f"bert_to_onnx.py: {source}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
