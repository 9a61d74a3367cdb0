"""Talks to a server with OpenAI's package: URL TOKEN [EMBEDDER]."""

import json
import sys
import time
import urllib.request

import openai

url, token = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=url + "/v1", api_key=token, max_retries=0)


def put(name, text):
    request = urllib.request.Request(
        f"{url}/v1/documents/{name}?wait=true",
        data=json.dumps({"title": name, "text": text}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).read()
    headers = {"Authorization": f"Bearer {token}"}
    for _ in range(3000):
        search = urllib.request.Request(f"{url}/v1/search?query={name}", headers=headers)
        if any(hit["document"] == name for hit in json.load(urllib.request.urlopen(search))["hits"]):
            return
        time.sleep(0.02)
    raise AssertionError(f"{name} is not found")


put("ferry", "The ferry to the island leaves at nine. It returns at noon.")
put("fees", "A ticket for the ferry costs four euros. These are all fees.")

assert [model.id for model in client.models.list()][0] == "demo"

messages = [{"role": "user", "content": "When does the ferry leave?"}]
whole = client.chat.completions.create(model="demo", messages=messages)
answer = whole.choices[0].message
assert "nine" in answer.content, whole
assert whole.choices[0].finish_reason == "stop" and whole.usage.total_tokens > 0, whole
assert answer.annotations[0].url_citation.title == "ferry", whole
for annotation in answer.annotations:
    # The link works in a browser that has no token.
    page = urllib.request.urlopen(annotation.url_citation.url).read().decode()
    assert 'id="passage"' in page and "ferry" in page, page
tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
# Tools that are only offered are not called.
offered = client.chat.completions.create(model="demo", messages=messages, tools=tools, tool_choice="auto")
assert offered.choices[0].message.tool_calls is None and "nine" in offered.choices[0].message.content, offered
for refused in ({"tool_choice": "required", "tools": tools}, {"response_format": {"type": "json_object"}}):
    try:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "When?"}], **refused)
        raise AssertionError(refused)
    except openai.BadRequestError as error:
        assert error.param in refused, error

# The same as a stream, with its usage at the end.
text, usage, annotations = "", None, []
options = {"include_usage": True}
for chunk in client.chat.completions.create(model="demo", messages=messages, stream=True, stream_options=options):
    if chunk.usage:
        usage = chunk.usage
        assert chunk.choices == [], chunk
    for choice in chunk.choices:
        text += choice.delta.content or ""
        annotations += getattr(choice.delta, "annotations", None) or []
assert text == answer.content and usage.completion_tokens > 0 and annotations, (text, usage)

# A second turn: the messages are the history.
messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "And what does it cost?"}]
second = client.chat.completions.create(model="demo", messages=messages)
assert "four euros" in second.choices[0].message.content, second

# A stream that is left half-way, often.
for _ in range(50):
    stream = client.chat.completions.create(model="demo", messages=messages, stream=True)
    next(iter(stream))
    stream.close()

response = client.responses.create(model="demo", input="When does the ferry leave?")
assert "nine" in response.output_text and response.status == "completed", response
assert response.output[0].content[0].annotations[0].type == "url_citation", response
deltas, done = "", None
for event in client.responses.create(model="demo", input="When does the ferry leave?", stream=True):
    if event.type == "response.output_text.delta":
        deltas += event.delta
    if event.type == "response.completed":
        done = event.response
assert deltas == response.output_text == done.output_text, (deltas, done)
with client.responses.stream(model="demo", input="When does the ferry leave?") as stream:
    assert stream.get_final_response().output_text == response.output_text

# A conversation by the id of the response before.
assert response.store and client.responses.retrieve(response.id).output_text == response.output_text, response
with client.responses.stream(model="demo", input="And what does it cost?", previous_response_id=response.id) as stream:
    later = stream.get_final_response()
assert "four euros" in later.output_text and later.previous_response_id == response.id, later
third = client.responses.create(model="demo", input="And who travels?", previous_response_id=later.id, store=False)
assert not third.store, third
for gone in (third.id, "resp_none"):
    try:
        client.responses.create(model="demo", input="?", previous_response_id=gone)
        raise AssertionError(gone)
    except openai.BadRequestError as error:
        assert error.code == "previous_response_not_found", error
client.responses.delete(response.id)
try:
    client.responses.retrieve(response.id)
    raise AssertionError("it was deleted")
except openai.NotFoundError:
    pass
assert client.responses.retrieve(later.id).output_text == later.output_text

if len(sys.argv) > 3:
    vectors = client.embeddings.create(model=sys.argv[3], input=["a ferry", "a boat", "a tax form"])
    one, two, three = (item.embedding for item in vectors.data)
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert dot(one, two) > dot(one, three) and vectors.usage.total_tokens > 0
    plain = client.embeddings.create(model=sys.argv[3], input="a ferry", encoding_format="float")
    assert max(abs(a - b) for a, b in zip(plain.data[0].embedding, one)) < 1e-6


def refused(error, call):
    try:
        call()
    except error as refusal:
        return refusal
    raise AssertionError(f"no {error.__name__}")


ask = [{"role": "user", "content": "?"}]
missing = refused(openai.NotFoundError, lambda: client.chat.completions.create(model="none", messages=ask))
assert missing.code == "model_not_found", missing
refused(openai.BadRequestError, lambda: client.chat.completions.create(model="demo", messages=ask, n=2))
stranger = openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0)
refused(openai.AuthenticationError, lambda: stranger.models.list())
print("ok")
