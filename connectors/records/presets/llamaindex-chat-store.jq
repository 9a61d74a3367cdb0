#: {"decode": "json"}
# LlamaIndex's chat store, as SimpleChatStore persists it: a key is a conversation. Messages have a content or blocks.
.store | to_entries[] | .key as $id | .value[]
| {conversation: $id, speaker: (.role | role),
   text: (if .blocks then [.blocks[] | select(.block_type == "text") | .text] | join("\n") else .content | parts_text end)}
