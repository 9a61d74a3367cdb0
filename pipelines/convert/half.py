#!/usr/bin/env python3
"""Converts a model from bert_to_onnx.py for NVIDIA GPUs: 16-bit floats, and a small output.

    half.py [--pooling mean|cls|none] IN.onnx OUT.onnx

Three things make it fast on a GPU, and only there:

- Weights and activations are 16-bit floats, for which GPUs have matrix units.
- Attention gets each text's length instead of a mask, so that ONNX Runtime uses its
  memory-efficient kernel. The kernel with a mask writes all scores to memory.
- States are pooled on the GPU, so one vector a text is copied from it instead of one a
  token. With `none`, the outputs stay as they are (a cross-encoder, SPLADE).

Outputs are 32-bit floats. Sums in attention, softmax and normalisation are made in 32 bits
by ONNX Runtime. Texts must be padded at their end.

The same input produces the same bytes. Needs numpy and onnx.
"""

import argparse

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LENGTHS = "attention.lengths"


def halved(value):
    """The tensor in 16 bits; values beyond their range become the greatest one."""
    array = numpy_helper.to_array(value)
    most = np.finfo(np.float16).max
    return numpy_helper.from_array(np.clip(array, -most, most).astype(np.float16), value.name)


class Head:
    """Nodes that are added to the graph."""

    def __init__(self, graph):
        self.graph, self.nodes = graph, []

    def constant(self, name, value):
        self.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def node(self, kind, inputs, name, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name


def lengths(graph):
    """Nodes that make attention's mask of [3 · batch + 2] numbers: the lengths of the texts, then where each text begins
    among the queries, and among the keys."""
    head = Head(graph)
    axis = head.constant("attention.axis", np.array([1], np.int64))
    mask = head.node("Cast", ["attention_mask"], "attention.mask", to=TensorProto.INT32)
    of_texts = head.node("ReduceSum", [mask, axis], "attention.tokens", keepdims=0)
    zero, one = (head.constant(f"attention.{number}", np.array(number, np.int64)) for number in (0, 1))
    # Scalars: the number of texts, and the tokens of a row.
    shape = head.node("Shape", ["input_ids"], "attention.shape")
    texts = head.node("Gather", [shape, zero], "attention.texts")
    row = head.node("Gather", [shape, one], "attention.row")
    after = head.node("Add", [head.node("Mul", [texts, row], "attention.all"), one], "attention.after")
    begins = head.node("Range", [zero, after, row], "attention.begins64")
    begins = head.node("Cast", [begins], "attention.begins", to=TensorProto.INT32)
    head.node("Concat", [of_texts, begins, begins], LENGTHS, axis=0)
    return head.nodes


def pooled(graph, states, pooling):
    """Nodes that turn states [batch, tokens, width] into `vectors` [batch, width]."""
    head = Head(graph)
    if pooling == "cls":
        first = head.constant("pooling.first", np.array(0, np.int64))
        chosen = head.node("Gather", [states, first], "pooling.state", axis=1)
        head.node("Cast", [chosen], "vectors", to=TensorProto.FLOAT)
        return head.nodes
    one, minus = (head.constant(f"pooling.{at}", np.array([at], np.int64)) for at in (1, -1))
    values = head.node("Cast", [states], "pooling.states", to=TensorProto.FLOAT)
    mask = head.node("Cast", ["attention_mask"], "pooling.mask", to=TensorProto.FLOAT)
    # [batch, 1, tokens] times [batch, tokens, width].
    row = head.node("Unsqueeze", [mask, one], "pooling.row")
    total = head.node("Squeeze", [head.node("MatMul", [row, values], "pooling.sum"), one], "pooling.total")
    count = head.node("ReduceSum", [mask, minus], "pooling.count", keepdims=1)
    head.node("Div", [total, count], "vectors")
    return head.nodes


def convert(model, pooling):
    graph = model.graph
    floats = [value for value in graph.initializer if value.data_type == TensorProto.FLOAT]
    for value in floats:
        value.CopyFrom(halved(value))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
        if node.op_type == "MultiHeadAttention":
            node.input[4] = LENGTHS
    nodes = list(graph.node)
    # The mask of the CPU's kernel, which nothing reads any more.
    read = {name for node in nodes for name in node.input}
    nodes = [node for node in nodes if node.op_type != "Cast" or node.output[0] in read]
    outputs = list(graph.output)
    head = []
    if pooling == "none":
        for output in outputs:
            inner = output.name + ".half"
            for node in nodes:
                node.output[:] = [inner if name == output.name else name for name in node.output]
                node.input[:] = [inner if name == output.name else name for name in node.input]
            head.append(helper.make_node("Cast", [inner], [output.name], to=TensorProto.FLOAT))
    else:
        width = outputs[0].type.tensor_type.shape.dim[2]
        head = pooled(graph, outputs[0].name, pooling)
        del graph.output[:]
        width = width.dim_value or width.dim_param
        graph.output.append(helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", width]))
    begun = lengths(graph)
    del graph.node[:]
    graph.node.extend(begun + nodes + head)
    del graph.value_info[:]
    onnx.checker.check_model(model)
    return model


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--pooling", choices=["mean", "cls", "none"], default="mean")
    arguments.add_argument("model")
    arguments.add_argument("out")
    given = arguments.parse_args()
    model = convert(onnx.load(given.model), given.pooling)
    with open(given.out, "wb") as file:
        file.write(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
