#: {"settle_s": 1}
# Messages of Microsoft Teams as Microsoft Graph gives them: a chat, or a thread of a channel, is a conversation.
(if .value then .value[] elif .resourceData? then .resourceData else . end) | select(.messageType == "message")
| (.channelIdentity.channelId // null) as $channel | (if .chatId then .chatId else "\($channel)/\(.replyToId // .id)" end) as $conversation
| {id: "\($conversation)/\(.id)", conversation: $conversation, time: .createdDateTime, order: (.createdDateTime | seconds),
   speaker: (if .from.application then "agent" else "user" end), version: ((.lastEditedDateTime // null) | seconds),
   removed: (.deletedDateTime != null),
   text: (.body.content // "" | gsub("<at[^>]*>.*?</at>(&nbsp;)?"; "") | html_text)}
