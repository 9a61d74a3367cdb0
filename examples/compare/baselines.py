"""Retrieval as one would write it in Python, for the columns of BENCHMARKS.md that say so.

    pip install numpy snowballstemmer onnxruntime tokenizers
    python examples/compare/baselines.py DATA/obliqa --model models/minilm-int8
    python examples/compare/baselines.py DATA/mtrag --model models/minilm-int8

A directory has `corpus.jsonl` (or `corpus/NAME.jsonl`, searched by each task's `collection`),
`queries.dev.jsonl` (or `tasks.dev.jsonl`, of which the last turn is asked) and `qrels.dev.tsv`.
`--model` is a directory with `model.onnx` and `tokenizer.json`: mean of the tokens, then L2 norm.
Printed are recall, nDCG and MAP at 10 in per cent, over the questions that have judgements.
"""

import argparse
import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

K1, B, RRF_K = 1.2, 0.75, 60
# Lucene's English stop words.
STOP = set(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there "
    "these they this to was will with".split()
)


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def text_of(row):
    return f"{row.get('title') or ''} {row['text']}".strip()


class Bm25:
    """Okapi's BM25 with Lucene's idf, over all passages at once."""

    def __init__(self, texts, tokens):
        self.tokens = tokens
        postings = defaultdict(lambda: ([], []))
        lengths = np.zeros(len(texts), dtype=np.float64)
        for at, text in enumerate(texts):
            words = tokens(text)
            lengths[at] = len(words)
            for word, count in Counter(words).items():
                postings[word][0].append(at)
                postings[word][1].append(count)
        self.norm = K1 * (1 - B + B * lengths / lengths.mean())
        self.postings = {word: (np.array(at), np.array(count)) for word, (at, count) in postings.items()}
        self.size = len(texts)

    def scores(self, query):
        scores = np.zeros(self.size)
        for word, times in Counter(self.tokens(query)).items():
            if word in self.postings:
                at, count = self.postings[word]
                idf = math.log(1 + (self.size - len(at) + 0.5) / (len(at) + 0.5))
                scores[at] += times * idf * count * (K1 + 1) / (count + self.norm[at])
        return scores


def english():
    import snowballstemmer

    stem = snowballstemmer.stemmer("english").stemWord
    known = {}

    def tokens(text):
        words = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP]
        return [known.setdefault(word, stem(word)) if word not in known else known[word] for word in words]

    return tokens


class Encoder:
    def __init__(self, directory, length):
        import onnxruntime
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(length)
        self.session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
        self.inputs = {one.name for one in self.session.get_inputs()}

    def encode(self, texts, batch=32):
        tokens = self.tokenizer.encode_batch(texts)
        order = sorted(range(len(texts)), key=lambda at: len(tokens[at].ids))
        vectors = [None] * len(texts)
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            width = max(len(tokens[at].ids) for at in part)
            ids = np.zeros((len(part), width), dtype=np.int64)
            mask = np.zeros_like(ids)
            for row, at in enumerate(part):
                ids[row, : len(tokens[at].ids)] = tokens[at].ids
                mask[row, : len(tokens[at].ids)] = 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = self.session.run(None, {name: feed[name] for name in self.inputs})[0]
            means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            for row, at in enumerate(part):
                vectors[at] = means[row]
        return np.array(vectors, dtype=np.float32)


def best(scores, ids, top):
    some = np.argpartition(-scores, min(top, len(scores) - 1))[:top]
    return sorted(((ids[at], float(scores[at])) for at in some if scores[at] > 0), key=lambda hit: (-hit[1], hit[0]))


def rrf(lists, k):
    fused = defaultdict(float)
    for hits in lists:
        for rank, (document, _) in enumerate(hits, 1):
            fused[document] += 1 / (k + rank)
    return sorted(fused.items(), key=lambda hit: (-hit[1], hit[0]))


def interpolated(lists, weights):
    fused = defaultdict(float)
    for hits, weight in zip(lists, weights):
        if hits:
            least, most = hits[-1][1], hits[0][1]
            for document, score in hits:
                fused[document] += weight * ((score - least) / (most - least) if most > least else 1.0)
    return sorted(fused.items(), key=lambda hit: (-hit[1], hit[0]))


def measures(hits, relevant, at=10):
    found = [document in relevant for document, _ in hits[:at]]
    gains = sum(relevant.get(document, 0) / math.log2(rank + 1) for rank, (document, _) in enumerate(hits[:at], 1))
    ideal = sum(
        gain / math.log2(rank + 1) for rank, gain in enumerate(sorted(relevant.values(), reverse=True)[:at], 1)
    )
    precision = sum(sum(found[: rank + 1]) / (rank + 1) for rank, hit in enumerate(found) if hit)
    return sum(found) / len(relevant), gains / ideal, precision / len(relevant)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--top", type=int, default=100, help="passages of each list that is fused")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a text that the encoder reads")
    parser.add_argument("--lexical-weight", type=float, default=0.65, help="BM25's weight where scores are interpolated")
    arguments = parser.parse_args()
    data = arguments.data

    qrels = defaultdict(dict)
    for line in open(data / "qrels.dev.tsv", encoding="utf-8").read().splitlines()[1:]:
        query, document, score = line.split("\t")
        if int(score) > 0:
            qrels[query][document] = int(score)
    if (data / "corpus.jsonl").exists():
        corpora = {None: rows(data / "corpus.jsonl")}
        questions = [(row["_id"], row["text"], None) for row in rows(data / "queries.dev.jsonl")]
    else:
        corpora = {path.stem: rows(path) for path in sorted((data / "corpus").glob("*.jsonl"))}
        tasks = rows(data / "tasks.dev.jsonl")
        questions = [(task["task_id"], task["input"][-1]["text"], task["collection"]) for task in tasks]
    questions = [question for question in questions if question[0] in qrels]

    encoder = Encoder(arguments.model, arguments.tokens)
    asked = dict(zip((query for query, _, _ in questions), encoder.encode([text for _, text, _ in questions])))
    indexes = {}
    for name, passages in corpora.items():
        texts = [text_of(row) for row in passages]
        ids = [row["_id"] for row in passages]
        whitespace = Bm25(texts, lambda text: text.lower().split())
        indexes[name] = (ids, whitespace, Bm25(texts, english()), encoder.encode(texts))

    sums = defaultdict(lambda: np.zeros(3))
    for query, text, name in questions:
        ids, whitespace, stemmed, vectors = indexes[name]
        lexical = best(stemmed.scores(text), ids, arguments.top)
        dense = best(vectors @ asked[query] + 1.0, ids, arguments.top)
        weight = arguments.lexical_weight
        for system, hits in {
            "BM25, words between blanks": best(whitespace.scores(text), ids, arguments.top),
            "BM25, English": lexical,
            "dense": dense,
            f"RRF, k {RRF_K}": rrf([lexical, dense], RRF_K),
            f"interpolated, {weight:.2f} for BM25": interpolated([lexical, dense], [weight, 1 - weight]),
        }.items():
            sums[system] += measures(hits, qrels[query])
    print(f"{len(questions)} questions{'':27} R@10  nDCG@10  MAP@10")
    for system, total in sums.items():
        recall, ndcg, average = 100 * total / len(questions)
        print(f"{system:40} {recall:6.1f} {ndcg:8.1f} {average:7.1f}")


if __name__ == "__main__":
    main()
