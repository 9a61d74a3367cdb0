# Requests to Anthropic's messages API with their replies or streams, and batches of them: a record is a call, or a half of one.
(.request // .params // .body // (if .max_tokens then . else {} end) | meant) as $request
| (.response // .result.message? // (if .type == "message" then . else null end) | meant) as $reply
| ($reply | if type == "object" then .id else first(events_of.events[].message.id?) // null end) as $id
| (first($reply | reply) // null) as $answer | select($request.messages? or $answer) | (.timestamp // .created_at // null) as $time
| {id: (.custom_id // $id // .id // null), guess: true, time: $time, order: ($time | seconds),
   conversation: (.conversation_id // .session_id // $request.metadata.conversation_id? // null),
   messages: [($request.messages // [])[] | {speaker: (.role | role), text: (.content | parts_text)}],
   answer: ($answer | if . then del(.id, .time) else . end)}
