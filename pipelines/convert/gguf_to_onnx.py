#!/usr/bin/env python3
"""Converts a decoder of the Llama family from GGUF to ONNX with a cache, in 8 bits, for ONNX Runtime.

    gguf_to_onnx.py MODEL.gguf OUT.onnx [TOKENIZER.json [TEMPLATE.jinja]]

Inputs and outputs have optimum's names: `input_ids`, `attention_mask`,
`position_ids` and `past_key_values.N.key`/`.value` in; `logits` and `present.N.key`/`.value`
out. One more input, `num_logits_to_keep` (a scalar, as in transformers.js's files), is the
number of last tokens to compute logits for, 0 for all: a prompt needs one, and the
vocabulary's matrix is the largest of all. Padding may be anywhere; what a token attends
to follows from the mask and the positions.

Weights are stored in blocks of 32 with one scale each (`MatMulNBits`, 8 bits, symmetric); the
embedding is the same table as the output's when the model ties them. A block of GGUF's Q8_0
keeps its values exactly; one of Q4_1 has 16 values, whose differences 8 bits keep to
1/127 of the largest. Norms and rotations are the fused operators of ONNX Runtime; attention
uses plain products, since keys of one head serve several query heads.

The same input produces the same bytes. Needs numpy and onnx. Formats: the GGUF specification,
and ggml's block layouts.
"""

import json
import pathlib
import struct
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FUSED = "com.microsoft"
BLOCK = 32
# With 4, activations are rounded to 8 bits too; products are then of integers.
ACCURACY = 4


class UnsupportedModel(Exception):
    """The file holds something other than a plain Llama decoder."""


class Gguf:
    """The metadata and tensors of a GGUF file."""

    SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def __init__(self, path):
        self.data, self.at = np.memmap(path, dtype=np.uint8, mode="r"), 4
        if bytes(self.data[:4]) != b"GGUF" or self.scalar("I") not in (2, 3):
            raise UnsupportedModel("this is no GGUF file of version 2 or 3")
        tensors, entries = self.scalar("Q"), self.scalar("Q")
        self.metadata = {}
        for _ in range(entries):
            key = self.text()
            self.metadata[key] = self.value(self.scalar("I"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.text()
            shape = [self.scalar("Q") for _ in range(self.scalar("I"))]
            kind, offset = self.scalar("I"), self.scalar("Q")
            # The fastest dimension comes first in the file and last in numpy.
            self.tensors[name] = (shape[::-1], kind, offset)
        alignment = self.metadata.get("general.alignment", 32)
        self.begin = -(-self.at // alignment) * alignment

    def scalar(self, form):
        size = struct.calcsize(form)
        (value,) = struct.unpack("<" + form, bytes(self.data[self.at : self.at + size]))
        self.at += size
        return value

    def text(self):
        length = self.scalar("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.scalar("I"), self.scalar("Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(self.SCALARS[kind])

    def tensor(self, name):
        """A tensor in 32-bit floats."""
        if name not in self.tensors:
            raise UnsupportedModel(f"no tensor {name}")
        shape, kind, offset = self.tensors[name]
        count, begin = int(np.prod(shape)), self.begin + offset

        def raw(size):
            return np.array(self.data[begin : begin + size])

        if kind in (0, 1):  # F32, F16
            form = "<f4" if kind == 0 else "<f2"
            return raw(count * int(form[2])).view(form).astype(np.float32).reshape(shape)
        layouts = {2: 18, 3: 20, 8: 34}  # Q4_0, Q4_1, Q8_0: bytes of a block of 32
        if kind not in layouts:
            raise UnsupportedModel(f"{name} has the type {kind}; known are F32, F16, Q4_0, Q4_1 and Q8_0")
        blocks = raw(count // BLOCK * layouts[kind]).reshape(-1, layouts[kind])
        scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
        if kind == 8:
            return (blocks[:, 2:].view(np.int8) * scale).astype(np.float32).reshape(shape)
        packed = blocks[:, 2 if kind == 2 else 4 :]
        values = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
        if kind == 2:
            return ((values - 8) * scale).reshape(shape)
        return (values * scale + blocks[:, 2:4].copy().view("<f2").astype(np.float32)).reshape(shape)


def quantize(weight):
    """Rows to int8 in blocks of 32, with one scale a block."""
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    scales = np.abs(blocks).max(-1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(blocks / scales[..., None]).astype(np.int8), scales.astype(np.float32)


class Graph:
    """Collects nodes and weights."""

    def __init__(self):
        self.nodes, self.constants = [], {}

    def constant(self, name, value):
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def whole(self, *values):
        """A vector of whole numbers."""
        return self.constant("whole_" + "_".join(map(str, values)).replace("-", "m"), np.array(values, np.int64))

    def number(self, name, value):
        return self.constant(name, np.float32(value))

    def node(self, kind, inputs, outputs, domain="", **attributes):
        names = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(helper.make_node(kind, inputs, names, names[0], domain=domain, **attributes))
        return outputs

    def linear(self, x, name, blocks, scales):
        """x times a quantized weight, whose rows are outputs."""
        rows, across = scales.shape
        # MatMulNBits takes values moved by 128, which is its zero point where none is given.
        stored = self.constant(name + ".blocks", (blocks.astype(np.int16) + 128).astype(np.uint8))
        inputs = [x, stored, self.constant(name + ".scales", scales.reshape(-1))]
        sizes = {"K": across * BLOCK, "N": rows, "bits": 8, "block_size": BLOCK, "accuracy_level": ACCURACY}
        return self.node("MatMulNBits", inputs, name, FUSED, **sizes)


def split_halves(weight, heads):
    """llama.cpp keeps a head's rotated pairs side by side; here a head is two halves."""
    size = weight.shape[0] // heads
    return weight.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def embed(graph, table):
    """The rows of the input's tokens. The table is stored as the output's is."""
    blocks, scales = quantize(table)
    stored = graph.constant("logits.blocks", (blocks.astype(np.int16) + 128).astype(np.uint8))
    rows = graph.node("Gather", [stored, "input_ids"], "embedding.rows")
    rows = graph.node("Cast", [rows], "embedding.cast", to=TensorProto.FLOAT)
    rows = graph.node("Sub", [rows, graph.number("zero_point", 128)], "embedding.moved")
    square = graph.constant("embedding.scales", scales[..., None])
    factors = graph.node("Gather", [square, "input_ids"], "embedding.factors")
    rows = graph.node("Mul", [rows, factors], "embedding.blocks")
    return graph.node("Reshape", [rows, graph.whole(0, 0, table.shape[1])], "embedding")


def mask(graph):
    """0 where a token may look, and far below 0 where not: [batch, 1, 1, tokens, total]."""
    there = graph.node("Cast", ["attention_mask"], "mask.float", to=TensorProto.FLOAT)
    counted = graph.node("CumSum", ["attention_mask", graph.constant("axis", np.array(1, np.int64))], "mask.counted")
    places = graph.node("Sub", [counted, graph.whole(1)], "mask.places")
    places = graph.node("Unsqueeze", [places, graph.whole(1, 2, 3)], "mask.keys")
    own = graph.node("Unsqueeze", ["position_ids", graph.whole(1, 2, 4)], "mask.queries")
    before = graph.node("LessOrEqual", [places, own], "mask.before")
    there = graph.node("Greater", [there, graph.number("half", 0.5)], "mask.bool")
    there = graph.node("Unsqueeze", [there, graph.whole(1, 2, 3)], "mask.there")
    seen = graph.node("And", [before, there], "mask.seen")
    return graph.node("Where", [seen, graph.number("nothing", 0), graph.number("far_below", -1e9)], "mask")


def rotation(graph, name, x, size):
    """Rotary positions (Su et al. 2021) on [batch, heads, tokens, size]."""
    inputs = [x, "position_ids", "rotary.cos", "rotary.sin"]
    return graph.node("RotaryEmbedding", inputs, name, FUSED, interleaved=0)


def layer(graph, gguf, x, skipped, n, shape):
    """One block; gives its output, and what is to be added to it at the next norm."""
    heads, kv_heads, size, epsilon = shape
    part = f"layers.{n}."

    def weight(name):
        return gguf.tensor(f"blk.{n}.{name}.weight")

    def linear(x, name, value):
        return graph.linear(x, part + name, *quantize(value))

    def normal(x, skipped, name):
        norm = graph.constant(part + name, weight(name))
        if skipped is None:
            return graph.node("SimplifiedLayerNormalization", [x, norm], part + name + ".out", axis=-1, epsilon=epsilon), x
        outputs = [part + name + ".out", "", "", part + name + ".sum"]
        graph.node("SkipSimplifiedLayerNormalization", [x, skipped, norm], outputs, FUSED, epsilon=epsilon)
        return outputs[0], outputs[3]

    def split(x, name, count):
        x = graph.node("Reshape", [x, graph.whole(0, 0, count, size)], part + name + ".heads")
        return graph.node("Transpose", [x], part + name + ".turned", perm=[0, 2, 1, 3])

    h, x = normal(x, skipped, "attn_norm")
    query = split(linear(h, "query", split_halves(weight("attn_q"), heads)), "query", heads)
    key = split(linear(h, "key", split_halves(weight("attn_k"), kv_heads)), "key", kv_heads)
    value = split(linear(h, "value", weight("attn_v")), "value", kv_heads)
    query = rotation(graph, part + "query.rotated", query, size)
    key = rotation(graph, part + "key.rotated", key, size)
    past, present = f"past_key_values.{n}.", f"present.{n}."
    key = graph.node("Concat", [past + "key", key], present + "key", axis=2)
    value = graph.node("Concat", [past + "value", value], present + "value", axis=2)
    # All queries' heads of one key's head make one product.
    shared = graph.whole(0, kv_heads, -1, size)
    query = graph.node("Reshape", [query, shared], part + "query.shared")
    scores = graph.node("FusedMatMul", [query, key], part + "scores", FUSED, alpha=float(size) ** -0.5, transB=1)
    apart = graph.node("Reshape", [scores, "scores_shape"], part + "scores.apart")
    apart = graph.node("Add", [apart, "mask"], part + "scores.masked")
    apart = graph.node("Softmax", [apart], part + "scores.weights", axis=-1)
    joined = graph.node("Reshape", [apart, "weights_shape"], part + "scores.joined")
    mixed = graph.node("MatMul", [joined, value], part + "mixed")
    mixed = graph.node("Reshape", [mixed, graph.whole(0, heads, -1, size)], part + "mixed.heads")
    mixed = graph.node("Transpose", [mixed], part + "mixed.turned", perm=[0, 2, 1, 3])
    mixed = graph.node("Reshape", [mixed, graph.whole(0, 0, heads * size)], part + "mixed.flat")
    attended = linear(mixed, "attended", weight("attn_output"))
    h, x = normal(x, attended, "ffn_norm")
    gate = linear(h, "gate", weight("ffn_gate"))
    gate = graph.node("QuickGelu", [gate], part + "gate.silu", FUSED, alpha=1.0)
    wide = graph.node("Mul", [gate, linear(h, "up", weight("ffn_up"))], part + "wide")
    return x, linear(wide, "down", weight("ffn_down"))


def convert(gguf):
    """The whole model as an ONNX ModelProto."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModel(f"the architecture is {architecture}, not llama")

    def get(key, default=None):
        return gguf.metadata.get("llama." + key, default)

    if "rope_freqs.weight" in gguf.tensors or get("rope.scaling.type", "none") != "none":
        raise UnsupportedModel("its rotations are scaled")
    layers, width, heads = get("block_count"), get("embedding_length"), get("attention.head_count")
    kv_heads = get("attention.head_count_kv", heads)
    size, epsilon = get("attention.key_length") or width // heads, get("attention.layer_norm_rms_epsilon")
    graph = Graph()
    angles = 1.0 / get("rope.freq_base", 10000.0) ** (np.arange(0, size, 2, dtype=np.float64) / size)
    angles = np.arange(get("context_length"), dtype=np.float64)[:, None] * angles
    graph.constant("rotary.cos", np.cos(angles).astype(np.float32))
    graph.constant("rotary.sin", np.sin(angles).astype(np.float32))
    table = gguf.tensor("token_embd.weight")
    x, skipped = embed(graph, table), None
    mask(graph)
    # Scores are [batch, keys' heads, queries' heads of each × tokens, total]; the mask needs
    # the third of these apart.
    batch = graph.node("Shape", ["attention_mask"], "batch", start=0, end=1)
    total = graph.node("Shape", ["attention_mask"], "total", start=1, end=2)
    group = graph.whole(kv_heads, heads // kv_heads, -1)
    graph.node("Concat", [batch, group, total], "scores_shape", axis=0)
    graph.node("Concat", [batch, graph.whole(kv_heads, -1), total], "weights_shape", axis=0)
    for n in range(layers):
        x, skipped = layer(graph, gguf, x, skipped, n, (heads, kv_heads, size, epsilon))
    norm = graph.constant("output_norm", gguf.tensor("output_norm.weight"))
    graph.node("SkipSimplifiedLayerNormalization", [x, skipped, norm], "normal", FUSED, epsilon=epsilon)
    # From -0 on is from the beginning on.
    keep = graph.node("Reshape", [graph.node("Neg", ["num_logits_to_keep"], "keep.from"), graph.whole(1)], "keep")
    last = graph.constant("last", np.array([np.iinfo(np.int64).max], np.int64))
    kept = graph.node("Slice", ["normal", keep, last, graph.whole(1)], "kept")
    tied = "output.weight" not in gguf.tensors
    output = quantize(table if tied else gguf.tensor("output.weight"))
    if tied:
        graph.linear(kept, "logits", *output)
    else:
        graph.linear(kept, "head", *output)
        graph.node("Identity", ["head"], "logits")

    def value(name, kind, *shape):
        return helper.make_tensor_value_info(name, kind, shape)

    cache = [f"{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    whole, real = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        value("input_ids", whole, "batch", "tokens"),
        value("attention_mask", whole, "batch", "total"),
        value("position_ids", whole, "batch", "tokens"),
        value("num_logits_to_keep", whole),
        *(value("past_key_values." + each, real, "batch", kv_heads, "past", size) for each in cache),
    ]
    outputs = [value("logits", real, "batch", "kept", table.shape[0])]
    outputs += [value("present." + each, real, "batch", kv_heads, "total", size) for each in cache]
    body = helper.make_graph(graph.nodes, "llama", inputs, outputs, list(graph.constants.values()))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(body, opset_imports=opsets, ir_version=9, producer_name="turnflow")


def tokenizer(metadata):
    """A `tokenizer.json` of a byte-level BPE."""
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise UnsupportedModel(f"the tokenizer is {metadata.get('tokenizer.ggml.model')}, not gpt2")
    splits = {
        "smollm": [{"type": "Digits", "individual_digits": True}],
        "gpt-2": [],
    }
    kind = metadata.get("tokenizer.ggml.pre")
    if kind not in splits:
        raise UnsupportedModel(f"texts are split as {kind}; known are {', '.join(splits)}")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = [
        {"id": n, "content": tokens[n], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for n, kind in enumerate(kinds)
        if kind == 3
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits[kind], byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: n for n, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def main():
    if not 3 <= len(sys.argv) <= 5:
        sys.exit("usage: gguf_to_onnx.py MODEL.gguf OUT.onnx [TOKENIZER.json [TEMPLATE.jinja]]")
    source, *outs = map(pathlib.Path, sys.argv[1:])
    try:
        gguf = Gguf(source)
        onnx.save(convert(gguf), outs[0])
        if len(outs) > 1:
            text = json.dumps(tokenizer(gguf.metadata), ensure_ascii=False, indent=1)
            outs[1].write_text(text + "\n", encoding="utf-8")
        if len(outs) > 2:
            outs[2].write_text(gguf.metadata["tokenizer.chat_template"], encoding="utf-8")
    except (OSError, KeyError, ValueError, struct.error, UnsupportedModel) as error:
        sys.exit(f"gguf_to_onnx.py: {source}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
