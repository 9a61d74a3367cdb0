#: {"with_agent": true, "settle_s": 2}
# Slack's events: a thread of a channel, or a direct message channel, is a conversation.
(.authorizations[0].user_id // "") as $bot | .event | objects | select((.type | IN("message", "app_mention")) and (.channel | type == "string"))
| ((.channel_type == "im") or (.channel | startswith("D"))) as $is_direct | .channel as $channel
| (if .subtype == "message_deleted" then {ts: .deleted_ts, removed: true}
   elif .subtype == "message_changed" then .message + {version: 1, removed: (.message.subtype == "tombstone")} else . end)
| select(.removed or .subtype == null or (.subtype | IN("bot_message", "file_share", "thread_broadcast", "me_message")))
| slack_text as $said | {id: "\($channel):\(.ts)", removed: (.removed // false)} + if .removed then {} else {
    speaker: (if .bot_id then "agent" else "user" end), text: ($said | slack_markup($bot)), time: .ts, order: (.ts | tonumber), version: (.version // 0),
    to_agent: (($is_direct and (.bot_id | not)) or ($said | contains("<@" + $bot + ">"))),
    conversation: (if $is_direct then $channel else "\($channel):\(.thread_ts // .ts)" end)} end
