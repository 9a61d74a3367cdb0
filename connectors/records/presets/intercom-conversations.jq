# Intercom's conversations, from its API or its webhooks: what opened it, and the parts that are comments. Notes are no turns.
def speaker: if IN("user", "lead", "contact") then "user" elif IN("admin", "bot", "team") then "agent" else . end;
(if .type == "notification_event" then .data.item else . end) | select(.type == "conversation") | .id as $id
| (select(.source.body) | {id: "\($id)/\(.source.id)", conversation: $id, speaker: (.source.author.type | speaker), time: .created_at,
    order: 0, text: (.source.body | html_text)}),
  (.conversation_parts.conversation_parts[]? | select(.part_type | IN("comment", "open", "close", "quick_reply"))
    | {id: "\($id)/\(.id)", conversation: $id, speaker: (.author.type | speaker), time: .created_at, order: .created_at,
       removed: (.redacted // false), text: (.body // "" | html_text)})
