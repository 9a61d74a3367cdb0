# Bodies of calls of OpenAI's chat completions and responses, or of Anthropic's messages, that a proxy has recorded: a file with
# the request, and one with the response or its stream.
($source.file | split(".")[0]) as $call | (.metadata.chat? // .metadata.conversation_id? // .conversation_id // null) as $conversation
| if (.messages or .input) and (.events | not) then
    {id: $call, conversation: $conversation, parent: .previous_response_id, guess: ($conversation == null), order: $call,
     messages: (.messages // (.input | if type == "string" then [{role: "user", content: .}] else . end) | chat_messages)}
  else (first(reply) // null) as $answer | (first(.events[0]? // . | .created // .created_at // .response.created_at? | numbers | select(. > 0)) // null) as $time
    | {id: $call, time: $time, messages: [], answer: $answer} end
