"""Compares turnflow with Pathway, LanceDB and tantivy on the same corpus, model, questions and edits.

    python examples/compare/peers.py TURNFLOW CORPUS.jsonl QUERIES.jsonl MODEL_DIR
        [--passages N] [--questions N] [--only NAME,...] [--dir DIR] [--qrels QRELS.tsv] [--skip-middle]

Needs Python 3.11 with the packages pathway, lancedb, tantivy, onnxruntime, tokenizers and numpy.
CORPUS has rows of BEIR: `_id`, `title`, `text`. MODEL_DIR has `model.onnx` and `tokenizer.json`;
ORT_DYLIB_PATH names the ONNX Runtime that turnflow loads.

Each system runs in a process and a directory of its own. turnflow and Pathway follow a JSON Lines
file and are asked over HTTP; LanceDB and tantivy are libraries, so they are called in their own
process, and get the edited row itself. Every question is new and is embedded by the model (tantivy
and turnflow-bm25 have none). Each retriever gives 10 passages, and each hybrid fuses them to 10 by
reciprocal rank fusion with k = 60.
"""

import argparse
import asyncio
import functools
import hashlib
import http.client
import importlib.metadata
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP, EDITS, POLL, LIMIT = 10, 5, 0.005, 1800
LAST = {"_id": "peers-last", "title": "", "text": "The lighthouse on Skagen reef was painted by seven beekeepers."}
SENTINEL = ("Who painted the lighthouse on Skagen reef?", "seven beekeepers")
WORDS = ["walnut", "copper", "glacier", "saffron", "mandolin"]
NOT_READY = (OSError, http.client.HTTPException, ValueError)


def marked(row, number):
    """The row after its edit, the question about it, and what its answer must contain."""
    mark, word = f"vault Q{number}x7", WORDS[number]
    edited = {**row, "text": f"The {word} ledger of clause {number} is kept in {mark}. {row['text']}"}
    return edited, f"In which vault is the {word} ledger kept?", mark


def passage(row):
    return (row.get("title", "") + "\n" + row["text"]).strip()


def digest(text):
    return hashlib.sha1(text.encode()).hexdigest()[:16]


def plain(question):
    """The question without tantivy's operators; to an uncased model it is the same but for punctuation."""
    return re.sub(r"[^\w.,?%€$£&;]+", " ", question).strip().lower()


def rows_of(path):
    return [json.loads(line) for line in open(path)]


class Encoder:
    """The model by ONNX Runtime, in batches sorted by length. Each text it embeds is a line in `count`."""

    def __init__(self, model, count):
        import numpy
        import onnxruntime
        import tokenizers

        self.np, self.lock, self.count = numpy, threading.Lock(), open(count, "a", buffering=1)
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
        self.tokenizer.enable_truncation(256)
        self.tokenizer.no_padding()
        self.session = onnxruntime.InferenceSession(f"{model}/model.onnx", providers=["CPUExecutionProvider"])
        self.inputs = {entry.name for entry in self.session.get_inputs()}

    def __call__(self, texts):
        np = self.np
        codes = [code.ids for code in self.tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(codes)), key=lambda at: len(codes[at]))
        out = np.empty((len(codes), 384), dtype=np.float32)
        while order:
            longest = len(codes[order[-1]])
            size = max(1, min(64, 2048 // longest))  # As in turnflow.
            batch, order = order[-size:], order[:-size]
            ids = np.array([codes[at] + [0] * (longest - len(codes[at])) for at in batch], dtype=np.int64)
            mask = (np.arange(longest) < np.array([[len(codes[at])] for at in batch])).astype(np.int64)
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            with self.lock:
                states = self.session.run(None, {name: feed[name] for name in self.inputs})[0]
            if states.ndim == 3:
                states = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            out[batch] = states / np.linalg.norm(states, axis=1, keepdims=True)
            self.count.write("".join(digest(texts[at]) + "\n" for at in batch))
        return out


def until(ask, question, contains, process=None):
    """Asks until an answer contains the text. `ask` returns pairs of id and text."""
    end = time.perf_counter() + LIMIT
    while time.perf_counter() < end and not (process and process.poll() is not None):
        try:
            if any(contains in text for _, text in ask(question)):
                return
        except NOT_READY:
            pass
        time.sleep(POLL)
    raise RuntimeError(f"no answer with {contains!r}; the process has ended: {process and process.poll()}")


def rate(ask, questions, threads):
    """Questions per second, the errors, and the ids that were found."""
    failed = []

    def one(question):
        try:
            return [name for name, _ in ask(question)]
        except Exception as error:  # noqa: BLE001: whatever a peer raises is counted.
            failed.append(repr(error))
            return []

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        ids = list(pool.map(one, questions))
    return {"rate": len(questions) / (time.perf_counter() - begun), "failed": failed, "ids": ids}


class System:
    """One process in a directory that holds `docs.jsonl`, asked over HTTP."""

    extra = {}

    def __init__(self, setup, folder):
        self.setup, self.dir, self.rows = setup, folder, list(setup.rows)
        folder.mkdir(parents=True)
        self.prepare()
        self.publish()

    def prepare(self):
        (self.dir / "docs.next").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def publish(self):
        os.replace(self.dir / "docs.next", self.dir / "docs.jsonl")

    def start(self, pipe=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.local, log = threading.local(), open(self.dir / "log", "a")
        self.process = subprocess.Popen(
            self.command(), cwd=self.dir, stdin=pipe, stdout=pipe or log, stderr=log, text=True, start_new_session=True
        )

    def command(self):
        script = Path(__file__).resolve()
        return [sys.executable, script, "--worker", self.name, self.dir, self.setup.model, str(self.port)]

    def post(self, path, body):
        if not hasattr(self.local, "line"):
            self.local.line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            self.local.line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.local.line.getresponse()
            text = answer.read()
        except NOT_READY:
            self.local.line.close()
            raise
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {text[:200]}")
        return json.loads(text)

    def first(self, question, contains):
        until(self.ask, question, contains, self.process)

    def edit(self, number):
        at = number * (len(self.rows) // EDITS) + 3
        self.rows[at], question, contains = marked(self.rows[at], number)
        self.prepare()
        return self.change(self.rows[at], question, contains)

    def change(self, row, question, contains):
        begun = time.perf_counter()
        self.publish()
        self.first(question, contains)
        return {"seconds": time.perf_counter() - begun}

    def rate(self, questions, threads):
        return rate(self.ask, questions, threads)

    def embedded(self):
        """Passages embedded so far in this directory, questions left out."""
        count = self.dir / "count"
        return sum(line not in self.setup.asked for line in count.read_text().split()) if count.exists() else 0

    def proc(self, field):
        return int(re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Turnflow(System):
    node, earlier, now = "fused", 0, 0
    extra = {"turnflow, dense alone": "dense", "turnflow, BM25 alone": "lexical"}
    models = 'models: { "encoder": Onnx(path: "MODEL/model.onnx", tokenizer: "MODEL/tokenizer.json") },'
    nodes = """
        "dense": Dense(input: "query", corpus: "docs", model: "encoder", top: 10),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 10),"""

    def command(self):
        (self.dir / "peers.ron").write_text(f"""Pipeline(
    {self.models.replace("MODEL", self.setup.model)}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 10),{self.nodes}
    }},
)
""")
        # The default limit is 50 requests a second.
        (self.dir / "serve.ron").write_text("Serve(limits: (rate: 0))")
        self.earlier, self.now = self.earlier + self.now, 0
        command = f"serve peers.ron --state state --config serve.ron --listen 127.0.0.1:{self.port}"
        return [self.setup.turnflow, *command.split()]

    def ask(self, question, node=None):
        hits = self.post("/v1/search", {"query": question, "top": TOP, "node": node or self.node})["hits"]
        return [(hit["passage"], hit["text"]) for hit in hits]

    def embedded(self):
        try:
            line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            line.request("GET", "/v1/pipelines/peers/status")
            self.now = json.loads(line.getresponse().read())["corpora"][0]["embedded"]
        except (*NOT_READY, LookupError):
            pass
        return self.earlier + self.now


class TurnflowBm25(Turnflow):
    node, models, nodes, extra = "lexical", "", "", {}


class Pathway(System):
    name = "pathway"

    def ask(self, question):
        # It reads the question as tantivy's query syntax, and ends at a mistake in it.
        return [tuple(hit) for hit in self.post("/", {"query": plain(question)})]


class LanceDb(System):
    """A library in a worker process, which measures itself: one JSON request and reply a line."""

    name = "lancedb"

    def start(self):
        super().start(subprocess.PIPE)

    def call(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def first(self, question, contains):
        self.call("first", question, contains)

    def change(self, row, question, contains):
        result = self.call("edit", row, question, contains)
        self.publish()
        return result

    def rate(self, questions, threads):
        return self.call("rate", questions, threads)


class Tantivy(LanceDb):
    name = "tantivy"


SYSTEMS = {"turnflow": Turnflow, "pathway": Pathway, "lancedb": LanceDb}
SYSTEMS |= {"turnflow-bm25": TurnflowBm25, "tantivy": Tantivy}


def serve_pathway(folder, model, port):
    import pathway as pw
    from pathway.stdlib.indexing import HybridIndexFactory, TantivyBM25Factory, UsearchKnnFactory

    encoder, waiting, busy = Encoder(model, folder / "count"), [], []

    async def work():
        await asyncio.sleep(0)  # The other calls of the same minibatch come first.
        while waiting:
            batch, waiting[:] = waiting[:1024], waiting[1024:]
            vectors = await asyncio.to_thread(encoder, [text for text, _ in batch])
            for (_, future), vector in zip(batch, vectors):
                future.set_result(vector)
        busy.clear()

    # One text a call, so that Pathway caches each text on disk; calls that wait are batched.
    @pw.udf(deterministic=True, return_type=pw.internals.dtype.ANY_ARRAY, cache_strategy=pw.udfs.DiskCache("encoder"))
    async def embed(text: str):
        future = asyncio.get_running_loop().create_future()
        waiting.append((text, future))
        if not busy:
            busy.append(asyncio.ensure_future(work()))
        return await future

    class Row(pw.Schema):
        key: str = pw.column_definition(primary_key=True)
        title: str
        text: str

    @pw.udf(deterministic=True)
    def joined(title: str, text: str) -> str:
        return passage({"title": title, "text": text})

    @pw.udf(deterministic=True)
    def pairs(keys: tuple, texts: tuple) -> pw.Json:
        return pw.Json([list(pair) for pair in zip(keys or (), texts or ())])

    # Questions wait for commits of the rows too: with the default, 1500 ms, they take seconds.
    often, fields = {"autocommit_duration_ms": 10}, {"key": "/_id"}
    rows = pw.io.jsonlines.read(folder / "docs.jsonl", schema=Row, mode="streaming", json_field_paths=fields, **often)
    rows = rows.select(rows.key, passage=joined(rows.title, rows.text))
    cosine = pw.engine.USearchMetricKind.COS
    knn = UsearchKnnFactory(dimensions=384, reserved_space=20000, embedder=embed, metric=cosine)
    index = HybridIndexFactory([knn, TantivyBM25Factory()]).build_index(rows.passage, rows)
    server = pw.io.http.PathwayWebserver(host="127.0.0.1", port=port)
    # With `delete_completed_queries=True`, Pathway 0.33 ends with TryFromIntError(NegOverflow).
    questions, respond = pw.io.http.rest_connector(
        webserver=server, route="/", schema=pw.schema_from_types(query=str), delete_completed_queries=False, **often
    )
    hits = index.query_as_of_now(questions.query, number_of_matches=TOP, collapse_rows=True)
    respond(hits.select(result=pairs(pw.right.key, pw.right.passage)))
    store, mode = pw.persistence.Backend.filesystem(folder / "state"), pw.PersistenceMode.UDF_CACHING
    persistence = pw.persistence.Config(store, persistence_mode=mode)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=persistence)


def missing(folder, have):
    """The rows that a store with these digests by id does not have."""
    return [row for row in rows_of(folder / "docs.jsonl") if have.get(row["_id"]) != digest(passage(row))]


class LanceTable:
    """A table with vectors and a full-text index. Rows are added in batches, so a kill loses one.

    The asynchronous calls are used, because those of hybrid search are twice as fast.
    """

    def __init__(self, folder, model):
        import lancedb
        from lancedb.rerankers import RRFReranker

        self.encoder, self.rrf, self.loop = Encoder(model, folder / "count"), RRFReranker(), asyncio.new_event_loop()
        self.vector = functools.lru_cache(64)(lambda question: self.encoder([question])[0])
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.wait(self.open(lancedb, folder))

    def wait(self, call):
        return asyncio.run_coroutine_threadsafe(call, self.loop).result()

    async def open(self, lancedb, folder):
        base, have = await lancedb.connect_async(folder / "lance"), {}
        self.table = await base.open_table("docs") if "docs" in (await base.list_tables()).tables else None
        if self.table:
            stored = await self.table.query().select(["id", "digest"]).to_arrow()
            have = dict(zip(stored["id"].to_pylist(), stored["digest"].to_pylist()))
        rows = missing(folder, have)
        for start in range(0, len(rows), 1024):
            if self.table:
                await self.upsert(rows[start : start + 1024])
            else:
                self.table = await base.create_table("docs", self.records(rows[:1024]))
        if not any(index.index_type == "FTS" for index in await self.table.list_indices()):
            await self.table.create_index("text", config=lancedb.index.FTS())
        elif rows:
            await self.table.optimize()

    def records(self, rows):
        import pyarrow

        ids, texts = [row["_id"] for row in rows], [passage(row) for row in rows]
        vectors = pyarrow.FixedSizeListArray.from_arrays(self.encoder(texts).reshape(-1), 384)
        return pyarrow.table({"id": ids, "text": texts, "digest": list(map(digest, texts)), "vector": vectors})

    async def upsert(self, rows):
        merge = self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        await merge.execute(self.records(rows))

    async def search(self, question, vector):
        query = self.table.query().nearest_to(vector).nearest_to_text(question).rerank(self.rrf)
        return [(hit["id"], hit["text"]) for hit in await query.limit(TOP).select(["id", "text"]).to_list()]

    def put(self, rows):
        self.wait(self.upsert(rows))

    def tidy(self):
        self.wait(self.table.optimize())

    def ask(self, question):
        return self.wait(self.search(question, self.vector(question)))


class TantivyIndex:
    """BM25 with English stemming; nothing is embedded."""

    def __init__(self, folder, model):
        import tantivy

        self.tantivy, schema, have = tantivy, tantivy.SchemaBuilder(), {}
        for name, tokenizer in (("id", "raw"), ("digest", "raw"), ("text", "en_stem")):
            schema.add_text_field(name, stored=True, tokenizer_name=tokenizer)
        (folder / "tantivy").mkdir(exist_ok=True)
        self.index = tantivy.Index(schema.build(), path=str(folder / "tantivy"))
        for row in self.rows(tantivy.Query.all_query(), self.index.searcher().num_docs or 1):
            have[row["id"][0]] = row["digest"][0]
        self.writer = self.index.writer(num_threads=1)
        self.put(missing(folder, have))

    def rows(self, query, top):
        searcher = self.index.searcher()
        return [searcher.doc(at) for _, at in searcher.search(query, top).hits]

    def put(self, rows):
        for row in rows:
            self.writer.delete_documents_by_term("id", row["_id"])
            text = passage(row)
            self.writer.add_document(self.tantivy.Document(id=row["_id"], text=text, digest=digest(text)))
        if rows:
            self.writer.commit()
            self.index.reload()

    def tidy(self):
        pass

    def ask(self, question):
        query, _ = self.index.parse_query_lenient(question, ["text"])
        return [(row["id"][0], row["text"][0]) for row in self.rows(query, TOP)]


def serve_library(store, folder, model):
    system = store(folder, model)
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        if verb == "first":
            reply = until(system.ask, *rest)
        elif verb == "rate":
            reply = rate(system.ask, *rest)
        else:
            begun = time.perf_counter()
            system.put([rest[0]])
            until(system.ask, *rest[1:])
            done = time.perf_counter()
            system.tidy()
            reply = {"seconds": done - begun, "tidy": time.perf_counter() - done}
        print(json.dumps(reply), flush=True)


def measure(kind, setup, folder):
    """All figures of one system. A part that fails has its error instead."""
    out, errors, count = {}, [], setup.count

    def attempt(name, part, *arguments):
        try:
            part(*arguments)
        except Exception as error:  # noqa: BLE001: whatever a peer raises is its result.
            errors.append(f"{name}: {error!r}; {(system.dir / 'log').read_text()[-400:]!r}")

    def empty():
        begun = time.perf_counter()
        system.start()
        system.first(*SENTINEL)
        out.update(index_s=time.perf_counter() - begun, embedded=system.embedded())
        stat = Path(f"/proc/{system.process.pid}/stat").read_text().rsplit(")")[-1].split()
        out["cpu_s"] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        out.update(rss=system.proc("VmRSS"), peak=system.proc("VmHWM"))

    def rates():
        parts = [setup.questions[at * count : (at + 1) * count] for at in range(4)]
        results = [system.rate(parts[0], 1), system.rate(parts[1], 32)]
        pairs = [(set(ids), setup.qrels.get(name)) for ids, name in zip(results[0]["ids"], setup.names)]
        judged = [len(ids & wanted) / len(wanted) for ids, wanted in pairs if wanted]
        out["recall"] = statistics.mean(judged) if judged else None
        for node in system.extra.values():
            ask = functools.partial(system.ask, node=node)
            results += [rate(ask, parts[2], 1), rate(ask, parts[3], 32)]
        out["rate1"], out["rate32"], *out["alone"] = [result["rate"] for result in results]
        failed = [error for result in results for error in result["failed"]]
        out["failed"] = len(failed)
        errors.extend(failed[:1])

    def edits():
        results, embedded = [], [system.embedded()]
        for number in range(EDITS):
            results.append(system.edit(number))
            time.sleep(0.5)
            embedded.append(system.embedded())
        out["edits"] = [result["seconds"] for result in results]
        out["edit_s"] = statistics.median(out["edits"])
        out["edit_embedded"] = statistics.median(b - a for a, b in zip(embedded, embedded[1:]))
        out["tidy_s"] = statistics.median(result.get("tidy", 0) for result in results)
        out["peak_all"] = system.proc("VmHWM")

    def killed(name, question, contains):
        system.kill()
        before, begun = system.embedded(), time.perf_counter()
        system.start()
        system.first(question, contains)
        out[f"{name}_s"] = time.perf_counter() - begun
        time.sleep(1)
        out.update({f"{name}_embedded": system.embedded() - before, f"{name}_before": before})

    def middle():
        # At half of the passages, or of the time if nothing is embedded.
        system.start()
        end = time.perf_counter() + out["index_s"] * (0.9 if out["embedded"] else 0.5)
        while time.perf_counter() < end and not 0 < out["embedded"] <= 2 * system.embedded():
            time.sleep(0.02)
        killed("middle", *SENTINEL)

    system = kind(setup, folder / "whole")
    for name, part in (("indexing", empty), ("questions", rates), ("edits", edits)):
        attempt(name, part)
    attempt("kill after indexing", killed, "after", *marked(LAST, EDITS - 1)[1:])
    system.kill()
    if not setup.skip_middle and "index_s" in out:
        system = kind(setup, folder / "half")
        attempt("kill in the middle", middle)
        system.kill()
    return {**out, "errors": errors}


LINES = [
    ("first answer from empty, s", "index_s", 1), ("processor time of this, s", "cpu_s", 1),
    ("passages embedded", "embedded", 0), ("edit until answered, s", "edit_s", 3),
    ("embedded after an edit", "edit_embedded", 0), ("optimize after an edit, s", "tidy_s", 3),
    ("questions/s, one at a time", "rate1", 1), ("questions/s, 32 at once", "rate32", 1),
    ("questions failed", "failed", 0), ("recall@10", "recall", 3), ("resident after indexing, MB", "rss", 0),
    ("peak while indexing, MB", "peak", 0), ("peak in all, MB", "peak_all", 0),
    ("killed after indexing: first answer, s", "after_s", 1), ("embedded again", "after_embedded", 0),
    ("killed in the middle: embedded before", "middle_before", 0), ("first answer, s", "middle_s", 1),
    ("embedded after the kill", "middle_embedded", 0),
]


def show(results):
    print("\n| | " + " | ".join(results) + " |\n|---|" + "---|" * len(results))
    for title, key, places in LINES:
        cells = [figures.get(key) for figures in results.values()]
        print(f"| {title} | " + " | ".join("–" if cell is None else f"{cell:.{places}f}" for cell in cells) + " |")
    for name, figures in results.items():
        for at, part in enumerate(SYSTEMS[name].extra if figures.get("alone") else ()):
            one, many = figures["alone"][2 * at : 2 * at + 2]
            print(f"\n{part}: {one:.1f} questions/s one at a time, {many:.1f} with 32 at once.")
        for error in figures["errors"]:
            print(f"\n{name}: {error}")


def main():
    if sys.argv[1:2] == ["--worker"]:
        name, folder, model, port = sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
        if name == "pathway":
            return serve_pathway(folder, model, port)
        return serve_library({"lancedb": LanceTable, "tantivy": TantivyIndex}[name], folder, model)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("turnflow", "corpus", "queries", "model"):
        parser.add_argument(name, type=lambda text: str(Path(text).resolve()))
    parser.add_argument("--passages", type=int, help="the first N passages (default: all)")
    parser.add_argument("--questions", type=int, default=500, help="N questions for each rate (default: 500)")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="some of: %(default)s")
    parser.add_argument("--dir", type=Path, help="where the directories of the systems are made, and removed")
    parser.add_argument("--qrels", type=Path, help="judgements, for the recall of the first N questions")
    parser.add_argument("--skip-middle", action="store_true", help="leave out the kill in the middle of indexing")
    setup = parser.parse_args()
    wanted = setup.questions
    # The last row is found by a question of its own: then all rows are indexed.
    setup.rows = rows_of(setup.corpus)[: setup.passages] + [LAST]
    setup.names, setup.questions = zip(*((row["_id"], row["text"]) for row in rows_of(setup.queries)))
    setup.count = min(wanted, len(setup.names) // 4)
    asked = [*setup.questions, SENTINEL[0], *(marked(LAST, at)[1] for at in range(EDITS))]
    setup.asked = {digest(form) for text in asked for form in (text, plain(text))}
    table = [line.rstrip("\n").split("\t") for line in open(setup.qrels)][1:] if setup.qrels else []
    setup.qrels = {}
    for name, document, score in table:
        if float(score) > 0:
            setup.qrels.setdefault(name, set()).add(document)
    packages = ("pathway", "lancedb", "tantivy", "onnxruntime", "tokenizers", "numpy")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    results = {}
    with tempfile.TemporaryDirectory(prefix="peers-", dir=setup.dir) as folder:
        for name in setup.only.split(","):
            load = os.getloadavg()[0]
            results[name] = measure(SYSTEMS[name], setup, Path(folder).resolve() / name)
            loads = f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
            print(f"{name}, {loads}: {json.dumps(results[name])}", flush=True)
    show(results)


if __name__ == "__main__":
    main()
