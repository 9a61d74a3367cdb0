#: {"branch": true}
# LibreChat's export of a conversation, whose messages are a list or a tree, and its collection of messages.
def text: if (.text // "") != "" then .text else [.content[]? | select(.type == "text") | .text | if type == "object" then .value else . end] | join("\n") end;
(.conversationId // null) as $conversation
| if .messages then .messages[] | recurse(.children[]?) else . end
| select(.messageId and (.error | not)) | (.conversationId // $conversation) as $conversation
| {id: .messageId, conversation: $conversation, speaker: (if .isCreatedByUser then "user" else "agent" end), text: text,
   parent: (if .parentMessageId | IN("00000000-0000-0000-0000-000000000000", "") and $conversation then "\($conversation)/" else .parentMessageId end),
   time: (.createdAt // null | if type == "object" then .["$date"] else . end), order: (.createdAt // null | if type == "object" then .["$date"] else . end | seconds)}
