"""Talks to a server with OpenAI's package: pages of citations, forms, and failures."""

import json

import openai
from pydantic import BaseModel
from served import NEXT, QUESTION, WEATHER, check_pages, cut, once, refused, token, url


class Hours(BaseModel):
    hours: list[int]


def client(key=token, base=url):
    return openai.OpenAI(api_key=key, base_url=base + "/v1", max_retries=0)


def ask(question=QUESTION, model="demo", of=None, **options):
    messages = [{"role": "user", "content": question}]
    return (of or client()).chat.completions.create(model=model, messages=messages, **options)


def streamed(question=QUESTION, model="demo", of=None, **options):
    """The text and the annotations of a stream."""
    text, notes = "", []
    for chunk in ask(question, model, of, stream=True, **options):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            notes += getattr(choice.delta, "annotations", None) or []
    return text, notes


for model in ["demo", "written"]:
    answer = ask(model=model).choices[0].message
    check_pages([note.url_citation.url for note in answer.annotations])
    text, notes = streamed(model=model)
    assert text == answer.content, text
    check_pages([note["url_citation"]["url"] for note in notes])
    response = client().responses.create(model=model, input=QUESTION)
    check_pages([note.url for note in response.output[0].content[0].annotations])
    with client().responses.stream(model=model, input=QUESTION) as events:
        added = [event.annotation.url for event in events if event.type == "response.output_text.annotation.added"]
        check_pages(added)
        check_pages([note.url for note in events.get_final_response().output[0].content[0].annotations])

# Forms: with a language model, or a refusal that says why.
messages = [{"role": "user", "content": QUESTION}]
chat = client().chat.completions
parsed = chat.parse(model="written", messages=messages, response_format=Hours)
assert parsed.choices[0].message.parsed.hours == [9, 12], parsed
with chat.stream(model="written", messages=messages, response_format=Hours) as events:
    assert events.get_final_completion().choices[0].message.parsed.hours == [9, 12]
parsed = client().responses.parse(model="written", input=QUESTION, text_format=Hours)
assert parsed.output_parsed.hours == [9, 12] and parsed.text.format.type == "json_schema", parsed
with client().responses.stream(model="written", input=QUESTION, text_format=Hours) as events:
    assert events.get_final_response().output_parsed.hours == [9, 12]
for call in [
    lambda: chat.parse(model="demo", messages=messages, response_format=Hours),
    lambda: client().responses.parse(model="demo", input=QUESTION, text_format=Hours),
]:
    refused(call, "400", "cannot keep to a schema", error=openai.BadRequestError)

# Any object, and a schema that is none.
form = {"type": "json_object"}
assert json.loads(ask(model="written", response_format=form).choices[0].message.content)["hours"] == [9, 12]
assert json.loads(streamed(model="written", response_format=form)[0])["hours"] == [9, 12]
response = client().responses.create(model="written", input=QUESTION, text={"format": form})
assert json.loads(response.output_text)["hours"] == [9, 12] and response.text.format.type == "json_object", response
refused(lambda: ask(response_format=form), "400", "cannot keep to JSON", error=openai.BadRequestError)
wrong = {"type": "object", "properties": {"hours": {"type": "hours"}}}
problem = "`schema.properties.hours.type` must be one of"
call = lambda: ask(model="written", response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": wrong}})
assert refused(call, "400", problem, error=openai.BadRequestError).param == "response_format"
text = {"format": {"type": "json_schema", "name": "a", "schema": wrong}}
call = lambda: client().responses.create(model="written", input=QUESTION, text=text)
assert refused(call, "400", problem, error=openai.BadRequestError).param == "text.format"

# Tools that are offered are not called; to force one is refused.
tool = {"type": "function", **WEATHER}
response = client().responses.create(model="demo", input=QUESTION, tools=[tool])
assert [item.type for item in response.output] == ["message"], response
forced = lambda: client().responses.create(model="demo", input=QUESTION, tools=[tool], tool_choice="required")
refused(forced, "400", "calls no tools", error=openai.BadRequestError)

# Words that end the answer.
for stop in [" It is", ["xyz", " It is"]]:
    stopped = ask(model="written", stop=stop).choices[0]
    assert stopped.message.content == "The ferry leaves at nine [1]." and stopped.finish_reason == "stop", stopped
    assert len(stopped.message.annotations) == 1, stopped
    text, notes = streamed(model="written", stop=stop)
    assert text == stopped.message.content and len(notes) == 1, (text, notes)

stranger, limited = client("wrong"), client(once)
refused(lambda: ask(of=stranger), "401", error=openai.AuthenticationError)
refused(lambda: ask(model="none"), "404", "demo, written", error=openai.NotFoundError)
limit = refused(lambda: [ask(of=limited) for _ in range(3)], "429", error=openai.RateLimitError)
assert int(limit.response.headers["retry-after"]) > 0, limit
for question in ["Has the ferry an outage?", "Has the ferry a breakdown?"]:
    respond = lambda **options: client().responses.create(model="written", input=question, **options)
    refused(lambda: ask(question, "written"), "500", "failed", error=openai.InternalServerError)
    refused(respond, "500", "failed", error=openai.InternalServerError)
    refused(lambda: streamed(question, "written"), "failed", error=openai.APIError)
    refused(lambda: respond(stream=True), "failed", error=openai.APIError)
refused(lambda: streamed(of=client(base=cut)))
print("ok")
