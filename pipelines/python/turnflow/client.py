"""The client. It needs nothing but Python."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


class TurnflowError(Exception):
    """A request failed: `status` is the HTTP status, or 0 if the server cannot be reached."""

    def __init__(self, status: int, message: str, code: str | None = None, retry_after: float | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True)
class Utterance:
    """What was said before."""

    speaker: Literal["user", "agent"]
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage that an answer is based on, or that was found."""

    passage: str
    document: str
    score: float
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """The answer to a turn. `record` has all fields."""

    text: str
    status: Literal["answered", "idk", "failed"]
    query: str
    hits: list[Hit]
    epoch: int
    latency_ms: float
    record: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Event:
    """An event of a turn: `started`, `node`, `delta`, `answer` or `revised`, with its fields."""

    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Document:
    """A document that was put into a corpus."""

    id: str
    text: str
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The report of an evaluation."""

    name: str
    modified: int
    queries: int | None
    metrics: dict[str, float]
    by: dict[str, Any] | None


def _hits(values: Any) -> list[Hit]:
    names = ("passage", "document", "score", "text")
    return [
        Hit(**{name: value[name] for name in names}, metadata=value.get("metadata") or {})
        for value in values or []
    ]


def _answer(record: dict[str, Any]) -> Answer:
    return Answer(
        text=record["answer"],
        status=record["status"],
        query=record["query"],
        hits=_hits(record.get("hits")),
        epoch=record["stamp"]["epoch"],
        latency_ms=record["latency_ms"],
        record=record,
    )


def _error(status: int, body: Any, retry_after: float | None = None) -> TurnflowError:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        return TurnflowError(status, str(error.get("message")), error.get("code"), retry_after)
    return TurnflowError(status, str(error or body), None, retry_after)


def _events(response: Any) -> Iterator[Event]:
    name, data = "", ""
    for line in response:
        line = line.decode().rstrip("\r\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and name:
            yield Event(name, json.loads(data))
            name, data = "", ""


class Client:
    """Talks to a server. The token is that in `TURNFLOW_TOKEN` if none is given.

    `timeout` is the longest silence in seconds; the server sends comments in streams that are silent.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8100",
        token: str | None = None,
        pipeline: str | None = None,
        timeout: float = 300.0,
    ):
        self.url = url.rstrip("/")
        self.pipeline = pipeline
        self.timeout = timeout
        self._token = token if token is not None else os.environ.get("TURNFLOW_TOKEN")

    def _open(self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        encoded = urllib.parse.urlencode({n: str(v).lower() if isinstance(v, bool) else v for n, v in given.items()})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}{'?' + encoded if encoded else ''}", data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            return urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                told: Any = json.loads(text)
            except ValueError:
                told = text
            after = error.headers.get("Retry-After")
            raise _error(error.code, told, float(after) if after else None) from None
        except OSError as error:
            raise TurnflowError(0, f"cannot reach {self.url}: {error}") from error

    def _json(self, method: str, path: str, query: dict[str, Any] | None = None, body: Any = None) -> Any:
        with self._open(method, path, query, body) as response:
            return json.load(response)

    def _turn(
        self,
        text: str,
        history: Sequence[Utterance],
        conversation_id: str | None,
        turn: int,
        collection: str | None,
        adjust: dict[str, Any] | None,
    ) -> dict[str, Any]:
        record: dict[str, Any] = {
            "conversation_id": conversation_id or f"py-{uuid.uuid4()}",
            "turn": turn,
            "speaker": "user",
            "text": text,
            "history": [{"speaker": said.speaker, "text": said.text} for said in history],
        }
        if collection is not None:
            record["collection"] = collection
        if adjust is not None:
            record["adjust"] = adjust
        return record

    def ask(
        self,
        text: str,
        history: Sequence[Utterance] = (),
        *,
        conversation_id: str | None = None,
        turn: int = 1,
        collection: str | None = None,
        adjust: dict[str, Any] | None = None,
    ) -> Answer:
        """Asks a question, and waits for the answer.

        Raises `TurnflowError` if the server refuses it or the turn fails.
        """
        record = self._turn(text, history, conversation_id, turn, collection, adjust)
        answer = self._json("POST", "/v1/turns", {"pipeline": self.pipeline}, record)
        if answer["status"] == "failed":
            raise TurnflowError(200, answer.get("error") or "the turn failed", "turn_failed")
        return _answer(answer)

    def events(
        self,
        text: str,
        history: Sequence[Utterance] = (),
        *,
        conversation_id: str | None = None,
        turn: int = 1,
        collection: str | None = None,
        adjust: dict[str, Any] | None = None,
        trace: bool = False,
    ) -> Iterator[Event]:
        """Asks a question, and gives its events as they come. Closing the iterator cancels the turn."""
        record = self._turn(text, history, conversation_id, turn, collection, adjust)
        query = {"pipeline": self.pipeline, "stream": True, "trace": trace}
        with self._open("POST", "/v1/turns", query, record) as response:
            for event in _events(response):
                if event.name == "failed":
                    raise _error(200, event.data)
                yield event

    def watch(
        self,
        text: str,
        history: Sequence[Utterance] = (),
        *,
        conversation_id: str | None = None,
        turn: int = 1,
        collection: str | None = None,
    ) -> Iterator[Answer]:
        """Asks a question and gives its answer, and a new one whenever the documents change so that the answer is
        another one. If the connection is lost or the server restarts, the question is asked again, and only an answer
        that differs is given. Closing the iterator ends it.

        Raises `TurnflowError` if the server refuses the question, or if it cannot be reached for `timeout` seconds.
        """
        record = self._turn(text, history, conversation_id, turn, collection, None)
        record["live"] = True
        last: tuple[Any, ...] | None = None
        lost, pause = 0.0, 0.5
        while True:
            try:
                with self._open("POST", "/v1/turns", {"pipeline": self.pipeline}, record) as response:
                    lost, pause = 0.0, 0.5
                    for event in _events(response):
                        if event.name == "failed" and "answer" not in event.data:
                            raise _error(200, event.data)
                        if event.name not in ("answer", "revised"):
                            continue
                        answer = _answer(event.data)
                        said = (answer.status, answer.text, [(hit.passage, hit.text) for hit in answer.hits])
                        if said != last:
                            last = said
                            yield answer
            except TurnflowError as error:
                if error.status not in (0, 429, 502, 503, 504):
                    raise
                if lost >= self.timeout:
                    raise
            except (OSError, http.client.HTTPException, ValueError) as error:
                if lost >= self.timeout:
                    raise TurnflowError(0, f"lost the connection to {self.url}: {error}") from error
            time.sleep(pause)
            lost, pause = lost + pause, min(pause * 2, 10.0)

    def queue(self, text: str, *, conversation_id: str, turn: int, collection: str | None = None) -> str:
        """Puts a turn into the queue of the pipeline's source `Turns`. It is on the server's disk when the call
        returns, and is answered also after a restart. Returns the turn's name, which its answers have as
        `turn_id`."""
        record = self._turn(text, (), conversation_id, turn, collection, None)
        del record["history"]
        queued = self._json("POST", "/v1/turns", {"pipeline": self.pipeline, "durable": True}, record)
        return queued["turns"][0]["turn_id"]

    def answers(self, after: int | None = None, *, conversation_id: str | None = None) -> Iterator[Event]:
        """The answers of queued turns as they come: events `answer`, `failed` and, in a live pipeline, `retracted`.
        The field `number` of an event's data is the `after` with which a later call goes on; 0 begins with the
        oldest answer, None with the next one. The iterator ends when the server does."""
        query = {"pipeline": self.pipeline, "conversation_id": conversation_id, "after": after, "stream": True}
        with self._open("GET", "/v1/answers", query) as response:
            yield from _events(response)

    def search(
        self,
        query: str,
        *,
        top: int | None = None,
        collection: str | None = None,
        node: str | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[Hit]:
        """The passages for a question, best first. `filter` is a condition on the metadata of the documents, such as
        `{"eq": ["lang", "en"]}`."""
        asked = {"query": query, "top": top, "collection": collection, "node": node, "pipeline": self.pipeline}
        asked["filter"] = None if filter is None else json.dumps(filter)
        return _hits(self._json("GET", "/v1/search", asked)["hits"])

    def conversation(self, conversation_id: str | None = None, collection: str | None = None) -> Conversation:
        """A conversation, which keeps its history here."""
        return Conversation(self, conversation_id or f"py-{uuid.uuid4()}", collection)

    def documents(self, corpus: str | None = None) -> Documents:
        """The documents of a corpus with the source `Documents()`."""
        return Documents(self, corpus)

    def reports(self) -> list[Report]:
        """The reports of evaluations, the newest first."""
        names = ("name", "modified", "queries", "metrics", "by")
        return [Report(**{name: report.get(name) for name in names}) for report in self._json("GET", "/v1/reports")["data"]]

    def reports_frame(self) -> Any:
        """The reports as a pandas data frame: a row a report, a column a metric."""
        import pandas

        rows = [{"report": report.name, "queries": report.queries, **report.metrics} for report in self.reports()]
        return pandas.DataFrame(rows).set_index("report") if rows else pandas.DataFrame()


class Conversation:
    """A conversation: each turn is asked with what was said before."""

    def __init__(self, client: Client, conversation_id: str, collection: str | None):
        self.client = client
        self.id = conversation_id
        self.collection = collection
        self.history: list[Utterance] = []

    @property
    def turn(self) -> int:
        """The number of the next turn."""
        return 1 + sum(said.speaker == "user" for said in self.history)

    def _said(self, question: str, answer: str) -> None:
        self.history += [Utterance("user", question), Utterance("agent", answer)]

    def ask(self, text: str, adjust: dict[str, Any] | None = None) -> Answer:
        """Asks the next question."""
        answer = self.client.ask(
            text, self.history, conversation_id=self.id, turn=self.turn, collection=self.collection, adjust=adjust
        )
        self._said(text, answer.text)
        return answer

    def stream(self, text: str, adjust: dict[str, Any] | None = None) -> Iterator[str]:
        """Asks the next question, and gives the answer in pieces as it is written. Where no model writes
        it, it comes in one piece."""
        sent = ""
        events = self.client.events(
            text, self.history, conversation_id=self.id, turn=self.turn, collection=self.collection, adjust=adjust
        )
        for event in events:
            if event.name == "delta":
                sent += event.data["text"]
                yield event.data["text"]
            elif event.name == "answer":
                if event.data["status"] == "failed":
                    raise TurnflowError(200, event.data.get("error") or "the turn failed", "turn_failed")
                if not sent:
                    yield event.data["answer"]
                self._said(text, event.data["answer"])


class Documents:
    """The documents of a corpus. They are on the server's disk when a call returns."""

    def __init__(self, client: Client, corpus: str | None):
        self._client = client
        self._query = {"pipeline": client.pipeline, "corpus": corpus}

    @staticmethod
    def _path(id: str) -> str:
        return "/v1/documents/" + urllib.parse.quote(id, safe="")

    def put(self, document: Document, *, wait: bool = False) -> None:
        """Adds or replaces a document; with `wait`, returns when turns can find it."""
        body = {"title": document.title, "text": document.text, "metadata": document.metadata}
        self._client._json("PUT", self._path(document.id), {**self._query, "wait": wait}, body)

    def get(self, id: str) -> Document | None:
        """The document, if it is there."""
        try:
            found = self._client._json("GET", self._path(id), self._query)
        except TurnflowError as error:
            if error.status == 404:
                return None
            raise
        return Document(found["id"], found["text"], found["title"], found["metadata"])

    def delete(self, id: str, *, wait: bool = False) -> bool:
        """Deletes a document; returns whether it was there."""
        try:
            self._client._json("DELETE", self._path(id), {**self._query, "wait": wait})
        except TurnflowError as error:
            if error.status == 404:
                return False
            raise
        return True

    def __iter__(self) -> Iterator[Document]:
        """All documents, in the order of their ids."""
        after: str | None = None
        while True:
            page = self._client._json("GET", "/v1/documents", {**self._query, "after": after})
            for found in page["data"]:
                yield Document(found["id"], found["text"], found["title"], found["metadata"])
            after = page["next"]
            if after is None:
                return
