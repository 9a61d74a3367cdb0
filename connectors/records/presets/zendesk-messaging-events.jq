#: {"settle_s": 1}
# Zendesk's webhooks of messaging: what a trigger writes is no turn. What an agent writes says that it was a person.
{end_user: "user", agent: "agent", system: "agent"} as $speakers
| select(.type | endswith("message_added")) | .time as $time
| {id, conversation: .event.conversation_id, speaker: $speakers[.event.actor.type], text: .event.message.body,
   time: $time, order: ($time | seconds)}
  + if .event.actor.type == "agent" then {hand_over: true, fields: {by_person: true}} else {} end
