"""Texts to vectors with Sentence Transformers, for comparison: `sentence_encoder.py MODEL_DIR CORPUS.jsonl DEVICE`.

MODEL_DIR has all-MiniLM-L6-v2 as `model.onnx` and `tokenizer.json`; the weights are read from there. It prints passages per
second, tokenization included, by size of batches and format of numbers.
"""

import json
import pathlib
import sys
import tempfile
import time

import torch
from sentence_transformers import SentenceTransformer, models
from transformers import PreTrainedTokenizerFast

from torch_encoder import model

TOKENS = 256
LIMIT = 4096


def texts(path):
    """Different passages, as `turnflow-stress gpu` reads them."""
    rows = (json.loads(line) for line in open(path, encoding="utf-8"))
    return list(dict.fromkeys(row["text"] for row in rows))[:LIMIT]


def encoder(directory, device):
    directory = pathlib.Path(directory)
    with tempfile.TemporaryDirectory() as made:
        bert = model(directory / "model.onnx")
        bert.save_pretrained(made)
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), **names)
        tokenizer.save_pretrained(made)
        words = models.Transformer(made, max_seq_length=TOKENS)
        pooling = models.Pooling(bert.config.hidden_size, "mean")
        return SentenceTransformer(modules=[words, pooling, models.Normalize()], device=device)


def main():
    passages, device = texts(sys.argv[2]), sys.argv[3]
    bert = encoder(sys.argv[1], device)
    on_gpu = device.startswith("cuda")
    for name, half in [("32 bits", False), ("16 bits", True)] if on_gpu else [("32 bits", False)]:
        if half:
            bert.half()
        for size in [32, 64, 256, 1024] if on_gpu else [32, 64]:
            call = lambda: bert.encode(passages, batch_size=size, convert_to_numpy=True)
            call()
            took = []
            for _ in range(3 if on_gpu else 1):
                begun = time.perf_counter()
                call()
                took.append(time.perf_counter() - begun)
            median = sorted(took)[len(took) // 2]
            print(f"{name}, batches of {size}: {len(passages) / median:.0f} passages/s", flush=True)


if __name__ == "__main__":
    main()
