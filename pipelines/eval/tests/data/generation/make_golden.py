#!/usr/bin/env python3
"""Writes rouge.json and bert_score.json beside itself: what rouge_score and bert_score say.

The unit tests in src/eval/generation compare their own figures with these. To rewrite:

    python3 -m venv golden-venv
    golden-venv/bin/pip install rouge-score==0.1.2 onnxruntime==1.31.1 tokenizers numpy
    golden-venv/bin/python make_golden.py MODELS

MODELS is the directory that `turnflow models fetch` fills; without it only rouge.json is
written. bert_score itself needs PyTorch; what is computed here is the formula of its
`greedy_cos_idf` (without idf) in numpy, on the token states that the same ONNX file gives in
ONNX Runtime. bert_score 0.3.13's own function, given the same token states in PyTorch 2.4,
differs by no more than 3e-7.
"""

import itertools
import json
import pathlib
import sys

from nltk.stem.porter import PorterStemmer
from rouge_score import rouge_scorer

TEXTS = [
    "The ferry leaves the north pier at noon, and it returns at dusk.",
    "At noon the ferry leaves from the north pier.",
    "Ferries are leaving the northern piers daily; no ferries return.",
    "The keeper lights the lamp in the tower at dusk.",
    "Lamps were lit by keepers: it happened nightly.",
    "I do not know when the ferry leaves.",
    "",
    "…!?",
    "Über die Brücke: 3.50 € (or 1,200 yen), e.g. on-line @ 12:30",
]

WORDS = """
    caresses ponies ties caress cats feed agreed plastered bled motoring sing conflated troubled sized hopping tanned
    falling hissing fizzed failing filing happy sky skies enjoy spy spied died dying dies flies relational conditional
    rational valency hesitancy digitizer conformably radically differently vilely analogously vietnamization
    predication operator feudalism decisiveness hopefulness callousness formality sensitivity sensibility triplicate
    formative formalize electricity electrical hopeful goodness revival allowance inference airliner gyroscopic
    adjustable defensible irritant replacement adjustment dependent adoption communism activate angularity homologous
    effective bowdlerize probate rate cease controlling rolling controlled geology theology archaeology logically
    equally finally fulfilling thankfully news innings outing proceed exceeding succeed succeeded toying syzygy yyyy
    eyeing yielding 1990s 42nd b2b abcdef conspiring psychology agencies regulatory obligations compliance shall must
    requires required requiring requirement requirements taxing taxes taxed taxable taxation organisations
""".split()
STEMS = "walk hope hop tri communic general electr oper sens act lov try agre pay fe bus hous run see".split()
ENDINGS = "s ed ing er ers ation ations ator ive iveness ful fully ness ly ies ied ement able ible ion ity alism".split()

PAIRS = [(0, 1), (0, 2), (1, 3), (3, 4), (5, 0), (6, 0), (0, 6), (8, 0), (0, 0)]
PASSAGES = [
    "Ferry timetable. The ferry leaves the north pier at noon every day but Sunday.",
    "The keeper of the lighthouse lights its lamp at dusk, and puts it out at dawn.",
]


def rouge():
    cases = []
    for stemmer in (False, True):
        scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=stemmer)
        for reference, response in itertools.product(TEXTS, TEXTS):
            score = scorer.score(reference, response)["rougeL"]
            cases.append({"response": response, "reference": reference, "stemmer": stemmer, "expected": list(score)})
    stemmer = PorterStemmer()
    words = sorted({*WORDS, *(stem + ending for stem, ending in itertools.product(STEMS, ENDINGS))})
    return {"rouge": cases, "stems": [[word, stemmer.stem(word)] for word in words]}


def bert_score(models):
    import numpy as np
    import onnxruntime
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(models / "minilm/tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    session = onnxruntime.InferenceSession(str(models / "minilm/model.onnx"))
    names = {given.name for given in session.get_inputs()}

    def states(text):
        ids = np.array([tokenizer.encode(text.strip()).ids])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        out = session.run(["last_hidden_state"], {name: value for name, value in given.items() if name in names})[0][0]
        return out / np.linalg.norm(out, axis=-1, keepdims=True)

    def score(response, reference):
        hypothesis, reference = states(response), states(reference)
        # Two tokens are [CLS] and [SEP] alone.
        if len(hypothesis) == 2 or len(reference) == 2:
            return 0.0, 0.0
        similar = hypothesis @ reference.T
        return float(similar.max(1)[1:-1].mean()), float(similar.max(0)[1:-1].mean())

    cases = []
    for one, other in PAIRS:
        response, reference = TEXTS[one], TEXTS[other]
        cases.append({"response": response, "reference": reference, "expected": list(score(response, reference))})
    best = [
        {"response": TEXTS[at], "expected": max(score(TEXTS[at], passage)[0] for passage in PASSAGES),
         "joined": score(TEXTS[at], "\n".join(PASSAGES))[0]}
        for at in (0, 3, 4)
    ]
    return {"cases": cases, "passages": PASSAGES, "k_precision": best}


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, indent=None, separators=(",", ":"))
    (pathlib.Path(__file__).parent / name).write_text(text + "\n")


write("rouge.json", rouge())
if len(sys.argv) > 1:
    write("bert_score.json", bert_score(pathlib.Path(sys.argv[1])))
