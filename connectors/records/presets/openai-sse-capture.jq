# Bodies of chat completions that a proxy has recorded: a file with the request, and one with the response or its stream.
($source.file | split(".")[0]) as $call
| if .messages then {id: $call, conversation: .metadata.chat, order: $call, messages: (.messages | chat_messages)}
  elif .events then
    {id: $call, time: .events[0].created, messages: []}
    + if any(.events[].choices[0]?; .finish_reason) then
        {answer: {speaker: "agent", time: .events[0].created, text: ([.events[].choices[0]?.delta.content | strings] | join(""))}}
      else {} end
  elif .choices then
    {id: $call, time: .created,
     answer: {speaker: "agent", time: .created, text: (.choices[0].message.content | parts_text)}}
  else empty end
