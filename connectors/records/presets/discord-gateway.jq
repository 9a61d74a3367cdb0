#: {"with_agent": true, "settle_s": 1}
# Events of Discord's gateway: a chain of replies, or a direct channel, is a conversation. Other events are no turns.
.t as $type | .d | select($type | IN("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE"))
| if $type == "MESSAGE_DELETE" then {id, removed: true}
  else select((.type // 0) | IN(0, 19)) | select(.author)
    | {id, parent: (.message_reference.message_id? // null), speaker: (if .author.bot then "agent" else "user" end), time: .timestamp,
       order: (.timestamp | seconds), version: ((.edited_timestamp // null) | seconds),
       to_agent: ((.guild_id == null and (.author.bot | not)) or any(.mentions[]?; .bot)),
       text: (.content // "" | gsub("<@[!&]?[0-9]+>\\s*"; "") | trim)}
      + (if .guild_id then {} else {conversation: .channel_id} end)
  end
