#: {"settle_s": 1}
# Events of Rasa's trackers: questions and answers, questions that are taken back, and new sessions.
def mark($of): .timestamp | if . == null then null else $of + " \(.)" end;
{conversation: .sender_id, order: .timestamp}
  + if .event | IN("user", "bot") then
      {id: (.message_id // null), speaker: (if .event == "user" then "user" else "agent" end), time: .timestamp,
       text: (.text // "" | if startswith("/") then "" else . end)}
    elif .event == "rewind" then {id: mark("\(.sender_id)/rewind"), rewind: true}
    elif .event == "session_started" then {id: mark("\(.sender_id)/session"), starts: true}
    else empty end
