# ChatGPT's data export: a conversation is a map of nodes; the path from the current node counts.
.mapping as $nodes | (.conversation_id // .id) as $id
| [.current_node | recurse($nodes[.].parent; . != null)] | reverse[] | $nodes[.].message | select(. != null)
| select((.recipient // "all") == "all" and (.weight // 1) != 0)
| select(.content.content_type | IN("text", "multimodal_text"))
| {conversation: $id, speaker: (.author.role | role), text: ([.content.parts[] | strings] | join("\n")), time: .create_time}
