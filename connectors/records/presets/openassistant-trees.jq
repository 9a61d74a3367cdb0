# Open-Assistant's trees of messages: the path of the best replies and the first follow-ups.
def path: ., (.replies // [] | map(select(.deleted | not)) | sort_by(.rank // 0) | first | select(. != null) | path);
.message_tree_id as $id | .prompt | path
| {conversation: $id, speaker: (.role | role), text, time: .created_date}
