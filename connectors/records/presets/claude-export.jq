#: {"branch": true}
# Claude's data export: a conversation is a list of messages, which may name the message before them.
.uuid as $id | .chat_messages[]?
| ([.content[]? | select(.type == "text") | .text | strings] | join("\n")) as $parts
| {id: .uuid, conversation: $id, speaker: (.sender | role), time: .created_at,
   parent: (if .parent_message_uuid == "00000000-0000-4000-8000-000000000000" then "\($id)/" else .parent_message_uuid end),
   text: (if $parts != "" then $parts else .text // "" end)}
