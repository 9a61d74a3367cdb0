"""Compares turnflow with Pathway, LanceDB and tantivy on the same corpus, model, questions and edits.

    python examples/compare/peers.py TURNFLOW CORPUS.jsonl QUERIES.jsonl MODEL_DIR
        [--passages N] [--questions N] [--only NAME,...] [--dir DIR] [--qrels QRELS.tsv]

Needs Python 3.11 with the packages pathway, lancedb, tantivy, onnxruntime, tokenizers and numpy.
CORPUS has rows of BEIR: `_id`, `title`, `text`. MODEL_DIR has `model.onnx` and `tokenizer.json`;
ORT_DYLIB_PATH names the ONNX Runtime that turnflow loads.

Each system runs in a process and a directory of its own. turnflow and Pathway follow one JSON
Lines file and are asked over HTTP, which is how both are used; LanceDB and tantivy are libraries,
so they are called in their own process, with the row instead of a file. All embed each question
with the model (tantivy and turnflow-bm25 have no model). Each retriever gives 10 passages, and
each hybrid fuses them to 10 by reciprocal rank fusion with k = 60.
"""

import argparse
import functools
import hashlib
import http.client
import importlib.metadata
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOP, EDITS, POLL, LIMIT = 10, 5, 0.005, 1800
LAST = {"_id": "peers-last", "title": "", "text": "The lighthouse on Skagen reef was painted green by seven beekeepers."}
LAST_QUESTION = "Who painted the lighthouse on Skagen reef green?"
WORDS = ["walnut", "copper", "glacier", "saffron", "mandolin"]


def marked(row, number):
    """The row after its edit, the question about it, and what its answer must contain."""
    mark = f"The {WORDS[number]} ledger of clause {number} is kept in vault Q{number}x7."
    return {**row, "text": mark + " " + row["text"]}, f"In which vault is the {WORDS[number]} ledger kept?", f"vault Q{number}x7"


def passage(row):
    return (row.get("title", "") + "\n" + row["text"]).strip()


def digest(text):
    return hashlib.sha1(text.encode()).hexdigest()[:16]


def rows_of(path):
    return [json.loads(line) for line in open(path)]


class Encoder:
    """The model by ONNX Runtime, in batches sorted by length. Each text it embeds is a line in `count`."""

    def __init__(self, model, count):
        import numpy
        import onnxruntime
        import tokenizers

        self.np = numpy
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
        self.tokenizer.enable_truncation(256)
        self.tokenizer.no_padding()
        self.session = onnxruntime.InferenceSession(f"{model}/model.onnx", providers=["CPUExecutionProvider"])
        self.inputs = {entry.name for entry in self.session.get_inputs()}
        self.count = open(count, "a", buffering=1)

    def __call__(self, texts):
        np = self.np
        codes = [code.ids for code in self.tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(codes)), key=lambda at: len(codes[at]))
        out = np.empty((len(codes), 384), dtype=np.float32)
        while order:
            # At most 64 texts and 2048 tokens a batch, the longest first, as in turnflow.
            size = max(1, min(64, 2048 // len(codes[order[-1]])))
            batch, order = order[-size:], order[:-size]
            longest = len(codes[batch[-1]])
            ids = np.zeros((len(batch), longest), dtype=np.int64)
            mask = np.zeros_like(ids)
            for line, at in enumerate(batch):
                ids[line, : len(codes[at])] = codes[at]
                mask[line, : len(codes[at])] = 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = self.session.run(None, {name: feed[name] for name in self.inputs})[0]
            if states.ndim == 3:
                states = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
            out[batch] = states / np.linalg.norm(states, axis=1, keepdims=True)
            self.count.write("".join(digest(texts[at]) + "\n" for at in batch))
        return out


# --- what is measured: `ask(question)` returns [(id, text)], `edit(number)` writes an edited row ---


def until(ask, question, contains, process=None):
    """Asks until an answer contains the text; returns the seconds that took."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < LIMIT:
        try:
            if any(contains in text for _, text in ask(question)):
                return time.perf_counter() - begun
        except (OSError, http.client.HTTPException, ValueError):
            pass  # Not ready yet.
        if process and process.poll() is not None:
            raise RuntimeError(f"the process ended with {process.returncode}")
        time.sleep(POLL)
    raise RuntimeError(f"no answer with {contains!r} in {LIMIT} s")


def rate(ask, questions, threads):
    """Questions per second, and the ids that were found."""
    found, left, lock = {}, list(enumerate(questions)), threading.Lock()

    def work():
        while True:
            with lock:
                if not left:
                    return
                at, question = left.pop()
            try:
                found[at] = [name for name, _ in ask(question)]
            except (OSError, http.client.HTTPException, ValueError) as error:
                found[at] = error

    begun = time.perf_counter()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - begun
    failed = sum(isinstance(ids, Exception) for ids in found.values())
    ids = [found[at] if not isinstance(found[at], Exception) else [] for at in range(len(questions))]
    return {"rate": len(questions) / seconds, "failed": failed, "ids": ids}


def memory(pid, field):
    """Megabytes of a field of /proc, of the process and its children."""
    total, pids = 0, [str(pid)]
    while pids:
        one = pids.pop()
        try:
            text = Path(f"/proc/{one}/status").read_text()
            total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field + ":"))
            for task in Path(f"/proc/{one}/task").iterdir():
                pids += (task / "children").read_text().split()
        except (OSError, StopIteration):
            pass
    return total / 1024


# --- the systems: each class starts one process in `dir`, which holds `docs.jsonl` ---


class System:
    files = True

    def __init__(self, setup, folder):
        self.setup, self.dir = setup, Path(folder)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.rows = [dict(row) for row in setup.rows]
        self.write()

    def write(self):
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        (self.dir / "docs.next").write_text(text)
        os.replace(self.dir / "docs.next", self.dir / "docs.jsonl")

    def spawn(self, command):
        log = open(self.dir / "log", "a")
        self.process = subprocess.Popen(command, cwd=self.dir, stdout=log, stderr=log, start_new_session=True)

    def worker(self, name):
        self.spawn([sys.executable, __file__, "--worker", name, self.dir, self.setup.model, str(self.port)])

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.local = threading.local()
        self.launch()

    def first(self, question=LAST_QUESTION, contains="seven beekeepers"):
        return until(self.ask, question, contains, self.process)

    def post(self, path, body):
        if not hasattr(self.local, "line"):
            self.local.line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            self.local.line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.local.line.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            self.local.line.close()
            raise
        if answer.status != 200:
            raise ValueError(f"{answer.status}: {text[:200]}")
        return json.loads(text)

    def edit(self, number):
        at = number * (len(self.rows) // EDITS) + 3
        self.rows[at], question, contains = marked(self.rows[at], number)
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        (self.dir / "docs.next").write_text(text)
        begun = time.perf_counter()
        os.replace(self.dir / "docs.next", self.dir / "docs.jsonl")
        self.first(question, contains)
        return {"seconds": time.perf_counter() - begun}

    def rate(self, questions, threads):
        return rate(self.ask, questions, threads)

    def embedded(self):
        """Passages embedded so far in this directory, questions left out."""
        try:
            return sum(line not in self.setup.asked for line in (self.dir / "count").read_text().split())
        except FileNotFoundError:
            return 0

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Turnflow(System):
    node, earlier, now = "fused", 0, 0
    extra = {"turnflow, dense alone": "dense", "turnflow, BM25 alone": "lexical"}
    models = """models: {{ "encoder": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json") }},"""
    nodes = """
        "dense": Dense(input: "query", corpus: "docs", model: "encoder", top: 10),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 10),"""

    def launch(self):
        (self.dir / "turns.jsonl").touch()
        (self.dir / "peers.ron").write_text(f"""Pipeline(
    {self.models.format(model=self.setup.model)}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 10),{self.nodes}
    }},
)
""")
        self.earlier += self.now
        self.now = 0
        self.spawn([self.setup.turnflow, "serve", "peers.ron", "--state", "state", "--listen", f"127.0.0.1:{self.port}"])

    def ask(self, question, node=None):
        body = {"query": question, "top": TOP, "node": node or self.node}
        return [(hit["passage"], hit["text"]) for hit in self.post("/v1/search", body)["hits"]]

    def embedded(self):
        try:
            line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            line.request("GET", "/v1/pipelines/peers/status")
            self.now = json.loads(line.getresponse().read())["corpora"][0]["embedded"]
        except (OSError, http.client.HTTPException, ValueError, LookupError):
            pass
        return self.earlier + self.now


class TurnflowBm25(Turnflow):
    node, models, nodes, extra = "lexical", "", "", {}


class Pathway(System):
    def launch(self):
        self.worker("pathway")

    def ask(self, question):
        return [tuple(hit) for hit in self.post("/", {"query": question})]


class Library(System):
    """A library in a worker process, which measures itself: one JSON request and reply a line."""

    files = False

    def launch(self):
        log = open(self.dir / "log", "a")
        command = [sys.executable, __file__, "--worker", self.name, self.dir, self.setup.model, "0"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=self.dir, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True)

    def call(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended: " + (self.dir / "log").read_text()[-400:])
        return json.loads(line)

    def first(self, question=LAST_QUESTION, contains="seven beekeepers"):
        begun = time.perf_counter()
        self.call("first", question, contains)
        return time.perf_counter() - begun

    def edit(self, number):
        at = number * (len(self.rows) // EDITS) + 3
        self.rows[at], question, contains = marked(self.rows[at], number)
        result = self.call("edit", self.rows[at], question, contains)
        self.write()
        return result

    def rate(self, questions, threads):
        return self.call("rate", questions, threads)


class LanceDb(Library):
    name = "lancedb"


class Tantivy(Library):
    name = "tantivy"


SYSTEMS = {"turnflow": Turnflow, "pathway": Pathway, "lancedb": LanceDb, "turnflow-bm25": TurnflowBm25, "tantivy": Tantivy}


# --- the workers of the peers ---


def pathway_worker(folder, model, port):
    import asyncio

    import pathway as pw
    from pathway.stdlib.indexing import HybridIndexFactory, TantivyBM25Factory, UsearchKnnFactory

    encoder = Encoder(model, folder / "count")

    class Embedder(pw.UDF):
        """One text a call, so that Pathway caches each on disk; calls that wait are batched."""

        def __init__(self):
            super().__init__(return_type=pw.internals.dtype.ANY_ARRAY, deterministic=True, cache_strategy=pw.udfs.DiskCache("encoder"))
            self.waiting, self.task = [], None

        async def __wrapped__(self, text: str):
            future = asyncio.get_running_loop().create_future()
            self.waiting.append((text, future))
            if self.task is None or self.task.done():
                self.task = asyncio.ensure_future(self.work())
            return await future

        async def work(self):
            await asyncio.sleep(0)  # Calls of the same minibatch come first.
            while self.waiting:
                batch, self.waiting = self.waiting[:1024], self.waiting[1024:]
                vectors = await asyncio.to_thread(encoder, [text for text, _ in batch])
                for (_, future), vector in zip(batch, vectors):
                    future.set_result(vector)

    class Row(pw.Schema):
        key: str = pw.column_definition(primary_key=True)
        title: str
        text: str

    class Question(pw.Schema):
        query: str

    rows = pw.io.jsonlines.read(folder / "docs.jsonl", schema=Row, mode="streaming", json_field_paths={"key": "/_id"}, autocommit_duration_ms=50)
    rows = rows.select(rows.key, rows.text, passage=pw.apply_with_type(lambda title, text: (title + "\n" + text).strip(), str, rows.title, rows.text))
    knn = UsearchKnnFactory(dimensions=384, reserved_space=20000, embedder=Embedder(), metric=pw.engine.USearchMetricKind.COS)
    index = HybridIndexFactory([knn, TantivyBM25Factory()]).build_index(rows.passage, rows)
    server = pw.io.http.PathwayWebserver(host="127.0.0.1", port=port)
    questions, respond = pw.io.http.rest_connector(webserver=server, route="/", schema=Question, autocommit_duration_ms=1, delete_completed_queries=False)
    hits = index.query_as_of_now(questions.query, number_of_matches=TOP, collapse_rows=True)
    join = pw.apply_with_type(lambda keys, texts: pw.Json(list(map(list, zip(keys or (), texts or ())))), pw.Json, pw.right.key, pw.right.text)
    respond(hits.select(result=join))
    store = pw.persistence.Backend.filesystem(folder / "state")
    mode = pw.PersistenceMode.UDF_CACHING
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=pw.persistence.Config(store, persistence_mode=mode))


class LanceTable:
    """A table with vectors and a full-text index. Rows are added in batches, so a kill loses one."""

    def __init__(self, folder, model):
        import lancedb
        from lancedb.rerankers import RRFReranker

        self.encoder = Encoder(model, folder / "count")
        self.vector = functools.lru_cache(64)(lambda question: self.encoder([question])[0])
        self.rrf = RRFReranker()
        base, rows = lancedb.connect(folder / "lance"), rows_of(folder / "docs.jsonl")
        self.table = base.open_table("docs") if "docs" in base.list_tables().tables else None
        have = {}
        if self.table:
            stored = self.table.search().select(["id", "digest"]).limit(None).to_arrow()
            have = dict(zip(stored["id"].to_pylist(), stored["digest"].to_pylist()))
        missing = [row for row in rows if have.get(row["_id"]) != digest(passage(row))]
        for start in range(0, len(missing), 1024):
            data = self.records(missing[start : start + 1024])
            if self.table:
                self.upsert(data)
            else:
                self.table = base.create_table("docs", data)
        if not any(index.index_type == "FTS" for index in self.table.list_indices()):
            self.table.create_fts_index("text", replace=True)
        elif missing:
            self.table.optimize()

    def records(self, rows):
        import pyarrow

        vectors = self.encoder([passage(row) for row in rows])
        return pyarrow.table({
            "id": [row["_id"] for row in rows],
            "text": [passage(row) for row in rows],
            "digest": [digest(passage(row)) for row in rows],
            "vector": pyarrow.FixedSizeListArray.from_arrays(vectors.reshape(-1), 384),
        })

    def upsert(self, data):
        self.table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data)

    def edit(self, row):
        self.upsert(self.records([row]))

    def tidy(self):
        self.table.optimize()

    def ask(self, question):
        query = self.table.search(query_type="hybrid").vector(self.vector(question)).text(question)
        hits = query.rerank(self.rrf).limit(TOP).select(["id", "text"]).to_list()
        return [(hit["id"], hit["text"]) for hit in hits]


class TantivyIndex:
    """BM25 with English stemming; nothing is embedded."""

    def __init__(self, folder, model):
        import tantivy

        self.tantivy = tantivy
        schema = tantivy.SchemaBuilder()
        schema.add_text_field("id", stored=True, tokenizer_name="raw")
        schema.add_text_field("digest", stored=True, tokenizer_name="raw")
        schema.add_text_field("text", stored=True, tokenizer_name="en_stem")
        (folder / "tantivy").mkdir(exist_ok=True)
        self.index = tantivy.Index(schema.build(), path=str(folder / "tantivy"))
        rows, have = rows_of(folder / "docs.jsonl"), {}
        searcher = self.index.searcher()
        if searcher.num_docs:
            for _, at in searcher.search(tantivy.Query.all_query(), searcher.num_docs).hits:
                row = searcher.doc(at)
                have[row["id"][0]] = row["digest"][0]
        self.writer = self.index.writer(num_threads=1)
        missing = [row for row in rows if have.get(row["_id"]) != digest(passage(row))]
        if missing:
            self.put(missing)

    def put(self, rows):
        for row in rows:
            self.writer.delete_documents_by_term("id", row["_id"])
            text = passage(row)
            self.writer.add_document(self.tantivy.Document(id=row["_id"], text=text, digest=digest(text)))
        self.writer.commit()
        self.index.reload()

    def edit(self, row):
        self.put([row])

    def tidy(self):
        pass

    def ask(self, question):
        query, _ = self.index.parse_query_lenient(question, ["text"])
        searcher = self.index.searcher()
        rows = [searcher.doc(at) for _, at in searcher.search(query, TOP).hits]
        return [(row["id"][0], row["text"][0]) for row in rows]


def library_worker(store, folder, model):
    system = store(folder, model)
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        if verb == "first":
            reply = until(system.ask, *rest)
        elif verb == "rate":
            reply = rate(system.ask, *rest)
        else:
            row, question, contains = rest
            begun = time.perf_counter()
            system.edit(row)
            until(system.ask, question, contains)
            done = time.perf_counter()
            system.tidy()
            reply = {"seconds": done - begun, "tidy": time.perf_counter() - done}
        print(json.dumps(reply), flush=True)


# --- the comparison ---


def recall(ids, questions, qrels):
    """Mean recall at 10 of the questions that have judgements."""
    judged = [(found, qrels[name]) for found, (name, _) in zip(ids, questions) if name in qrels]
    return sum(len(wanted & set(found)) / len(wanted) for found, wanted in judged) / len(judged) if judged else None


def measure(kind, setup, folder):
    """All figures of one system. A part that fails has its error instead."""
    out, count = {}, setup.count
    texts = [text for _, text in setup.questions]

    def attempt(keys, part):
        try:
            part()
        except Exception as error:  # noqa: BLE001: whatever a peer raises is its result.
            print(f"  {keys}: {error!r}", file=sys.stderr)
            out.setdefault("errors", []).append(f"{keys}: {error!r}"[:300])

    def empty():
        begun = time.perf_counter()
        system.start()
        system.first()
        out["index_s"] = time.perf_counter() - begun
        out["embedded"] = system.embedded()
        out["rss"], out["peak"] = memory(system.process.pid, "VmRSS"), memory(system.process.pid, "VmHWM")

    def rates():
        for threads, batch in ((1, texts[:count]), (32, texts[count : 2 * count])):
            result = system.rate(batch, threads)
            out[f"rate{threads}"] = result["rate"]
            out["failed"] = out.get("failed", 0) + result["failed"]
            if threads == 1:
                out["recall"] = recall(result["ids"], setup.questions, setup.qrels)
        for name, node in getattr(kind, "extra", {}).items():
            ask = functools.partial(system.ask, node=node)
            alone = [rate(ask, texts[at * count : at * count + count], n) for at, n in ((2, 1), (3, 32))]
            out.setdefault("alone", {})[name] = [result["rate"] for result in alone]

    def edits():
        results, embedded = [], [system.embedded()]
        for number in range(EDITS):
            time.sleep(0.5)
            results.append(system.edit(number))
            time.sleep(0.5)
            embedded.append(system.embedded())
        out["edits"] = [result["seconds"] for result in results]
        out["edit_s"] = statistics.median(out["edits"])
        out["edit_embedded"] = statistics.median(b - a for a, b in zip(embedded, embedded[1:]))
        if "tidy" in results[0]:
            out["tidy_s"] = statistics.median(result["tidy"] for result in results)
        out["peak_all"] = memory(system.process.pid, "VmHWM")

    def killed(name, question=LAST_QUESTION, contains="seven beekeepers"):
        system.kill()
        before = system.embedded()
        begun = time.perf_counter()
        system.start()
        system.first(question, contains)
        out[f"{name}_s"] = time.perf_counter() - begun
        time.sleep(1)
        out[f"{name}_embedded"] = system.embedded() - before
        out[f"{name}_before"] = before

    system = kind(setup, folder / "whole")
    try:
        attempt("indexing", empty)
        attempt("rates", rates)
        attempt("edits", edits)
        _, question, contains = marked(LAST, EDITS - 1)
        attempt("kill after indexing", lambda: killed("after", question, contains))
    finally:
        system.kill()
    system = kind(setup, folder / "half")
    try:
        system.start()
        # Half of the passages, or half of the time if nothing is embedded.
        end = time.perf_counter() + out.get("index_s", 60) * (0.9 if out.get("embedded") else 0.5)
        while time.perf_counter() < end and not 0 < out.get("embedded", 0) <= 2 * system.embedded():
            time.sleep(0.02)
        attempt("kill in the middle", lambda: killed("middle"))
    finally:
        system.kill()
    return out


def table(results):
    def cell(figures, key, form):
        return form.format(figures[key]) if figures.get(key) is not None else "–"

    lines = [
        ("first answer from empty, s", "index_s", "{:.1f}"), ("passages embedded", "embedded", "{}"),
        ("edit until answered, ms", "edit_s", "{:.3f}"), ("embedded after an edit", "edit_embedded", "{:.0f}"),
        ("optimize after an edit, s", "tidy_s", "{:.3f}"),
        ("questions/s, one at a time", "rate1", "{:.1f}"), ("questions/s, 32 at once", "rate32", "{:.1f}"),
        ("questions failed", "failed", "{}"), ("recall@10", "recall", "{:.3f}"),
        ("resident after indexing, MB", "rss", "{:.0f}"), ("peak while indexing, MB", "peak", "{:.0f}"), ("peak in all, MB", "peak_all", "{:.0f}"),
        ("killed after indexing: first answer, s", "after_s", "{:.1f}"), ("embedded again", "after_embedded", "{}"),
        ("killed in the middle: embedded before", "middle_before", "{}"), ("first answer, s", "middle_s", "{:.1f}"), ("embedded after the kill", "middle_embedded", "{}"),
    ]
    lines = [(title.replace("ms", "s") if key == "edit_s" else title, key, form) for title, key, form in lines]
    names = list(results)
    print("\n| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for title, key, form in lines:
        print(f"| {title} | " + " | ".join(cell(results[name], key, form) for name in names) + " |")
    for name, figures in results.items():
        for part, rates in figures.get("alone", {}).items():
            print(f"\n{part}: {rates[0]:.1f} questions/s one at a time, {rates[1]:.1f} with 32 at once.")
        for error in figures.get("errors", []):
            print(f"\n{name}: {error}")


class Setup:
    """What all systems share."""

    def __init__(self, options):
        self.turnflow, self.model = options.turnflow.resolve(), str(options.model.resolve())
        self.rows = rows_of(options.corpus)[: options.passages]
        # The last row is found by a question of its own: then all rows are indexed.
        self.rows.append(LAST)
        questions = [(row["_id"], row["text"]) for row in rows_of(options.queries)]
        self.count = min(options.questions, len(questions) // 4)
        self.questions = questions[: 4 * self.count]
        asked = [text for _, text in questions] + [LAST_QUESTION] + [marked(LAST, at)[1] for at in range(EDITS)]
        self.asked = {digest(text) for text in asked}
        self.qrels = {}
        if options.qrels:
            for line in list(open(options.qrels))[1:]:
                name, document, score = line.rstrip("\n").split("\t")
                if float(score) > 0:
                    self.qrels.setdefault(name, set()).add(document)


def main():
    if sys.argv[1:2] == ["--worker"]:
        name, folder, model, port = sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
        if name == "pathway":
            return pathway_worker(folder, model, port)
        return library_worker({"lancedb": LanceTable, "tantivy": TantivyIndex}[name], folder, model)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("turnflow", "corpus", "queries", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--passages", type=int)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--qrels", type=Path)
    options = parser.parse_args()
    setup, results = Setup(options), {}
    packages = ("pathway", "lancedb", "tantivy", "onnxruntime", "tokenizers", "numpy")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages))
    with tempfile.TemporaryDirectory(prefix="peers-", dir=options.dir) as folder:
        for name in options.only.split(","):
            load = os.getloadavg()[0]
            results[name] = measure(SYSTEMS[name], setup, Path(folder) / name)
            shown = {key: value for key, value in results[name].items()}
            print(f"{name} (load {load:.1f} before, {os.getloadavg()[0]:.1f} after): {json.dumps(shown)}", flush=True)
    table(results)


if __name__ == "__main__":
    main()
