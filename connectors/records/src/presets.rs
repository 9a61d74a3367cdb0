//! Presets: mappings of forms that many programs write.

/// The presets' names and programs.
pub const PRESETS: &[(&str, &str)] = &[
    ("ai-sdk-messages", include_str!("../presets/ai-sdk-messages.jq")),
    ("anthropic-messages", include_str!("../presets/anthropic-messages.jq")),
    ("bot-framework-activities", include_str!("../presets/bot-framework-activities.jq")),
    ("botpress-messages", include_str!("../presets/botpress-messages.jq")),
    ("chatgpt-export", include_str!("../presets/chatgpt-export.jq")),
    ("chatwoot-webhooks", include_str!("../presets/chatwoot-webhooks.jq")),
    ("claude-export", include_str!("../presets/claude-export.jq")),
    ("coqa", include_str!("../presets/coqa.jq")),
    ("csv-helpdesk", include_str!("../presets/csv-helpdesk.jq")),
    ("dialogflow-cx-bigquery", include_str!("../presets/dialogflow-cx-bigquery.jq")),
    ("discord-export", include_str!("../presets/discord-export.jq")),
    ("discord-gateway", include_str!("../presets/discord-gateway.jq")),
    ("intercom-conversations", include_str!("../presets/intercom-conversations.jq")),
    ("langchain-message-store", include_str!("../presets/langchain-message-store.jq")),
    ("langfuse-export", include_str!("../presets/langfuse-export.jq")),
    ("langsmith-runs", include_str!("../presets/langsmith-runs.jq")),
    ("librechat-export", include_str!("../presets/librechat-export.jq")),
    ("litellm-payload", include_str!("../presets/litellm-payload.jq")),
    ("llama-ui-export", include_str!("../presets/llama-ui-export.jq")),
    ("llamaindex-chat-store", include_str!("../presets/llamaindex-chat-store.jq")),
    ("locomo", include_str!("../presets/locomo.jq")),
    ("mbox-threads", include_str!("../presets/mbox-threads.jq")),
    ("mt-bench", include_str!("../presets/mt-bench.jq")),
    ("open-webui-db", include_str!("../presets/open-webui-db.jq")),
    ("openai-agents-sessions", include_str!("../presets/openai-agents-sessions.jq")),
    ("openai-chat", include_str!("../presets/openai-chat.jq")),
    ("openai-finetune", include_str!("../presets/openai-finetune.jq")),
    ("openai-responses", include_str!("../presets/openai-responses.jq")),
    ("openai-sse-capture", include_str!("../presets/openai-sse-capture.jq")),
    ("openassistant-trees", include_str!("../presets/openassistant-trees.jq")),
    ("openinference-spans", include_str!("../presets/openinference-spans.jq")),
    ("openllmetry-spans", include_str!("../presets/openllmetry-spans.jq")),
    ("otel-genai-spans", include_str!("../presets/otel-genai-spans.jq")),
    ("otlp", include_str!("../presets/otlp.jq")),
    ("rasa-events", include_str!("../presets/rasa-events.jq")),
    ("sharegpt", include_str!("../presets/sharegpt.jq")),
    ("slack-events", include_str!("../presets/slack-events.jq")),
    ("teams-graph-messages", include_str!("../presets/teams-graph-messages.jq")),
    ("telegram-export", include_str!("../presets/telegram-export.jq")),
    ("telegram-updates", include_str!("../presets/telegram-updates.jq")),
    ("topiocqa", include_str!("../presets/topiocqa.jq")),
    ("vtt-calls", include_str!("../presets/vtt-calls.jq")),
    ("whatsapp-chat-text", include_str!("../presets/whatsapp-chat-text.jq")),
    ("wildchat-parquet", include_str!("../presets/wildchat-parquet.jq")),
    ("zendesk-messaging-events", include_str!("../presets/zendesk-messaging-events.jq")),
];

/// The program of a preset.
pub fn preset(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, code)| *code)
}

#[cfg(test)]
mod tests;
