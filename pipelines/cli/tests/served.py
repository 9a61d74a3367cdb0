"""What the scripts of libraries share: they are started with URL TOKEN ONCE CUT.

ONCE is the token of a caller who may ask once; CUT is an address that cuts each connection in the midst of a reply.
"""

import html
import re
import sys
import urllib.request

url, token, once, cut = (argument for argument in sys.argv[1:])
QUESTION = "When does the ferry leave?"
NEXT = "And what does a ticket cost?"
# What is in the documents.
TEXTS = ["The ferry to the island leaves at nine.", "A ticket for the ferry costs four euros."]
WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": {"type": "object", "properties": {}}}


def check_pages(urls):
    """Each page answers and marks the cited passage; the first is that of the question."""
    assert urls, "there are no citations"
    for at, page in enumerate(urls):
        with urllib.request.urlopen(page) as response:
            assert response.status == 200, page
            marked = re.search('<section id="passage".*?</section>', response.read().decode(), re.DOTALL)
        assert marked and any(text in html.unescape(marked[0]) for text in TEXTS[: 1 if at == 0 else 2]), (page, marked)


def refused(call, *told, error=Exception):
    """A call fails, and its error says why. A stream is read to its end."""
    try:
        result = call()
        if not isinstance(result, str) and hasattr(result, "__next__"):
            result = list(result)
    except error as problem:
        assert all(words in str(problem) for words in told), problem
        return problem
    raise AssertionError(f"this was no error: {result}")
