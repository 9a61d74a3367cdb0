"""The processor time of an edit in a live pipeline, by the number of turns that stand.

    python3 examples/scale/edits.py TURNFLOW OBLIQA [--turns 20000] [--kind bm25|dense|rrf] [--edits 8]
        [--restarts 0] [--model models/minilm-int8]

TURNFLOW is the program, and OBLIQA a directory with `corpus.jsonl` and `queries.dev.jsonl`. Each edit adds a sentence to one
row. The first edit is shown, and not counted in the mean. After the edits, the program is stopped and started again, and a
question is asked at once. Two programs are compared by running this for each in turn.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

NODES = {
    "bm25": '"hits": Bm25(input: "query", corpus: "docs", top: 10),',
    "dense": '"hits": Dense(input: "query", corpus: "docs", model: "encoder", top: 10),',
    "rrf": '"lexical": Bm25(input: "query", corpus: "docs", top: 10),'
    ' "dense": Dense(input: "query", corpus: "docs", model: "encoder", top: 10),'
    ' "hits": Rrf(inputs: ["lexical", "dense"], top: 10),',
}


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Run:
    """A running pipeline in a directory of its own."""

    def __init__(self, place, options):
        self.place = place
        self.rows = lines(os.path.join(options.data, "corpus.jsonl"))
        questions = lines(os.path.join(options.data, "queries.dev.jsonl"))
        with open(self.path("turns.jsonl"), "w", encoding="utf-8") as file:
            for number in range(options.turns):
                text = questions[number % len(questions)]["text"]
                # A question that comes again gets a number, so that it is another one.
                text += f" {number}" if number >= len(questions) else ""
                turn = {"conversation_id": f"c{number}", "turn": 1, "speaker": "user", "text": text}
                file.write(json.dumps(turn) + "\n")
        model = os.path.abspath(options.model)
        models = f'models: {{ "encoder": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json") }},'
        with open(self.path("live.ron"), "w", encoding="utf-8") as file:
            file.write(
                f"Pipeline(mode: Live(standing: {options.turns + 10}),"
                f" {'' if options.kind == 'bm25' else models}"
                ' corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },'
                ' nodes: { "turns": JsonLines(path: "turns.jsonl"), "query": LastTurn(input: "turns"), '
                f"{NODES[options.kind]}"
                ' "answer": ExtractiveAnswer(input: "hits"), "out": JsonLinesSink(input: "answer", path: "answers.jsonl") })'
            )
        self.write()
        self.command = [os.path.abspath(options.turnflow), "run", "live.ron", "--state", "state"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, cwd=self.place, stdout=subprocess.DEVNULL)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(120)

    def ask(self, name):
        """Adds a turn to the log, and waits for its answer."""
        turn = {"conversation_id": name, "turn": 1, "speaker": "user", "text": "Who must report a breach?"}
        with open(self.path("turns.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps(turn) + "\n")
        at = os.path.getsize(self.path("answers.jsonl"))
        while True:
            with open(self.path("answers.jsonl"), "rb") as file:
                file.seek(at)
                if f'"{name}"'.encode() in file.read():
                    return
            time.sleep(0.005)

    def path(self, name):
        return os.path.join(self.place, name)

    def write(self):
        with open(self.path("docs.new"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)
        os.rename(self.path("docs.new"), self.path("docs.jsonl"))

    def answers(self):
        try:
            with open(self.path("answers.jsonl"), "rb") as file:
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0

    def processor(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) // 1024 for line in file if line.startswith("RssAnon"))

    def settle(self, seconds):
        """Waits until the program has done nearly nothing for some seconds. Returns when that began."""
        last, since = self.processor(), time.time()
        while time.time() - since < seconds:
            time.sleep(0.25)
            if self.process.poll() is not None:
                sys.exit("the program has ended")
            if self.processor() - last > 0.04:
                last, since = self.processor(), time.time()
        return since


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("turnflow")
    parser.add_argument("data")
    parser.add_argument("--turns", type=int, default=20_000)
    parser.add_argument("--kind", choices=sorted(NODES), default="bm25")
    parser.add_argument("--edits", type=int, default=8)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--model", default="models/minilm-int8")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = Run(place, options)
        while run.answers() < options.turns:
            run.settle(0.5)
        run.settle(4)
        print(f"{options.turns} turns stand, {run.memory()} MB", flush=True)
        numbers, times = random.Random(1), []
        for edit in range(options.edits):
            row = numbers.choice(run.rows)
            row["text"] += f" Amended by notice {edit} of the regulator."
            before, lines_before, begun = run.processor(), run.answers(), time.time()
            run.write()
            until = run.settle(2)
            times.append(run.processor() - before)
            print(
                f"edit {edit}: {times[-1]:.2f} s of processor time, done after {until - begun:.1f} s,"
                f" {(run.answers() - lines_before) // 2} answers changed",
                flush=True,
            )
        counted = times[1:] or times
        print(f"mean {sum(counted) / len(counted):.3f} s, {run.memory()} MB")
        for restart in range(options.restarts):
            begun = time.time()
            run.stop()
            stopped = time.time()
            run.start()
            run.ask(f"restart {restart}")
            first = time.time()
            until = run.settle(3)
            print(
                f"restart {restart}: stopped after {stopped - begun:.1f} s, the first answer {first - stopped:.2f} s after the"
                f" start, done after {max(until - stopped, 0):.1f} s, {run.processor():.2f} s of processor time",
                flush=True,
            )
        run.stop()


if __name__ == "__main__":
    main()
