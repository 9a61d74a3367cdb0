#: {"settle_s": 5}
# LangSmith's runs, as they are exported: the first run of a trace is one exchange, or a call that repeats what was said.
def kwargs: if type == "object" and has("kwargs") then
    (.id // [] | last // "" | ascii_downcase | sub("message(chunk)?$"; "")) as $type | .kwargs | .type = (.type // $type) else . end;
def said: kwargs | {speaker: (.role // .type | role), text: (.content | parts_text)};
def listed: if type == "array" and (.[0] | type) == "array" then .[0] else . end;
def answer: if type == "string" then . elif type == "object" then
    (.answer // .output // .result // .response // (.generations | listed | .[0]?) // (.choices[0]?) // (.messages | listed | last?) // .message // null) as $in
    | if .content then (.content | parts_text) elif $in == null then .text // null
      elif ($in | type) == "object" and $in.message then ($in.message | said | .text) elif ($in | type) == "object" then ($in | said | if .text == "" then $in | answer else .text end) else $in | answer end
  elif type == "array" then last | answer else null end;
select(.parent_run_id == null and (.run_type | IN("chain", "llm", "chat_model", "tool") or . == null))
| (.extra.metadata // {}) as $of | (.inputs // {}) as $in
| {id: (.trace_id // .id), conversation: ($of.session_id // $of.thread_id // $of.conversation_id // null), guess: true, time: .start_time, order: (.start_time | seconds),
   messages: (if $in.messages then [$in.messages | listed | .[] | said]
              else [{speaker: "user", text: ($in.input // $in.question // $in.query // $in.prompt // "" | if type == "object" then .content // "" else . end | parts_text)}] end)}
  + if .error == null and .outputs then {answer: {speaker: "agent", text: (.outputs | answer), time: .end_time}} else {} end
