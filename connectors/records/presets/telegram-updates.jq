#: {"settle_s": 1}
# Telegram's updates to a bot, also as lists, and the results of what the bot sends.
if (.result | type) == "array" then .result[] else . end
| (.message // .edited_message // .business_message // .edited_business_message // .result) | select(type == "object" and has("message_id"))
| .chat.id as $chat
| {id: "\($chat)/\(.message_id)", order: .message_id, time: .date, version: (.edit_date // 0),
   conversation: (if .is_topic_message then "\($chat):\(.message_thread_id)" else "\($chat)" end),
   speaker: (if .from.is_bot or .sender_business_bot then "agent" else "user" end),
   text: (.text // .caption // "" | if startswith("/") then "" else sub("^@\\w*bot\\b[,:]?\\s*"; ""; "i") end)}
