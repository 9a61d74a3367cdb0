# Requests to a server of OpenAI's chat API with their replies, as proxies and applications log them: a record is a call.
(.request // .body // .kwargs // (if .model then . else {} end)) as $request | (.response // .output // .result // .) as $response
| ($request.messages // (if $response.choices? then .messages else empty end) // empty) as $messages
| ($response.choices[0]? // {}) as $choice
| {id: ($response.id // .id // .request_id // null), guess: true, messages: ($messages | chat_messages),
   conversation: (.conversation_id // .session_id // $request.metadata.conversation_id? // .metadata.conversation_id? // null),
   time: (.timestamp // .created_at // $response.created // null), order: ((.timestamp // .created_at // $response.created // null) | seconds)}
  + if $choice.message then
      {answer: {speaker: "agent", text: ($choice.message | .content // .refusal | parts_text)}}
    else {} end
