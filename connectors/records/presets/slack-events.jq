#: {"with_agent": true, "settle_s": 2}
# Slack's events: a thread of a channel, or a direct message channel, is a conversation.
def plain($bot): gsub("<@" + $bot + ">\\s*"; "") | gsub("<[^<>|]+\\|(?<label>[^<>]+)>"; .label) | gsub("<(?<url>https?:[^<>|]+)>"; .url)
  | gsub("&lt;"; "<") | gsub("&gt;"; ">") | gsub("&amp;"; "&") | trim;
(.authorizations[0].user_id // "") as $bot | .event | select(. != null)
| .channel as $channel
| if .subtype == "message_deleted" then {id: "\($channel):\(.deleted_ts)", removed: true}
  else (if .subtype == "message_changed" then .message + {version: 1} else . end)
    | select(.subtype == null or (.subtype | IN("bot_message", "file_share", "thread_broadcast")))
    | {id: "\($channel):\(.ts)", speaker: (if .bot_id then "agent" else "user" end), text: (.text // "" | plain($bot)),
       time: .ts, order: (.ts | tonumber), version: (.version // 0), to_agent: (.text // "" | contains("<@" + $bot + ">")),
       conversation: (if $channel | startswith("D") then $channel else "\($channel):\(.thread_ts // .ts)" end)}
  end
