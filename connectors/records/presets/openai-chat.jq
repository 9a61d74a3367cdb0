# Requests to a server of OpenAI's chat API with their replies or streams, as proxies and applications log them: a record is a call.
(.request // .body // .kwargs // (if .model then . else {} end) | meant) as $request | (.response // .output // .result // . | meant) as $response
| ($request.messages? // (if $response | type == "array" or .choices? then .messages else empty end) // empty) as $messages
| (if $response | type == "array" then $response[0] else $response end | objects // {}) as $of
| (.timestamp // .created_at // $of.created // null) as $time
| {id: ($of.id // .id // .request_id // null), guess: true, messages: ($messages | chat_messages),
   conversation: (.conversation_id // .session_id // $request.metadata.conversation_id? // .metadata.conversation_id? // null),
   time: $time, order: ($time | seconds), answer: (first($response | reply | del(.id, .time)) // null)}
