"""Talks to a server with LiteLLM."""

import os

from pydantic import BaseModel
from served import NEXT, QUESTION, WEATHER, check_pages, cut, once, refused, token, url

# Or it fetches prices from elsewhere.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm  # noqa: E402

litellm.suppress_debug_info = True


class Hours(BaseModel):
    """The hours at which the ferry leaves."""

    hours: list[int]


def ask(question=QUESTION, model="demo", key=token, base=url, **options):
    messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
    common = {"model": "openai/" + model, "api_base": base + "/v1", "api_key": key, "max_retries": 0}
    return litellm.completion(messages=messages, **common, **options)


def respond(question=QUESTION, model="demo", **options):
    common = {"model": "openai/" + model, "api_base": url + "/v1", "api_key": token, "max_retries": 0}
    return litellm.responses(input=question, **common, **options)


def urls(notes):
    return [note["url_citation"]["url"] for note in notes]


for model in ["demo", "written"]:
    answer = ask(model=model).choices[0].message
    assert "nine" in answer.content, answer
    check_pages(urls(answer.annotations))
    chunks = list(ask(model=model, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.content, chunks
    notes = [
        note for chunk in chunks for choice in chunk.choices for note in getattr(choice.delta, "annotations", None) or []
    ]
    check_pages(urls(notes))
    whole = litellm.stream_chunk_builder(chunks)
    assert whole.choices[0].message.content == answer.content and whole.usage.total_tokens > 0, whole
    check_pages(urls(whole.choices[0].message.annotations))

    response = respond(model=model)
    check_pages([note.url for note in response.output[0].content[0].annotations])
    events = list(respond(model=model, stream=True))
    check_pages([event.annotation["url"] for event in events if event.type == "response.output_text.annotation.added"])

# A conversation: the messages are the history.
first = ask().choices[0].message
second = ask([{"role": "user", "content": QUESTION}, first.model_dump(), {"role": "user", "content": NEXT}])
assert "four euros" in second.choices[0].message.content, second

# Forms: with a language model, or a refusal that says why.
formed = ask(model="written", response_format=Hours).choices[0].message.content
assert Hours.model_validate_json(formed).hours == [9, 12], formed
refused(lambda: ask(response_format=Hours), "cannot keep to a schema", error=litellm.BadRequestError)

# Tools that are offered are not called; to force one is refused.
tools = {"tools": [{"type": "function", "function": WEATHER}]}
offered = ask(**tools, tool_choice="auto").choices[0].message
assert not offered.tool_calls and "nine" in offered.content, offered
refused(lambda: ask(**tools, tool_choice="required"), "calls no tools", error=litellm.BadRequestError)

common = {"model": "openai/written/vectors", "api_base": url + "/v1", "api_key": token}
vectors = [litellm.embedding(input=input, **common).data for input in [["a ferry", "a boat"], "a ferry"]]
assert vectors[0][0]["embedding"] == vectors[1][0]["embedding"], vectors

# Words that end the answer.
assert "noon" not in ask(model="written", stop=[" It is"]).choices[0].message.content

refused(lambda: ask(key="wrong"), error=litellm.AuthenticationError)
refused(lambda: ask(model="none"), "demo, written", error=litellm.NotFoundError)
refused(lambda: [ask(key=once) for _ in range(3)], error=litellm.RateLimitError)
for question in ["Has the ferry an outage?", "Has the ferry a breakdown?"]:
    refused(lambda: ask(question, model="written"), "failed", error=litellm.InternalServerError)
    refused(lambda: list(ask(question, model="written", stream=True)), "failed")
refused(lambda: list(ask(base=cut, stream=True)))
print("ok")
