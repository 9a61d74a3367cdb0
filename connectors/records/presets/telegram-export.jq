# Chats as Telegram Desktop exports them, one or all. In a bot's chat the bot is the agent, in a person's who exported it.
if .chats then .chats.list[]? else . end
| . as $chat | .messages[]? | select(.type == "message" and .from_id)
| (.from_id == "user\($chat.id)") as $other
| {id: "\($chat.id)/\(.id)", conversation: ($chat.id | tostring), time: (.date_unixtime // .date),
   # In a group anybody may be the agent: copy this, and say who.
   speaker: (if $chat.type == "bot_chat" then (if $other then "agent" else "user" end)
     elif $chat.type == "personal_chat" then (if $other then "user" else "agent" end) else .from // "user" end),
   text: (.text | if type == "array" then map(if type == "object" then .text else . end) | join("") else . end)}
