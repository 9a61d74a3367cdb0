#: {"settle_s": 5}
# Langfuse's traces and observations: a trace is one exchange. One without input takes those of its last generation.
def question: if type == "string" then . elif type == "array" then (map(select(.role == "user")) | last | .content | parts_text)
  elif type == "object" then (.question // (.messages // [] | question)) else null end;
def answer: if type == "string" then . elif type == "object" then (.answer // (.content | parts_text)) else null end;
if has("traceId") then
  select(.type == "GENERATION" and .level != "ERROR")
  | {join: .traceId, rank: 1, version: .startTime} as $of
  | ($of + {id: "\(.traceId)/q", speaker: "user", text: (.input | question)}),
    ($of + {id: "\(.traceId)/a", speaker: "agent", text: (.output | answer)})
else
  select((.tags // []) | index("eval") | not)
  | {join: .id, conversation: (.sessionId // .id), time: .timestamp, order: (.timestamp | seconds)} as $of
  | $of, (select(.input != null) | $of + {id: "\(.id)/q", speaker: "user", text: (.input | question)}),
    (select(.output != null) | $of + {id: "\(.id)/a", speaker: "agent", text: (.output | answer)})
end
