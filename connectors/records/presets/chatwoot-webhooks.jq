#: {"settle_s": 1}
# Chatwoot's webhooks: a greeting is the agent's; private notes and activities are no turns.
{incoming: "user", outgoing: "agent", template: "agent", "0": "user", "1": "agent", "3": "agent"} as $speakers
| select(.event | IN("message_created", "message_updated")) | select(.private | not)
| {id: "\(.account.id)/\(.id)", conversation: "\(.account.id)/\(.conversation.id)", speaker: $speakers[.message_type | tostring],
   text: (.content // "" | if test("^\\s*<\\w+[^>]*>") then html_text else . end), time: .created_at,
   order: (.created_at | seconds), removed: (.content_attributes.deleted // false)}
