#: {"settle_s": 1}
# Activities of the Bot Framework, as in Microsoft Teams: ids that begin with `28:` are the bot's.
.conversation.id as $conversation | (.textFormat == "xml") as $is_markup | "\($conversation)/\(.id)" as $id
| if .type == "messageDelete" then {id: $id, removed: true}
  elif .type | IN("message", "messageUpdate") then
    {id: $id, conversation: $conversation, time: .timestamp, order: (.timestamp | seconds),
     speaker: (if .from.id | startswith("28:") then "agent" else "user" end),
     text: (reduce (.entities // [] | .[] | select(.type == "mention") | .text) as $mention (.text // ""; split($mention) | join(""))
       | if $is_markup then html_text else . end | trim)}
  elif .type == "event" and (.name | IN("handoff.initiate", "handoff.status")) then
    {conversation: $conversation, order: (.timestamp | seconds), hand_over: (.name == "handoff.initiate" or .value.state? == "accepted")}
  else empty end
