# Intercom's conversations, from its API or its webhooks: what opened it, and the parts that are comments. Notes are no turns.
# Messages of admins say that a person wrote them; with these, or when it is assigned to one, a conversation is handed over,
# until it is closed.
def speaker: if IN("user", "lead", "contact") then "user" elif IN("admin", "bot", "team") then "agent" else . end;
def by_person: if .author.type == "admin" then {hand_over: true, fields: {by_person: true}} else {} end;
(if .type == "notification_event" then .data.item else . end) | select(.type == "conversation") | .id as $id
| (select(.source.body) | {id: "\($id)/\(.source.id)", conversation: $id, speaker: (.source.author.type | speaker), time: .created_at,
    order: 0, text: (.source.body | html_text)} + (.source | by_person | del(.hand_over))),
  (.conversation_parts.conversation_parts[]? | if .part_type | IN("comment", "open", "close", "quick_reply") then
      {id: "\($id)/\(.id)", conversation: $id, speaker: (.author.type | speaker), time: .created_at, order: .created_at,
       removed: (.redacted // false), text: (.body // "" | html_text)} + by_person + (if .part_type == "close" then {hand_over: false} else {} end)
    elif .part_type == "assignment" and .assigned_to.type? == "admin" then {id: "\($id)/\(.id)", conversation: $id, order: .created_at, hand_over: true}
    else empty end)
