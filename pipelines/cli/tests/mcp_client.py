"""Talks to a server with the official package of the Model Context Protocol: URL TOKEN."""

import asyncio
import json
import sys
import urllib.request

import mcp
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

url, token = sys.argv[1], sys.argv[2]
headers = {"Authorization": f"Bearer {token}"}


def put(name, text):
    request = urllib.request.Request(
        f"{url}/v1/documents/{name}?wait=true",
        data=json.dumps({"title": "Island", "text": text}).encode(),
        headers={**headers, "Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).read()


async def found(client, word):
    """Waits until a document is found."""
    for _ in range(3000):
        result = await client.call_tool("search", {"query": word, "top": 1})
        assert not result.is_error, result
        if result.structured_content["hits"]:
            return result.structured_content["hits"][0]
        await asyncio.sleep(0.02)
    raise AssertionError(f"{word} is not found")


async def talk(mode):
    async with create_mcp_http_client(headers=headers) as http:
        transport = streamable_http_client(url + "/mcp", http_client=http)
        async with mcp.Client(transport, mode=mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"search", "ask"}, tools
            assert tools["ask"].input_schema["required"] == ["question"], tools["ask"]

            hit = await found(client, "noon")
            assert hit["document"] == "ferry", hit
            # The link works in a browser that has no token.
            assert hit["text"] in urllib.request.urlopen(hit["url"]).read().decode(), hit

            answer = await client.call_tool("ask", {"question": "When does the ferry leave?"})
            assert not answer.is_error and "nine" in answer.content[0].text, answer
            assert answer.structured_content["sources"][0]["title"] == "Island", answer

            history = [{"speaker": "user", "text": "Tell me about the ferry."}]
            answer = await client.call_tool("ask", {"question": "Does it return at noon?", "history": history})
            assert "noon" in answer.content[0].text, answer

            wrong = await client.call_tool("search", {"query": "x", "pipeline": "moon"})
            assert wrong.is_error and "does not exist" in wrong.content[0].text, wrong

            resources = (await client.list_resources()).resources
            assert [resource.name for resource in resources] == ["a b/ü?.md", "ferry"], resources
            for resource in resources:
                text = (await client.read_resource(str(resource.uri))).contents[0].text
                assert "ferry" in text or "odd" in text, text
            print(mode, client.protocol_version)


async def refused():
    async with create_mcp_http_client(headers={"Authorization": "Bearer wrong"}) as http:
        try:
            async with mcp.Client(streamable_http_client(url + "/mcp", http_client=http)) as client:
                await client.list_tools()
        except BaseException as error:
            print("refused:", type(error).__name__)
            return
    raise AssertionError("a wrong token was let in")


put("ferry", "The ferry to the island leaves at nine. It returns at noon.")
put("a%20b/%C3%BC%3F.md", "An odd name.")
for mode in ["auto", "legacy"]:
    asyncio.run(talk(mode))
asyncio.run(refused())
