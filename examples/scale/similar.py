#!/usr/bin/env python3
"""Measures which questions get the answers of others from the answer cache (`similar`).

    python3 examples/scale/similar.py TURNFLOW OBLIQA MTRAG ENCODER

TURNFLOW is the program, OBLIQA and MTRAG are directories with the benchmark data, and ENCODER is a directory with
`model.onnx` and `tokenizer.json`. It needs numpy. Real questions are asked first. Then come questions that differ from them in one
number, date, name, negation or opposite, which must not get their answers, and others that say the same in a slightly
different form. For each bound, the script prints the share of each kind that got the answer of another question, and
then the share that vectors alone would give it: those of the questions and of their originals.
"""
import json, os, random, re, subprocess, sys, tempfile, time, urllib.request

import numpy

BOUNDS = [0.9, 0.95, 0.97, 0.98, 0.99]
MONTHS = "January February March April May June July August September October November December".split()
DENIED = {"can": "cannot", "is": "is not", "are": "are not", "does": "does not", "do": "do not", "should": "should not",
          "must": "must not", "with": "without", "will": "will not"}
OPPOSITES = {"before": "after", "minimum": "maximum", "increase": "decrease", "best": "worst", "more": "less",
             "first": "last", "buy": "sell", "open": "close", "start": "stop", "all": "no", "new": "old", "high": "low",
             "internal": "external", "largest": "smallest", "employer": "employee", "from": "to"}
NAME = re.compile(r"(?<=[a-z] )[A-Z][a-z]{3,}\b")


def questions(obliqa, mtrag):
    found = [json.loads(line)["text"] for line in open(f"{obliqa}/queries.dev.jsonl")][:500]
    turns = (json.loads(line) for line in open(f"{mtrag}/turns.dev.jsonl"))
    found += [turn["text"] for turn in turns if turn["speaker"] == "user" and turn["turn"] == 1]
    return sorted({text.strip() for text in found if 15 < len(text) < 300})


def replaced(text, words):
    for word, other in words.items():
        if re.search(rf"\b{word}\b", text):
            return re.sub(rf"\b{word}\b", other, text, count=1)
    return None


def others(texts, chance):
    """Questions by kind. Those of `wrong` ask something else."""
    names = sorted({name for text in texts for name in NAME.findall(text)})
    wrong = {"number": [], "date": [], "name": [], "negation": [], "opposite": []}
    asked = list(texts)
    for text in texts:
        bare = text.rstrip("?. ")
        for kind, tails in (("number", [f" for {n} people?" for n in chance.sample(range(2, 40), 2)]),
                            ("date", [f" in {month} 2024?" for month in chance.sample(MONTHS, 2)])):
            asked.append(bare + tails[0])
            wrong[kind].append(bare + tails[1])
        number = re.search(r"\d+", text)
        if number:
            wrong["number"].append(text[:number.start()] + str(int(number[0]) + 1) + text[number.end():])
        name = NAME.search(text)
        if name:
            other = chance.choice([known for known in names if known != name[0]])
            wrong["name"].append(text[:name.start()] + other + text[name.end():])
        for kind, words in (("negation", DENIED), ("opposite", OPPOSITES)):
            changed = replaced(text, words)
            if changed:
                wrong[kind].append(changed)
    low = [text[0].lower() + text[1:] for text in texts]
    right = {
        "case and marks": [text.lower().rstrip("?. ") for text in texts],
        "politeness": ["Hi, please tell me: " + text for text in low],
        "little words": [changed for text in texts if (changed := replaced(text, {
            "What is": "What's", "the": "a", "a": "the"}))],
        "other words": [changed for text in texts if (changed := replaced(text, {
            "What": "Which", "required": "needed", "requirements": "obligations", "must": "has to", "get": "obtain",
            "buy": "purchase", "difference": "distinction", "How can I": "What is the way to"}))],
    }
    known = set(asked)
    return asked, {kind: [text for text in found if text not in known] for kind, found in wrong.items()}, right


def nearest(vectors, texts, asked):
    """The greatest cosine of each text with an asked question."""
    from_asked = numpy.array([vectors[text] for text in asked])
    from_asked /= numpy.linalg.norm(from_asked, axis=1, keepdims=True)
    rows = numpy.array([vectors[text] for text in texts])
    rows /= numpy.linalg.norm(rows, axis=1, keepdims=True)
    return (rows @ from_asked.T).max(axis=1)


class Server:
    def __init__(self, program, directory, encoder, least):
        with open(f"{directory}/similar.ron", "w") as file:
            file.write(f"""Pipeline(
    name: "similar",
    cache: Answers(entries: 100000, similar: {least}, model: "encoder"),
    models: {{ "encoder": Onnx(path: "{encoder}/model.onnx", tokenizer: "{encoder}/tokenizer.json", pooling: Mean,
                             max_tokens: 256) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 1),
        "near": Dense(input: "query", corpus: "docs", model: "encoder", top: 1),
    }},
)""")
        with open(f"{directory}/docs.jsonl", "w") as file:
            file.write('{"_id": "d", "text": "The ferry leaves at noon."}\n')
        with open(f"{directory}/serve.ron", "w") as file:
            file.write("Serve(limits: (rate: 0))")
        arguments = ["--config", f"{directory}/serve.ron", "--listen", "127.0.0.1:8796"]
        self.process = subprocess.Popen([program, "serve", f"{directory}/similar.ron", *arguments],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = "http://127.0.0.1:8796"
        while True:
            try:
                return self.post("/v1/embeddings", {"model": "similar/encoder", "input": ["a"]}) and None
            except OSError:
                time.sleep(0.1)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def ask(self, text):
        turn = {"conversation_id": "c", "turn": 1, "speaker": "user", "text": text}
        return self.post("/v1/turns", turn)["stamp"].get("similar_to")

    def vectors(self, texts):
        found = {}
        for at in range(0, len(texts), 64):
            part = texts[at:at + 64]
            data = self.post("/v1/embeddings", {"model": "similar/encoder", "input": part})["data"]
            found.update(zip(part, (row["embedding"] for row in data)))
        return found

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main():
    program, obliqa, mtrag, encoder = sys.argv[1:]
    chance = random.Random(7)
    asked, wrong, right = others(questions(obliqa, mtrag), chance)
    kinds = {**wrong, **right}
    print("bound", *kinds, sep="\t")
    print("questions", *(len(texts) for texts in kinds.values()), sep="\t")
    alone = None
    for least in BOUNDS:
        with tempfile.TemporaryDirectory() as directory:
            server = Server(program, directory, os.path.abspath(encoder), least)
            try:
                if alone is None:
                    vectors = server.vectors(sorted({*asked, *(text for texts in kinds.values() for text in texts)}))
                    alone = [nearest(vectors, texts, asked) for texts in kinds.values()]
                for text in asked:
                    server.ask(text)
                shares = [sum(server.ask(text) is not None for text in texts) / len(texts) for texts in kinds.values()]
            finally:
                server.stop()
        print(least, *(f"{share:.3f}" for share in shares), sep="\t", flush=True)
        print(f"{least}, vectors alone", *(f"{(row >= least).mean():.3f}" for row in alone), sep="\t", flush=True)


if __name__ == "__main__":
    main()
