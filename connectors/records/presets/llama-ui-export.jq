#: {"branch": true}
# Conversations as llama.cpp's web UI exports them: a message in each line, or lists of conversations with their messages.
if type == "array" then .[] else . end
| if .messages then .messages[]? else .message end
| objects | select(.convId and .id)
# The root of a conversation is no turn, and what follows it has a message before it.
| {id: .id, conversation: .convId, parent: (.parent // null), speaker: (if .type == "root" then "system" else (.role | role) end),
   text: (.content // "" | parts_text), time: .timestamp}
