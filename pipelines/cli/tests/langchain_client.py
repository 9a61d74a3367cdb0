"""Talks to a server with LangChain's package for OpenAI's API."""

import openai
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from served import NEXT, QUESTION, WEATHER, check_pages, cut, once, refused, token, url


class Hours(BaseModel):
    """The hours at which the ferry leaves."""

    hours: list[int]


def chat(model="demo", key=token, base=url, **options):
    return ChatOpenAI(model=model, api_key=key, base_url=base + "/v1", max_retries=0, **options)


def citations(message):
    """The citations of a message, in LangChain's own form."""
    blocks = [block for block in message.content_blocks if block["type"] == "text"]
    found = [note for block in blocks for note in block.get("annotations", [])]
    assert all(note["type"] == "citation" and note["title"] for note in found), found
    return found


# Responses: LangChain keeps their citations.
for model in ["demo", "written"]:
    llm = chat(model, use_responses_api=True)
    answer = llm.invoke(QUESTION)
    assert "nine" in answer.text, answer
    check_pages([note["url"] for note in citations(answer)])
    for note in citations(answer):
        assert answer.text[note["start_index"] : note["end_index"]] in ("[1]", "[2]"), note
    whole = None
    for chunk in llm.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.text == answer.text, whole
    assert [note["url"].split("&key")[0] for note in citations(whole)] == [
        note["url"].split("&key")[0] for note in citations(answer)
    ], (whole, answer)
    check_pages([note["url"] for note in citations(whole)])

# A conversation: the messages are the history, or the response before is.
llm = chat(use_responses_api=True)
first = llm.invoke([HumanMessage(QUESTION)])
second = llm.invoke([HumanMessage(QUESTION), first, HumanMessage(NEXT)])
assert "four euros" in second.text and citations(second), second
second = llm.invoke([HumanMessage(NEXT)], previous_response_id=first.response_metadata["id"])
assert "four euros" in second.text, second

# Chat completions: LangChain drops their annotations, so the sources are asked for as Markdown.
plain = chat(default_headers={"X-Turnflow-Citations": "markdown"})
answer = plain.invoke([HumanMessage(QUESTION), AIMessage("At nine."), HumanMessage(NEXT)])
assert "four euros" in answer.content and "**Sources**" in answer.content, answer
assert answer.usage_metadata["total_tokens"] > 0, answer
assert "".join(chunk.content for chunk in plain.stream(QUESTION)) == plain.invoke(QUESTION).content

# Forms: with a language model, or a refusal that says why.
for responses in [True, False]:
    assert chat("written", use_responses_api=responses).with_structured_output(Hours).invoke(QUESTION).hours == [9, 12]
    cannot = chat("demo", use_responses_api=responses).with_structured_output(Hours)
    refused(lambda: cannot.invoke(QUESTION), "400", "cannot keep to a schema", error=openai.BadRequestError)
assert chat("written").with_structured_output(Hours, method="json_mode").invoke(QUESTION).hours == [9, 12]
cannot = chat("demo").with_structured_output(Hours, method="json_mode")
refused(lambda: cannot.invoke(QUESTION), "400", "cannot keep to JSON", error=openai.BadRequestError)
calls = chat("written").with_structured_output(Hours, method="function_calling")
refused(lambda: calls.invoke(QUESTION), "400", "calls no tools", error=openai.BadRequestError)

# Tools that are offered are not called.
offered = chat().bind_tools([{"type": "function", "function": WEATHER}]).invoke(QUESTION)
assert not offered.tool_calls and "nine" in offered.content, offered

# Vectors; without the option, LangChain sends numbers of tokens.
vectors = OpenAIEmbeddings(
    model="written/vectors", api_key=token, base_url=url + "/v1", check_embedding_ctx_length=False
)
assert vectors.embed_documents(["a ferry", "a boat"])[0] == vectors.embed_query("a ferry"), vectors

# Words that end the answer.
assert "noon" not in chat("written").invoke(QUESTION, stop=[" It is"]).content
assert "noon" not in "".join(chunk.content for chunk in chat("written").stream(QUESTION, stop=[" It is"]))

refused(lambda: chat(key="wrong").invoke(QUESTION), "401", error=openai.AuthenticationError)
refused(lambda: chat("none").invoke(QUESTION), "404", "demo, written", error=openai.NotFoundError)
refused(lambda: [chat(key=once).invoke(QUESTION) for _ in range(3)], "429", error=openai.RateLimitError)
for responses in [True, False]:
    llm = chat("written", use_responses_api=responses)
    for question in ["Has the ferry an outage?", "Has the ferry a breakdown?"]:
        refused(lambda: llm.invoke(question), "500", "failed", error=openai.InternalServerError)
        refused(lambda: llm.stream(question), "failed")
    refused(lambda: chat(base=cut, use_responses_api=responses).stream(QUESTION))
print("ok")
