"""The encoder all-MiniLM-L6-v2 in PyTorch, for comparison: `torch_encoder.py MODEL.onnx GIVEN.json`.

The weights are those of the ONNX file, whose initializers are named as BERT's parameters in transformers. `GIVEN.json` has
tokens of texts, the vectors to compare with, and the lengths and sizes of batches to measure. It prints a table in Markdown:
passages per second with 32-bit floats, with TF32 and with 16-bit floats.
"""

import json
import sys
import time

import onnx
import onnx.numpy_helper
import torch
from transformers import BertConfig, BertModel

HEADS = 12


def parameters(path):
    """The parameters of the ONNX file under their names in PyTorch."""
    found = {}
    for value in onnx.load(path).graph.initializer:
        array = torch.from_numpy(onnx.numpy_helper.to_array(value).copy())
        if value.name.endswith("attention.self.bias"):
            for part, bias in zip(("query", "key", "value"), array.chunk(3)):
                found[value.name.replace("self.bias", f"self.{part}.bias")] = bias
        elif array.dim() == 2 and "embeddings" not in value.name:
            found[value.name] = array.T.contiguous()
        elif value.name != "zero":
            found[value.name] = array
    return found


def model(path):
    weights = parameters(path)
    words, width = weights["embeddings.word_embeddings.weight"].shape
    config = BertConfig(
        vocab_size=words,
        hidden_size=width,
        num_hidden_layers=1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer.")),
        num_attention_heads=HEADS,
        intermediate_size=weights["encoder.layer.0.intermediate.dense.bias"].shape[0],
        max_position_embeddings=weights["embeddings.position_embeddings.weight"].shape[0],
    )
    bert = BertModel(config, add_pooling_layer=False).eval()
    missing, unknown = bert.load_state_dict(weights, strict=False)
    missing = [name for name in missing if not name.endswith(("position_ids", "token_type_ids"))]
    if missing or unknown:
        sys.exit(f"the model does not fit: missing {missing}, unknown {unknown}")
    return bert


@torch.inference_mode()
def embed(bert, ids, mask):
    states = bert(input_ids=ids, attention_mask=mask).last_hidden_state
    mask = mask.unsqueeze(-1).to(states.dtype)
    pooled = (states * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled.float(), dim=1).cpu()


def padded(rows, device):
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return ids.to(device), mask.to(device)


def seconds(call, least):
    """Seconds of one call, with the vectors brought to the CPU."""
    call()
    begun, calls = time.perf_counter(), 0
    while calls < 3 or time.perf_counter() - begun < least:
        call()
        calls += 1
    return (time.perf_counter() - begun) / calls


def main():
    given = json.load(open(sys.argv[2], encoding="utf-8"))
    device = torch.device(given["device"])
    bert = model(sys.argv[1]).to(device)
    stream = [token for row in given["tokens"] for token in row]
    wanted = torch.tensor(given["vectors"])
    notes = []
    print(f"PyTorch {torch.__version__}; passages per second, and milliseconds of a call.\n")
    print("| numbers | tokens |", " | ".join(f"batch {size}" for size in given["batches"]), "|")
    print("|---|---|" + "---|" * len(given["batches"]))
    arms = [("32 bits", torch.float32, "highest"), ("TF32", torch.float32, "high"), ("16 bits", torch.float16, "high")]
    for name, kind, precision in arms if device.type == "cuda" else arms[:1]:
        torch.set_float32_matmul_precision(precision)
        bert = bert.to(kind)
        vectors = embed(bert, *padded(given["tokens"], device))
        notes.append(f"{name} {(vectors - wanted).abs().max():.1e}")
        for length in given["lengths"]:
            row = []
            for size in given["batches"]:
                rows = [[stream[(text * 31 + at) % len(stream)] for at in range(length)] for text in range(size)]
                # As a caller has them: on the CPU.
                ids, mask = padded(rows, "cpu")
                took = seconds(lambda: embed(bert, ids.to(device), mask.to(device)), given["seconds"])
                row.append(f"{size / took:.0f}, {1000 * took:.2f}")
            print(f"| {name} | {length} |", " | ".join(row), "|", flush=True)
    print("\nGreatest difference of a value from turnflow's vectors on the CPU:", ", ".join(notes))


if __name__ == "__main__":
    main()
