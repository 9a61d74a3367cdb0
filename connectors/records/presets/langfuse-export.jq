#: {"settle_s": 5}
# Langfuse's traces and observations: a trace is one exchange. One without input takes those of its last generation.
def question: if type == "string" then . elif type == "array" then (map(select(.role == "user")) | last | .content | parts_text)
  elif type == "object" then (.question // (.messages // [] | question)) else null end;
def answer: if type == "string" then . elif type == "object" then (.answer // (.content | parts_text)) else null end;
has("traceId") as $is_step | select(if $is_step then .type == "GENERATION" and .level != "ERROR" else (.tags // []) | index("eval") | not end)
| (.traceId // .id) as $id | (if $is_step then {join: $id, rank: 1, version: .startTime}
    else {join: $id, conversation: (.sessionId // $id), time: .timestamp, order: (.timestamp | seconds)} end) as $of
| (if $is_step then empty else $of end),
  (select($is_step or .input != null) | $of + {id: "\($id)/q", speaker: "user", text: (.input | question)}),
  (select($is_step or .output != null) | $of + {id: "\($id)/a", speaker: "agent", text: (.output | answer)})
