# ChatGPT's data export: a conversation is a map of nodes; the path from the current node counts, or else from the latest leaf.
.mapping as $nodes | (.conversation_id // .id) as $id
| (.current_node | strings | select($nodes[.])) // ([$nodes | to_entries[] | select((.value.children // [] | map(select($nodes[.]))) == [] and .value.message)]
    | max_by(.value.message.create_time // -1) | .key)
| [limit($nodes | length; recurse($nodes[.].parent; . != null and $nodes[.]))] | reverse[] | $nodes[.].message | select(. != null)
| select((.recipient // "all") == "all" and (.weight // 1) != 0)
| select(.content.content_type | IN("text", "multimodal_text"))
# What was spoken is in parts of its own.
| {conversation: $id, speaker: (.author.role | role), time: .create_time,
   text: ([.content.parts[]? | strings, (objects | select(.content_type == "audio_transcription") | .text | strings)] | join("\n"))}
