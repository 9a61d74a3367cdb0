#: {"branch": true}
# Chats of the AI SDK, as applications store them: a record is a chat with all its messages, or one message of a chat. What a chat
# that is written anew does not have any more is no turn.
def text: if .parts then [.parts[] | select(.type == "text") | .text] | join("\n") else .content | parts_text end;
(.chatId // .chat_id // .id) as $chat
| if .messages then [.messages[].id] as $ids | (.messages | to_entries[] | .value + {at: .key, chat: $chat, count: ($ids | length),
      before: (if .key == 0 then "" else $ids[.key - 1] // (.key - 1) end)})
  else . + {at: null, chat: (.chatId // .chat_id)} end
| select(.chat and .role) | .chat as $chat
| {id: (if .id then "\($chat)/\(.id)" else "\($chat)/\(.at)" end), conversation: $chat, speaker: (.role | role), text: text, last: (.at != null and .at + 1 == .count),
   parent: (if .at then "\($chat)/\(.before)" else null end), time: (.createdAt // .created_at // .metadata.createdAt? // null), order: (.at // ((.createdAt // .created_at // null) | seconds))}
