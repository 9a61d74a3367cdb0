"""Whether two models on the same cores are faster with one pool of threads for both than with one for each.

    python3 examples/compare/shared_pool.py models/minilm/model.onnx models/e5-int8/model.onnx [--batch 16] [--tokens 40]

Needs onnxruntime 1.31 and numpy. The pool is chosen once for a process, so each arm has processes of its own, and they
alternate. Each model is called by one thread, with the same batches of random tokens. Figures are medians, in texts a
second: both models one after the other, and both at the same time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import onnxruntime as ort

from sessions import inputs_of, plain, rate


def calls_of(paths: list[str], arm: str, batch: int, tokens: int) -> list:
    cores = os.cpu_count() or 1
    if arm == "shared":
        ort.set_global_thread_pool_sizes(cores, 1)
    calls = []
    for path in paths:
        options = ort.SessionOptions()
        if arm == "shared":
            options.use_per_session_threads = False
        else:
            options.intra_op_num_threads = cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        calls.append(plain(model, inputs_of(model, batch, tokens)))
    return calls


def measure(given) -> None:
    calls = calls_of(given.models, given.arm, given.batch, given.tokens)
    [call() for call in calls]
    begun = time.perf_counter()
    done = 0
    while time.perf_counter() < begun + given.seconds:
        [call() for call in calls]
        done += len(calls)
    alternating = done * given.batch / (time.perf_counter() - begun)
    print(json.dumps({"one after the other": alternating, "at the same time": rate(calls, given.batch, given.seconds)}))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("models", nargs=2)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--tokens", type=int, default=40)
    arguments.add_argument("--seconds", type=float, default=3.0)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--arm", choices=["own", "shared"], help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.arm:
        return measure(given)
    measured: dict = {}
    for _ in range(given.rounds):
        for arm in ["own", "shared"]:
            command = [sys.executable, *sys.argv, "--arm", arm]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for name, value in result.items():
                measured.setdefault((arm, name), []).append(value)
    first = statistics.median(measured["own", "one after the other"])
    for (arm, name), values in measured.items():
        middle = statistics.median(values)
        print(f"{arm:7} pool, {name:20} {middle:8.1f} texts/s  {middle / first:.3f} times")


if __name__ == "__main__":
    main()
