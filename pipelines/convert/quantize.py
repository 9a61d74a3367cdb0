#!/usr/bin/env python3
"""Converts a model from bert_to_onnx.py to 8 bits, for ONNX Runtime on CPUs.

    quantize.py IN.onnx OUT.onnx [--keep NODE]... [--weight-bits 8]

Weights of MatMuls become int8, one scale per column. Activations are quantised to
uint8 while the model runs, one scale per *token*:

    scale = max |x| / 127 over the token's row    (see GELU below)
    y     = (round(x / scale) · W8) · scale · the column's scale

One scale per token, where onnxruntime.quantization.quantize_dynamic uses one per
tensor, because a tensor is a whole batch: its scale, and so every vector in the
batch, would depend on which texts are embedded together. An index kept
up to date passage by passage could then differ from one built at once. It is
also closer to 32-bit floats (the worst cosine, not only the mean), since one
large value reduces precision only in its own token. No calibration texts are needed.

--keep leaves the MatMul called NODE in 32-bit floats; it may be repeated.
--weight-bits 7 halves the weights' range: for x86 processors without VNNI,
whose 8-bit product otherwise overflows its 16-bit sums.

The same input produces the same bytes. Needs numpy and onnx.
"""

import argparse
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

FUSED = "com.microsoft"

# GELU is never below -0.17, so its codes are laid out unevenly: zero at 16, the
# largest value at 255, and a smallest scale at which -0.17 still fits below zero.
GELU = {"zero": 16, "scale": 1 / 239, "floor": 0.17 / 16}
# Elsewhere both signs matter equally. The floor only keeps an all-zero row from dividing by 0.
EVEN = {"zero": 128, "scale": 1 / 127, "floor": 1e-9}


class Quantizer:
    """Rewrites a graph's MatMuls; activations used by several are quantised once."""

    def __init__(self, graph, keep, weight_bits):
        self.graph, self.keep, self.top = graph, keep, 2 ** (weight_bits - 1) - 1
        self.constants = {each.name: each for each in graph.initializer}
        self.made_by = {name: node.op_type for node in graph.node for name in node.output}
        self.nodes, self.activations = [], {}

    def constant(self, name, value):
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(value, name)
        return name

    def node(self, kind, inputs, name, domain="", **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [name], name, domain=domain, **attributes))
        return name

    def activation(self, x, width):
        """Codes of x (uint8, x's shape) and their scales ([batch, sequence, 1])."""
        if x in self.activations:
            return self.activations[x]
        kind = GELU if self.made_by[x] == "BiasGelu" else EVEN
        last = self.constant("last", np.array([-1], np.int64))
        size = x if kind is GELU else self.node("Abs", [x], x + ".abs")
        scale = self.node("ReduceMax", [size, last], x + ".max", keepdims=1)
        unit = self.constant(f"unit.{kind['zero']}", np.float32(kind["scale"]))
        floor = self.constant(f"floor.{kind['zero']}", np.float32(kind["floor"]))
        scale = self.node("Mul", [scale, unit], x + ".unit")
        scale = self.node("Max", [scale, floor], x + ".scale")
        # QuantizeLinear takes a scale for each index of one axis, hence the detour over rows.
        rows = self.node("Reshape", [x, self.constant(f"rows.{width}", np.array([-1, width], np.int64))], x + ".rows")
        scales = self.node("Reshape", [scale, last], x + ".scales")
        zero = self.constant(f"zeros.{kind['zero']}", np.array([kind["zero"]], np.uint8))
        zeros = self.node("Expand", [zero, self.node("Shape", [scales], x + ".count")], x + ".zeros")
        codes = self.node("QuantizeLinear", [rows, scales, zeros], x + ".rowcodes", axis=0)
        codes = self.node("Reshape", [codes, self.node("Shape", [x], x + ".shape")], x + ".codes")
        zero = self.constant(f"zero.{kind['zero']}", np.uint8(kind["zero"]))
        self.activations[x] = codes, scale, zero
        return self.activations[x]

    def matmul(self, node):
        x, name = node.input
        weight = numpy_helper.to_array(self.constants.pop(name))
        size = np.abs(weight).max(axis=0)
        scale = (np.where(size > 0, size, 1) / self.top).astype(np.float32)
        codes, row_scale, zero = self.activation(x, weight.shape[0])
        product = self.node(
            "MatMulIntegerToFloat",
            [
                codes,
                self.constant(name + ".codes", np.rint(weight / scale).astype(np.int8)),
                self.constant("one", np.float32(1)),
                self.constant(name + ".scale", scale),
                zero,
                self.constant(f"none.{scale.size}", np.zeros(scale.size, np.int8)),
            ],
            node.name + ".product",
            FUSED,
        )
        self.nodes.append(helper.make_node("Mul", [product, row_scale], list(node.output), node.name))

    def run(self):
        """Rewrites the graph in place; returns the names of the MatMuls made 8-bit."""
        done = []
        for node in self.graph.node:
            weighted = node.op_type == "MatMul" and node.input[1] in self.constants
            if weighted and node.name not in self.keep:
                self.matmul(node)
                done.append(node.name)
            else:
                self.nodes.append(node)
        nodes, constants = list(self.nodes), list(self.constants.values())
        del self.graph.node[:], self.graph.initializer[:]
        self.graph.node.extend(nodes)
        self.graph.initializer.extend(constants)
        return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="IN.onnx")
    parser.add_argument("out", metavar="OUT.onnx")
    parser.add_argument("--keep", metavar="NODE", action="append", default=[], help="a MatMul to leave in 32-bit floats")
    parser.add_argument("--weight-bits", type=int, choices=(7, 8), default=8)
    options = parser.parse_args()
    try:
        model = onnx.load(options.source)
        names = {node.name for node in model.graph.node if node.op_type == "MatMul"}
        unknown = sorted(set(options.keep) - names)
        if unknown:
            sys.exit(f"quantize.py: {options.source} has no MatMul called {', '.join(unknown)}")
        done = Quantizer(model.graph, set(options.keep), options.weight_bits).run()
        if not done:
            sys.exit(f"quantize.py: {options.source} has no MatMul with constant weights")
        onnx.save(model, options.out)
    except (OSError, ValueError) as error:
        sys.exit(f"quantize.py: {options.source}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
