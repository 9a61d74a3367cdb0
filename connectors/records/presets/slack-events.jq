#: {"with_agent": true, "settle_s": 2}
# Slack's events: a thread of a channel, or a direct message channel, is a conversation.
def plain($bot): gsub("<@" + $bot + ">\\s*"; "") | gsub("<[^<>|]+\\|(?<label>[^<>]+)>"; .label) | gsub("<(?<url>https?:[^<>|]+)>"; .url)
  | gsub("&lt;"; "<") | gsub("&gt;"; ">") | gsub("&amp;"; "&") | trim;
# What is only in blocks or attachments.
def rich: .text // .url // (if .user_id then "<@\(.user_id)>" else "" end) | strings;
def in_blocks: [(.blocks[]? | .text.text?, .fields[]?.text?,
    ([.elements[]? | select(.type | IN("rich_text_section", "rich_text_list", "rich_text_quote", "rich_text_preformatted"))
      | [.elements[]? | if .elements then [.elements[]? | rich] | join("") else rich end] | join("")] | join("\n"))),
  (.attachments[]? | .text // .fallback)] | map(strings | select(. != "")) | join("\n");
def said: if (.text // "") != "" then .text else in_blocks end;
(.authorizations[0].user_id // "") as $bot | .event | objects | select(.type | IN("message", "app_mention")) | select(.channel | strings)
| .channel as $channel | ((.channel_type == "im") or ($channel | startswith("D"))) as $is_direct
| if .subtype == "message_deleted" then {id: "\($channel):\(.deleted_ts)", removed: true}
  # In the place of a question with a thread, a tombstone is left.
  elif .subtype == "message_changed" and .message.subtype == "tombstone" then {id: "\($channel):\(.message.ts)", removed: true}
  else (if .subtype == "message_changed" then .message + {version: 1} else . end)
    | select(.subtype == null or (.subtype | IN("bot_message", "file_share", "thread_broadcast", "me_message"))) | said as $said
    | {id: "\($channel):\(.ts)", speaker: (if .bot_id then "agent" else "user" end), text: ($said | plain($bot)),
       time: .ts, order: (.ts | tonumber), version: (.version // 0),
       to_agent: (($is_direct and (.bot_id | not)) or ($said | contains("<@" + $bot + ">"))),
       conversation: (if $is_direct then $channel else "\($channel):\(.thread_ts // .ts)" end)}
  end
