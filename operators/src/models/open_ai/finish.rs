//! What the reason for the end of a text (`finish_reason`) means.

/// Reasons for the end of a text, in lower case. Each server has its own names.
const ENDS: &[&str] = &[
    "stop",
    "eos",
    "eos_token",
    "eos_token_id",
    "end_turn",
    "end",
    "stop_sequence",
    "stop_token",
    "stop_string",
    "complete",
    "completed",
    "done",
    "finish",
    "finished",
    "normal",
    "success",
    "tool_calls",
    "tool_use",
    "function_call",
    "null",
    "none",
];
const LIMITS: &[&str] = &[
    "length",
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "max_completion_tokens",
    "max_length",
    "model_length",
    "token_limit",
    "context_length",
    "context_length_exceeded",
    "model_context_window_exceeded",
    "limit",
];
const WITHHELD: &[&str] = &[
    "content_filter",
    "content-filter",
    "safety",
    "recitation",
    "blocklist",
    "prohibited_content",
    "spii",
    "language",
    "image_safety",
    "refusal",
    "sensitive",
    "content_filtered",
    "error_toxic",
    "guardrail_intervened",
];
const BROKEN_OFF: &[&str] = &[
    "error",
    "abort",
    "aborted",
    "cancel",
    "canceled",
    "cancelled",
    "insufficient_system_resource",
    "timeout",
    "time_limit",
    "network_error",
    "server_error",
    "failed",
    "interrupted",
    "preempted",
    "user_cancel",
    "overloaded",
    "malformed_function_call",
    "unexpected_tool_call",
    "other",
    "finish_reason_unspecified",
];

/// How a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It is complete.
    Complete,
    /// A limit of tokens is reached.
    Limit,
    /// The server withholds it.
    Withheld,
    /// The server broke it off.
    BrokenOff,
    /// The reason says nothing that is known.
    Unknown,
}

/// The meaning of a reason, whatever its case.
pub(super) fn end_of(reason: &str) -> End {
    let reason = reason.to_ascii_lowercase();
    let known = [(ENDS, End::Complete), (LIMITS, End::Limit), (WITHHELD, End::Withheld), (BROKEN_OFF, End::BrokenOff)];
    known.into_iter().find(|(names, _)| names.contains(&reason.as_str())).map_or(End::Unknown, |(_, end)| end)
}
