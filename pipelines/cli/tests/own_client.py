"""Talks to a server with turnflow's own Python client: URL TOKEN."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))

from turnflow import Client, Document, TurnflowError  # noqa: E402

url, token = sys.argv[1], sys.argv[2]
client = Client(url, token=token, pipeline="demo")
documents = client.documents()
documents.put(Document("a b/ü?.md", "The ferry to the island leaves at nine.", "Island", {"lang": "en"}), wait=True)
documents.put(Document("fees", "A ticket for the ferry costs four euros."), wait=True)
while len(client.search("ferry")) < 2:
    pass
assert documents.get("a b/ü?.md").metadata == {"lang": "en"}, documents.get("a b/ü?.md")
assert [document.id for document in documents] == ["a b/ü?.md", "fees"], list(documents)
assert documents.get("none") is None and documents.delete("none") is False

talk = client.conversation()
answer = talk.ask("When does the ferry leave?")
assert "nine" in answer.text and answer.status == "answered" and answer.hits[0].document == "a b/ü?.md", answer
assert "four euros" in "".join(talk.stream("What does a ticket cost?"))
assert [said.speaker for said in talk.history] == ["user", "agent"] * 2 and talk.turn == 3, talk.history

watched = client.watch("When does the ferry leave?")
assert "nine" in next(watched).text
documents.put(Document("a b/ü?.md", "The ferry to the island leaves at ten.", "Island", {"lang": "en"}))
assert "ten" in next(watched).text
watched.close()
documents.put(Document("a b/ü?.md", "The ferry to the island leaves at nine.", "Island", {"lang": "en"}), wait=True)

names = [event.name for event in client.events("ferry", trace=True)]
assert names[0] == "started" and "node" in names and names[-1] == "answer", names
assert not client.ask("ferry", adjust={"skip": ["found"]}).hits
assert [hit.document for hit in client.search("euros", top=1)] == ["fees"]
assert client.reports() == []

names = [
    client.queue(text, conversation_id="queued", turn=turn)
    for turn, text in enumerate(["When does the ferry leave?", "What does a ticket cost?"], start=1)
]
answers = client.answers(after=0, conversation_id="queued")
first, second = next(answers), next(answers)
assert [answer.data["turn_id"] for answer in (first, second)] == names, (first, second, names)
assert "nine" in first.data["answer"] and "four euros" in second.data["answer"], (first, second)
answers.close()
assert next(client.answers(after=first.data["number"])).data["turn_id"] == names[1]

assert documents.delete("fees", wait=True) is True and documents.get("fees") is None
for wrong, status in [(Client(url, token="x"), 401), (Client(url, token=token, pipeline="moon"), 404)]:
    try:
        wrong.search("ferry")
    except TurnflowError as error:
        assert error.status == status, error
    else:
        raise AssertionError(status)
try:
    client.ask("ferry", adjust={"skip": ["answer"]})
except TurnflowError as error:
    assert error.status == 400 and "cannot be skipped" in str(error), error
try:
    Client("http://127.0.0.1:9").search("x")
except TurnflowError as error:
    assert error.status == 0, error
print("ok")
