# LiteLLM's standard logging payload: a record is a call, which repeats what was said before.
select(.call_type | IN("completion", "acompletion"))
| {id, conversation: .trace_id, guess: true, order: .startTime, time: .startTime, messages: (.messages | chat_messages)}
  + if .status == "success" then
      {answer: {speaker: "agent", text: (.response.choices[0].message.content | parts_text), time: .endTime}}
    else {} end
