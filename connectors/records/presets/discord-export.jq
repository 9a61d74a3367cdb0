#: {"with_agent": true}
# A channel as DiscordChatExporter writes it: a conversation is a chain of replies in which the bot speaks.
(first(.messages[] | select(.author.isBot)) // null) as $bot | .messages[]
| select(.type | IN("Default", "Reply"))
| {id, parent: .reference.messageId, speaker: (if .author.isBot then "agent" else "user" end), time: .timestamp,
   order: (.timestamp | seconds), text: (.content | ltrimstr("@" + ($bot.author.nickname // $bot.author.name // "\u0000")) | trim)}
