# Requests to Anthropic's messages API with their replies, and batches of them: a record is a call, or a half of one.
(.request // .params // .body // (if .max_tokens then . else {} end)) as $request | (.response // .result.message? // (if .type == "message" then . else null end)) as $reply
| select($request.messages or ($reply.role? == "assistant"))
| {id: (.custom_id // $reply.id? // .id // null), guess: true, time: (.timestamp // .created_at // null),
   conversation: (.conversation_id // .session_id // $request.metadata.conversation_id? // null), order: ((.timestamp // .created_at // null) | seconds),
   messages: [($request.messages // [])[] | {speaker: (.role | role), text: (.content | parts_text)}]}
  + if $reply.content? then {answer: {speaker: "agent", text: ($reply.content | parts_text)}} else {} end
