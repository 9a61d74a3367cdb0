# LoCoMo: sessions are fields whose names hold a number, with one date for all messages of a session.
.sample_id as $id | .conversation | . as $all
| to_entries[] | select(.value | type == "array") | (.key | ltrimstr("session_") | tonumber) as $session
| ($all[.key + "_date_time"] | seconds("%I:%M %p on %d %B, %Y")) as $time
| .value | to_entries[]
| {conversation: $id, text: .value.text, time: $time, order: [$session, .key],
   speaker: (if .value.speaker == $all.speaker_a then "user" else "agent" end)}
