#: {"decode": "csv"}
# A table of a help desk with columns in German: copy it, and change the names of the columns, the words for the speakers
# and the form of the dates.
{kunde: "user", support: "agent"} as $speakers
| {conversation: .Vorgang, text: .Nachricht, time: (.Datum | seconds("%d.%m.%Y %H:%M:%S")),
   speaker: $speakers[.Von | ascii_downcase | trim]}
| . + {order: .time}
