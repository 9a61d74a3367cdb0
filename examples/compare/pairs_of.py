"""Makes a cross-encoder of an encoder, to measure with: `pairs_of.py ENCODER.onnx OUTPUT.onnx`.

The encoder stays as it is; a linear map of the first token's state, with fixed random weights, is its one score. The cost
of a pair is that of a trained cross-encoder of this size; the scores mean nothing.
"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main():
    model = onnx.load(sys.argv[1])
    graph = model.graph
    states = graph.output[0]
    width = next(value.dims[1] for value in graph.initializer if value.name.endswith("word_embeddings.weight"))
    weights = np.random.default_rng(1).normal(0.0, 0.3, (width, 1)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(weights, "score.weight"))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "score.first"))
    graph.node.append(helper.make_node("Gather", [states.name, "score.first"], ["score.state"], axis=1))
    graph.node.append(helper.make_node("MatMul", ["score.state", "score.weight"], ["logits"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1]))
    onnx.checker.check_model(model)
    onnx.save(model, sys.argv[2])


if __name__ == "__main__":
    main()
