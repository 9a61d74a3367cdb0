#: {"decode": "sqlite", "query": "SELECT id, session_id, message_data, created_at FROM agent_messages ORDER BY id", "cursor": "id"}
# Sessions of OpenAI's Agents SDK: an item is JSON in a column.
. as $row | .message_data | fromjson | select((.type // "message") == "message")
| {conversation: $row.session_id, speaker: (.role | role), text: (.content | parts_text), time: $row.created_at}
