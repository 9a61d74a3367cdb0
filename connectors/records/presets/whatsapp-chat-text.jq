#: {"decode": "lines", "start": "^\\x{200e}?\\[?(?<date>\\d{1,2}/\\d{1,2}/\\d{4}),? (?<clock>\\d{1,2}:\\d{2}(:\\d{2})?)(\\] | - )((?<author>[^:]+): )?(?<text>.*)$"}
# A chat that WhatsApp exports: a file is a conversation. The agent is `Fernhill Desk`: copy it, and change the name.
($source | if .file == "_chat.txt" then .folder else .name end | sub("^WhatsApp Chat( -| with) "; "")) as $id
| select(.author) | select(.text | startswith("\u200e") or . == "<Media omitted>" | not)
| {conversation: $id, speaker: (if .author == "Fernhill Desk" then "agent" else "user" end),
   text: (.text | sub("\\s*\u200e?<This message was edited>"; "")),
   time: ((.date + " " + .clock) | seconds(if (.[-6:-5] == ":") then "%d/%m/%Y %H:%M:%S" else "%d/%m/%Y %H:%M" end))}
