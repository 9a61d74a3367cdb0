# ShareGPT and the training tools that took over its shape. Some values are HTML.
{human: "user", user: "user", gpt: "agent", chatgpt: "agent", bard: "agent", bing: "agent", claude: "agent", assistant: "agent"} as $speakers
| .id as $id | .conversations[]
| {conversation: $id, speaker: $speakers[.from], text: (.value | if startswith("<div") then html_text else . end)}
