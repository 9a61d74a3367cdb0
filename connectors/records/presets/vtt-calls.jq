#: {"decode": "vtt", "glue": " "}
# Transcripts of calls: a file is a conversation. The agent's voice is `Fernhill Desk`: copy it, and change the name.
select(.text | test("^[\\[(][^\\])]*[\\])]$") | not)
| {conversation: $source.name, speaker: (if .voice == "Fernhill Desk" then "agent" else "user" end), text, merge: .voice}
