"""Talks to a server with LlamaIndex's packages for servers like OpenAI's."""

import openai
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel
from served import NEXT, QUESTION, WEATHER, check_pages, cut, once, refused, token, url


class Hours(BaseModel):
    """The hours at which the ferry leaves."""

    hours: list[int]


def chat(model="demo", key=token, base=url, **options):
    return OpenAILike(model=model, api_key=key, api_base=base + "/v1", is_chat_model=True, max_retries=0, **options)


def responses(model="demo", base=url):
    return OpenAILikeResponses(model=model, api_key=token, api_base=base + "/v1", max_retries=0)


ASK = [ChatMessage(role="user", content=QUESTION)]
for model in ["demo", "written"]:
    # Chat completions: the reply as it came has the annotations.
    answer = chat(model).chat(ASK)
    assert "nine" in answer.message.content, answer
    notes = answer.raw.choices[0].message.annotations
    check_pages([note.url_citation.url for note in notes])
    text, notes = "", []
    for chunk in chat(model).stream_chat(ASK):
        text += chunk.delta or ""
        for choice in chunk.raw.choices:
            notes += getattr(choice.delta, "annotations", None) or []
    assert text == answer.message.content, text
    check_pages([note["url_citation"]["url"] for note in notes])

    # Responses: LlamaIndex keeps the annotations itself.
    answer = responses(model).chat(ASK)
    assert "nine" in answer.message.content, answer
    check_pages([note.url for note in answer.additional_kwargs["annotations"]])
    for chunk in responses(model).stream_chat(ASK):
        last = chunk
    assert last.message.content == answer.message.content, last
    check_pages([note["url"] for note in last.additional_kwargs["annotations"]])

# A conversation: the messages are the history.
for llm in [chat(), responses()]:
    first = llm.chat(ASK).message
    second = llm.chat([*ASK, first, ChatMessage(role="user", content=NEXT)])
    assert "four euros" in second.message.content, second

# Forms: with a language model, or a refusal that says why.
formed = {"should_use_structured_outputs": True, "is_function_calling_model": True}
assert chat("written", **formed).as_structured_llm(Hours).chat(ASK).raw.hours == [9, 12]
cannot = chat("demo", **formed).as_structured_llm(Hours)
refused(lambda: cannot.chat(ASK), "400", "cannot keep to a schema", error=openai.BadRequestError)
forced = chat("written", is_function_calling_model=True).as_structured_llm(Hours)
refused(lambda: forced.chat(ASK), "400", "calls no tools", error=openai.BadRequestError)

# Tools that are offered are not called.
offered = chat().chat(ASK, tools=[{"type": "function", "function": WEATHER}], tool_choice="auto")
assert "tool_calls" not in offered.message.additional_kwargs and "nine" in offered.message.content, offered

vectors = OpenAILikeEmbedding(model_name="written/vectors", api_key=token, api_base=url + "/v1", max_retries=0)
assert vectors.get_text_embedding_batch(["a ferry", "a boat"])[0] == vectors.get_query_embedding("a ferry")

# Words that end the answer.
assert "noon" not in chat("written").chat(ASK, stop=[" It is"]).message.content
assert "noon" not in "".join(chunk.delta or "" for chunk in chat("written").stream_chat(ASK, stop=[" It is"]))

refused(lambda: chat(key="wrong").chat(ASK), "401", error=openai.AuthenticationError)
refused(lambda: chat("none").chat(ASK), "404", "demo, written", error=openai.NotFoundError)
refused(lambda: [chat(key=once).chat(ASK) for _ in range(3)], "429", error=openai.RateLimitError)
for question in ["Has the ferry an outage?", "Has the ferry a breakdown?"]:
    ask = [ChatMessage(role="user", content=question)]
    for llm in [chat("written"), responses("written")]:
        refused(lambda: llm.chat(ask), "500", "failed", error=openai.InternalServerError)
        refused(lambda: llm.stream_chat(ask), "failed")
for llm in [chat(base=cut), responses(base=cut)]:
    refused(lambda: llm.stream_chat(ASK))
print("ok")
