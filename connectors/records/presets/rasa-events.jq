#: {"settle_s": 1}
# Events of Rasa's trackers: questions and answers, questions that are taken back, and new sessions.
{conversation: .sender_id, order: .timestamp}
  + if .event | IN("user", "bot") then
      {id: (.message_id // null), speaker: (if .event == "user" then "user" else "agent" end), time: .timestamp,
       text: (.text // "" | if startswith("/") then "" else . end)}
    elif .event == "rewind" then {id: "\(.sender_id)/rewind \(.timestamp)", rewind: true}
    elif .event == "session_started" then {id: "\(.sender_id)/session \(.timestamp)", starts: true}
    else empty end
