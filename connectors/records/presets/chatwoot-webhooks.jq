#: {"settle_s": 1}
# Chatwoot's webhooks: a greeting is the agent's; private notes and activities are no turns. Messages of people who work there
# say so, and a conversation that is opened for them is handed over, until it is pending for the bot again.
{incoming: "user", outgoing: "agent", template: "agent", "0": "user", "1": "agent", "3": "agent"} as $speakers
| if .event == "conversation_status_changed" then select(.status | IN("open", "pending"))
    | {conversation: "\(.account.id // .messages[0].account_id)/\(.id)", order: ((.updated_at // .timestamp) | seconds), hand_over: (.status == "open")}
  else select(.event | IN("message_created", "message_updated")) | select(.private | not)
    | ((.message_type | tostring | IN("outgoing", "1")) and ((.sender.type? // .sender_type // "") | ascii_downcase) == "user") as $by_person
    | {id: "\(.account.id)/\(.id)", conversation: "\(.account.id)/\(.conversation.id)", speaker: $speakers[.message_type | tostring],
       text: (.content // "" | if test("^\\s*<\\w+[^>]*>") then html_text else . end), time: .created_at,
       order: (.created_at | seconds), removed: (.content_attributes.deleted // false)}
      + if $by_person then {hand_over: true, fields: {by_person: true}} else {} end
  end
