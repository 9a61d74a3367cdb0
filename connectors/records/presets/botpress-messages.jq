#: {"settle_s": 1}
# Botpress's messages, one in each record or in lists, as its API and its webhooks give them.
(if .messages then .messages[] elif .message then .message elif .body.data.message? then .body.data.message else . end)
| select(.conversationId and .direction)
| {id, conversation: .conversationId, speaker: (if .direction == "incoming" then "user" else "agent" end), time: .createdAt,
   order: (.createdAt | seconds), text: (.payload | .text // .markdown // .title // "" | strings)}
