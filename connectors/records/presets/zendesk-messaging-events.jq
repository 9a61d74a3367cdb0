#: {"settle_s": 1}
# Zendesk's webhooks of messaging: what a trigger writes is no turn.
{end_user: "user", agent: "agent", system: "agent"} as $speakers
| select(.type | endswith("message_added")) | .time as $time
| {id, conversation: .event.conversation_id, speaker: $speakers[.event.actor.type], text: .event.message.body,
   time: $time, order: ($time | seconds)}
