"""A client of `turnflow serve`.

    from turnflow import Client

    client = Client("http://127.0.0.1:8100")
    talk = client.conversation()
    print(talk.ask("When does the ferry leave?").text)
    for piece in talk.stream("And when does it return?"):
        print(piece, end="")
    for answer in client.watch("When does the ferry leave?"):
        print(answer.text)
"""

from .client import (
    Answer,
    Client,
    Conversation,
    Document,
    Documents,
    Event,
    Hit,
    Report,
    TurnflowError,
    Utterance,
)

__all__ = [
    "Answer",
    "Client",
    "Conversation",
    "Document",
    "Documents",
    "Event",
    "Hit",
    "Report",
    "TurnflowError",
    "Utterance",
]
