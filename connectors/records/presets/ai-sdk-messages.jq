# Chats of the AI SDK, as applications store them: a record is a chat with all its messages, or one message of a chat.
def text: if .parts then [.parts[] | select(.type == "text") | .text] | join("\n") else .content | parts_text end;
(.chatId // .chat_id // .id) as $chat
| if .messages then (.messages | to_entries[] | .value + {at: .key, chat: $chat}) else . + {at: null, chat: (.chatId // .chat_id)} end
| select(.chat and .role) | .chat as $chat
| {id: (if .id then "\($chat)/\(.id)" else "\($chat)/\(.at)" end), conversation: $chat, speaker: (.role | role), text: text,
   time: (.createdAt // .created_at // .metadata.createdAt? // null), order: (.at // ((.createdAt // .created_at // null) | seconds))}
