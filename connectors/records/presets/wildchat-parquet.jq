# WildChat: a row is a whole conversation, whose id is a hash of it. A row that comes twice counts once.
.conversation_hash as $id | .conversation | to_entries[]
| {id: "\($id)/\(.key)", conversation: $id, speaker: (.value.role | role), text: .value.content, time: .value.timestamp}
