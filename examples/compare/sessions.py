"""Whether an encoder is faster with two sessions of half the cores than with one of all, and with IO binding.

    python3 examples/compare/sessions.py models/minilm/model.onnx [--batch 16] [--tokens 40] [--seconds 10]

Needs onnxruntime and numpy. All arms run the same batches of random tokens; rounds alternate, and figures are medians,
in texts a second.
"""

import argparse
import os
import statistics
import threading
import time

import numpy as np
import onnxruntime as ort


def session(path: str, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def inputs_of(model: ort.InferenceSession, batch: int, tokens: int) -> dict:
    random = np.random.default_rng(7)
    given = {"input_ids": random.integers(1000, 20000, (batch, tokens)), "attention_mask": np.ones((batch, tokens))}
    names = [input.name for input in model.get_inputs()]
    return {name: given.get(name, np.zeros((batch, tokens))).astype(np.int64) for name in names}


def plain(model, inputs):
    return lambda: model.run(None, inputs)


def bound(model, inputs):
    binding = model.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    for output, value in zip(model.get_outputs(), model.run(None, inputs)):
        binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(value))
    return lambda: model.run_with_iobinding(binding)


def rate(calls: list, batch: int, seconds: float) -> float:
    counts = [0] * len(calls)
    until = time.perf_counter() + seconds

    def run(at: int):
        while time.perf_counter() < until:
            calls[at]()
            counts[at] += 1

    begun = time.perf_counter()
    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(counts) * batch / (time.perf_counter() - begun)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("model")
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--tokens", type=int, default=40)
    arguments.add_argument("--seconds", type=float, default=10.0)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    cores = os.cpu_count() or 1
    whole = session(given.model, cores)
    halves = [session(given.model, max(cores // 2, 1)) for _ in range(2)]
    inputs = inputs_of(whole, given.batch, given.tokens)
    arms = {
        "one session": [plain(whole, inputs)],
        "one session, IO binding": [bound(whole, inputs)],
        "two sessions": [plain(half, inputs) for half in halves],
        "one session, called by two threads": [plain(whole, inputs)] * 2,
    }
    measured = {name: [] for name in arms}
    for _ in range(given.rounds):
        for name, calls in arms.items():
            measured[name].append(rate(calls, given.batch, given.seconds / given.rounds))
    first = statistics.median(measured["one session"])
    for name, rates in measured.items():
        middle = statistics.median(rates)
        print(f"{name:36} {middle:8.1f} texts/s  {middle / first:.3f} times")


if __name__ == "__main__":
    main()
