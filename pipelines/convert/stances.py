#!/usr/bin/env python3
"""Learns the label of `IdkNormalize` and of the metrics: whether a sentence declines, asks back or answers. Measures it too.

    python3 pipelines/convert/stances.py learn --mtrag DATA/mtrag --output operators/src/declines/head.ron
    python3 pipelines/convert/stances.py measure --turnflow turnflow --mtrag DATA/mtrag

`learn` fits a multinomial logistic regression to sentences: those of labels/learned.tsv, and one half of MTRAG's dev
references and passages, split by a hash of the conversation or passage. It reads the sentence's vector by the encoder
MiniLM in 8 bits (mean over tokens, length 1), and some counts of words. `measure` writes answers with known labels as
tasks, has `turnflow eval` label them, and prints confusion tables: labels/held_out.tsv, MTRAG's references (all, and
the half that was not learned from) and its 477 judged answers. Without --mtrag, both use the files here alone.

`learn` needs numpy, scikit-learn, onnxruntime and tokenizers; `measure` needs nothing.
"""

import argparse
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CLASSES = ["answers", "declines", "asks"]

# Words by what they do. The weights file contains them, so that turnflow counts the same words.
CUES = {
    "negation": "not no never none neither nor nothing nowhere without unable cannot can't cant don't dont doesn't doesnt "
    "didn't isn't aren't wasn't weren't won't couldn't wouldn't haven't hasn't hardly little",
    "lack": "lack lacks lacking missing absent insufficient unavailable unknown unclear unsure uncertain unaware silent "
    "fail fails failed beyond outside omit omits unspecified unanswered unanswerable impossible blank empty guess",
    "sorry": "sorry unfortunately afraid apologies apologize apologise regret regrettably sadly regrets",
    "speaker": "i we i'm i've i'd my me our us assistant",
    "source": "document documents passage passages context source sources text texts material materials excerpt excerpts "
    "snippet snippets article articles page pages record records knowledge base search results documentation reference "
    "references notes extract extracts retrieved provided given supplied available",
    "thing": "information info details detail answer answers data idea clue anything something figure figures mention "
    "entry specifics",
    "find": "have has had find found locate see know possess hold recall retrieve retrieved access",
    "tell": "mention mentions mentioned say says said tell tells state states stated specify specifies specified cover "
    "covers covered contain contains contained include included explain explains address addressed discuss discussed "
    "describe described give gives given provide provides provided answer answered determine determined disclose "
    "indicate indicated",
    "you": "you your yours",
    "meaning": "mean meant referring refer talking asking specify clarify which interested mind thinking",
    "condition": "if when unless must should may because",
}
# Cues that are looked for among the first three words too.
BEGINNINGS = ["negation", "sorry", "speaker", "source"]
PRODUCTS = [
    ["negation", "speaker"], ["negation", "source"], ["negation", "thing"], ["negation", "find"], ["negation", "tell"],
    ["lack", "speaker"], ["lack", "source"], ["lack", "thing"], ["negation", "speaker", "find"],
    ["negation", "source", "tell"], ["negation", "thing", "tell"],
]  # fmt: skip
PROBE = "The passages do not say when the ferry leaves."


def features(sentence, sets={name: set(words.split()) for name, words in CUES.items()}):
    words = re.findall(r"[a-z0-9']+", sentence.lower().replace("’", "'"))
    counts = {name: min(2, sum(word in cue for word in words)) / 2 for name, cue in sets.items()}
    first = [float(any(word in sets[name] for word in words[:3])) for name in BEGINNINGS]
    products = []
    for names in PRODUCTS:
        product = 1.0
        for name in names:
            product *= counts[name]
        products.append(product)
    asks = float(sentence.rstrip().endswith("?"))
    length = [min(len(words), 40) / 40, float(len(words) < 6)]
    return [*counts.values(), *first, *products, asks, asks * counts["you"], *length]


def sentences(text):
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text) if re.search(r"\w", part)]


def wordings(name):
    lines = (HERE / "labels" / name).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t", 1)) for line in lines if "\t" in line]


def held_out(name):
    """Whether a conversation is kept from learning."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 == 1


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


# What the split by sentences of learned texts may get wrong is left out: sentences of answers that may decline.
MAY_DECLINE = re.compile(r"\b(I|we|documents?|passages?|text|context)\b.*\b(not|cannot|no)\b|n't", re.I)


def examples(mtrag):
    """Sentences, their classes and their weights."""
    found = []
    for label, text in wordings("learned.tsv"):
        parts = sentences(text)
        if label == "declines":
            found.append((parts[0] if len(parts[0]) > 20 else text, label, 1.0))
        elif label == "asks":
            found.append((parts[-1], label, 1.0))
        elif label == "answers":
            found.extend((part, label, 1.0) for part in parts)
    if mtrag:
        for task in lines(mtrag / "tasks.dev.jsonl"):
            if held_out(task["conversation_id"]):
                continue
            parts, kind = sentences(task["target"]), task["answerability"]
            if kind == "UNANSWERABLE" and MAY_DECLINE.search(task["target"]):
                found.append((parts[0] if len(parts[0]) > 20 else task["target"].strip(), "declines", 1.0))
            elif kind == "UNDERSPECIFIED":
                found.append((parts[-1], "asks", 1.0))
            elif kind in ("ANSWERABLE", "PARTIAL"):
                found.extend((part, "answers", 1.0) for part in parts if not MAY_DECLINE.search(part))
        passages = [p for path in sorted(mtrag.glob("corpus/*.jsonl")) for p in lines(path)]
        parts = [s for p in passages if not held_out(p["_id"]) for s in sentences(p["text"]) if len(s) > 20]
        parts.sort(key=lambda part: hashlib.sha256(part.encode()).hexdigest())
        found.extend((part, "answers", 0.3) for part in parts[:1500])
    return found


class Encoder:
    """The encoder as turnflow uses it."""

    def __init__(self, model):
        import onnxruntime
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.no_padding()
        self.session = onnxruntime.InferenceSession(str(model / "model.onnx"))
        self.inputs = [given.name for given in self.session.get_inputs()]

    def vector(self, text):
        import numpy

        ids = numpy.array([self.tokenizer.encode(text).ids], dtype=numpy.int64)
        given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
        tokens = self.session.run(None, {name: given[name] for name in self.inputs})[0][0]
        mean = tokens.mean(axis=0)
        return mean / numpy.linalg.norm(mean)


def learn(arguments):
    import numpy
    from sklearn.linear_model import LogisticRegression

    encoder = Encoder(arguments.model)
    found = examples(arguments.mtrag)
    written = {part for _, text in wordings("learned.tsv") for part in sentences(text)}
    rows = numpy.array([[*encoder.vector(text), *features(text)] for text, _, _ in found])
    labels = numpy.array([CLASSES.index(label) for _, label, _ in found])
    weights = numpy.array([weight for _, _, weight in found])
    # The thresholds are chosen on folds that the weights do not know.
    folds = numpy.array([hashlib.sha256(text.encode()).digest()[0] % 5 for text, _, _ in found])
    held = numpy.zeros((len(rows), len(CLASSES)))
    new = lambda: LogisticRegression(C=arguments.c, max_iter=10_000)
    for fold in range(5):
        model = new().fit(rows[folds != fold], labels[folds != fold], sample_weight=weights[folds != fold])
        held[folds == fold] = model.predict_proba(rows[folds == fold])

    hard = numpy.array([label == "answers" and text in written for text, label, _ in found])

    def threshold(kind):
        """The smallest probability above which at most 1 of 200 answers is, of those that look like refusals."""
        others = numpy.sort(held[hard, kind])[::-1]
        least = max(0.5, others[len(others) // 200])
        found = (held[labels == kind, kind] > least).mean()
        print(f"{CLASSES[kind]}: threshold {least:.3f}, found on held-out folds {found:.3f} of {(labels == kind).sum()}")
        return float(least)

    declines, asks = threshold(1), threshold(2)
    model = new().fit(rows, labels, sample_weight=weights)
    number = lambda value: f"{value:.4g}"
    listed = lambda values: "[" + ",".join(number(value) for value in values) + "]"
    text = [
        "// Learned by `pipelines/convert/stances.py learn`; see there.",
        "Head(",
        f"    classes: {json.dumps(CLASSES)},",
        f"    declines: {declines:.3f},",
        f"    asks: {asks:.3f},",
        "    cues: [" + ", ".join(f"({json.dumps(name)}, {json.dumps(cue)})" for name, cue in CUES.items()) + "],",
        f"    beginnings: {json.dumps(BEGINNINGS)},",
        f"    products: {json.dumps(PRODUCTS)},",
        f"    probe: {json.dumps(PROBE)},",
        f"    probed: {listed(encoder.vector(PROBE))},",
        f"    bias: {listed(model.intercept_)},",
        "    weights: [" + ",\n".join(listed(row) for row in model.coef_) + "],",
        ")",
    ]
    arguments.output.write_text("\n".join(text) + "\n", encoding="utf-8")
    print(f"{len(rows)} sentences, {arguments.output.stat().st_size} bytes")


# The answerability that stands for each label in the tasks of `measure`.
STANDS = {"answers": "ANSWERABLE", "partial": "PARTIAL", "declines": "UNANSWERABLE", "asks": "UNDERSPECIFIED"}
LABEL = {name: label for label, name in STANDS.items()} | {"CONVERSATIONAL": "answers"}


def judged(mtrag):
    """The judged answers. The published label is in `conditional_idk`: whether it agrees with the answerability."""
    data = json.loads((mtrag / "reference_subset_with_human_evaluations.json").read_text(encoding="utf-8"))
    kinds = {task["task_id"]: task["Answerability"][0] for task in data["tasks"]}
    for answer in data["evaluations"]:
        kind = kinds[answer["task_id"]]
        agrees = answer["annotations"]["conditional_idk"]["composite"]["value"] == 1
        declines = (kind == "UNANSWERABLE") == agrees and kind != "CONVERSATIONAL"
        yield ("declines" if declines else "answers"), answer["model_response"]


def evaluated(turnflow, texts, metrics, folder):
    """What `turnflow eval` counts for texts with an answerability each."""
    tasks, answers = [], []
    for at, (kind, text) in enumerate(texts):
        task = {"task_id": f"t{at}", "conversation_id": f"t{at}", "turn": 1, "answerability": kind}
        tasks.append(json.dumps(task | {"input": [{"speaker": "user", "text": "?"}]}) + "\n")
        answers.append(json.dumps({"task_id": f"t{at}", "predictions": [{"text": text}]}) + "\n")
    (folder / "tasks.jsonl").write_text("".join(tasks), encoding="utf-8")
    (folder / "answers.jsonl").write_text("".join(answers), encoding="utf-8")
    output = folder / "figures.json"
    command = [turnflow, "eval", "--answers", folder / "answers.jsonl", "--tasks", folder / "tasks.jsonl"]
    command += ["--output", output] + (["--metrics", metrics] if metrics else [])
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text(encoding="utf-8"))["generation"]


def labelled(turnflow, texts, metrics, folder):
    """How many texts of each label got each label."""
    figures = evaluated(turnflow, [(STANDS[label], text) for label, text in texts], metrics, folder)
    run = {"labels": {LABEL[kind]: counts for kind, counts in figures["abstention"]["labels"].items()}}
    run["accuracy"] = figures["abstention"]["answerability_accuracy"]
    run["asked"] = figures.get("clarification", {}).get("asked", {})
    # Only answers to underspecified questions are tested for questions back.
    others = [("UNDERSPECIFIED", text) for label, text in texts if label != "asks"]
    run["wrongly"] = evaluated(turnflow, others, metrics, folder)["clarification"]["asked"]
    return run


def table(name, run):
    print(f"\n{name}\n\n| label | declines | in part | answers or asks |\n|---|---|---|---|")
    for label, counts in run["labels"].items():
        print(f"| {label} | {counts.get('yes', 0)} | {counts.get('partial', 0)} | {counts.get('no', 0)} |")
    accuracy, asked, wrongly = run["accuracy"], run["asked"], run["wrongly"]
    print(f"\nanswerability: {accuracy['count']} of {accuracy['of']} right")
    print(f"asking back: {asked.get('count', 0)} of {asked.get('of', 0)} found, and {wrongly['count']} of", end="")
    print(f" {wrongly['of']} others")


def measure(arguments):
    sets = {"held-out wordings": wordings("held_out.tsv")}
    if arguments.mtrag:
        tasks = lines(arguments.mtrag / "tasks.dev.jsonl")
        said = lambda task: (LABEL[task["answerability"]], task["target"])
        sets["MTRAG's references"] = [said(task) for task in tasks]
        sets["the half not learned from"] = [said(task) for task in tasks if held_out(task["conversation_id"])]
        sets["judged answers"] = list(judged(arguments.mtrag))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        head = folder / "head.ron"
        model = (ROOT / "models" / "minilm-int8").as_posix()
        head.write_text(
            f'Metrics(models: {{"minilm": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json")}}, '
            'idk: (encoder: "minilm"))\n'
        )
        for kind, metrics in [("rules", None), ("rules and the learned label", head)]:
            if metrics and arguments.rules_only:
                continue
            for name, texts in sets.items():
                table(f"{name}: {kind}", labelled(arguments.turnflow, texts, metrics, folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("learn", help="learn the weights")
    one.add_argument("--mtrag", type=pathlib.Path, help="the directory with tasks.dev.jsonl and corpus/")
    one.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "minilm-int8")
    one.add_argument("--output", type=pathlib.Path, required=True)
    one.add_argument("-c", type=float, default=3.0, help="inverse strength of the regularisation [default: 3]")
    one.set_defaults(run=learn)
    two = commands.add_parser("measure", help="print confusion tables")
    two.add_argument("--turnflow", default="turnflow", help="the program to measure")
    two.add_argument("--mtrag", type=pathlib.Path)
    two.add_argument("--rules-only", action="store_true", help="without the learned label")
    two.set_defaults(run=measure)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
