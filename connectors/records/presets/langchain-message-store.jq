#: {"decode": "sqlite", "query": "SELECT id, session_id, message FROM message_store ORDER BY id", "cursor": "id"}
# LangChain's message store (SQLChatMessageHistory): a message is JSON in a column.
.session_id as $id | .message | fromjson
| {human: "user", HumanMessageChunk: "user", ai: "agent", AIMessageChunk: "agent"} as $speakers
| {conversation: $id, speaker: ($speakers[.type] // (.data.role | role)), text: (.data.content | parts_text)}
