"""What becomes of every field of a Responses request, and of every kind of tool and input item."""

from __future__ import annotations

from typing import Final

from edgellm.server.parameters import CHAT, Parameters

RESPONSE: Final = Parameters(
    honoured={
        **{
            name: CHAT.honoured[name]
            for name in (
                *("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
                *("repetition_penalty", "logit_bias", "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos"),
                *("skip_special_tokens", "prediction", "cache_salt", "kv_retention", "chat_template_kwargs"),
                *("enable_thinking", "max_thinking_tokens", "thinking_token_budget", "thinking_budget"),
                *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
                *("json_schema", "regex", "ebnf", "grammar"),
            )
            if name in CHAT.honoured
        },
        "input": "a text, or an array of items: messages, reasoning, calls and their results, references to items",
        "instructions": "the system prompt, in front of system and developer messages of the input",
        "previous_response_id": "the conversation goes on behind that response; its instructions are not taken over",
        "store": "false: the response cannot be fetched or continued by its id; left out: it can, while there is room",
        "stream": "server-sent events, each called by its type",
        "max_output_tokens": "limit of generated tokens, reasoning included; more than the context has left is clamped",
        "tools": "function and custom tools, also in namespaces",
        "tool_choice": "auto, none, required, a function or custom tool, or allowed_tools",
        "parallel_tool_calls": "false: the answer ends with its first call",
        "text": "format: text, json_object or json_schema; verbosity has no effect",
        "reasoning": "effort none: thinking off, else as the server is set; summary: see `summary` of reasoning items",
        "include": "reasoning.encrypted_content has no effect, reasoning is given as text; nor has what belongs "
        "to tools that are not offered; message.output_text.logprobs is refused",
        "metadata": "up to 16 texts, given back; session_id and parent_session_id are added if the client named them",
        "truncation": "only disabled: a conversation that is too long is an error",
    },
    refused={
        **{name: reason for name, reason in CHAT.refused.items() if name not in ("function_call", "functions")},
        "background": "responses are made while the client waits; stream them",
        "conversation": "conversations are not kept on the server; use previous_response_id",
        "context_management": "conversations are not compacted on the server",
        "max_tool_calls": "tools are called by the client, which can count",
        "messages": "belongs to /v1/chat/completions; use input",
        "moderation": "moderation is not supported",
        "n": "a response is one answer",
        "nvext": "belongs to /v1/chat/completions; here use cache_salt, max_thinking_tokens and the routing headers",
        "prompt": "prompt templates are not kept on the server",
        "response_format": "belongs to /v1/chat/completions; use text.format",
        "top_logprobs": "log-probabilities are given by /v1/chat/completions",
    },
    ignored={
        **{name: reason for name, reason in CHAT.ignored.items() if name not in ("metadata", "store", "verbosity")},
        "access_programs": "there are none",
        "background_options": "there are no background responses",
        "client_metadata": "a note of the client's; nothing depends on it",
        "image": "the model reads text",
        "stream_options": "no padding is sent; use TLS and trust the network, or neither",
        "user": "names the end user; nothing depends on it",
    },
)

TOOL_REFUSED: Final = {
    **dict.fromkeys(
        ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        'not offered by this server; in Codex set web_search="disabled"',
    ),
    "local_shell": 'not offered by this server; declare a function, in Codex shell_type = "unified_exec" of the model',
    "shell": "not offered by this server; declare a function",
    "apply_patch": "not offered by this server; declare a custom tool",
    "tool_search": "tools are not searched for on this server; in Codex supports_search_tool = false of the model",
    "image_generation": "not offered by this server; in Codex features.image_generation = false",
    "programmatic_tool_calling": "not offered by this server",
    "file_search": "not offered by this server",
    "code_interpreter": "not offered by this server",
    "computer_use_preview": "not offered by this server",
    "computer_use": "not offered by this server",
    "computer": "not offered by this server",
    "mcp": "not offered by this server; let the client call the MCP server",
}

# Kinds of input items that say nothing to the model here: work of tools that ran elsewhere, whose results the messages
# behind them tell.
ITEM_IGNORED: Final = frozenset(
    {
        *("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call"),
        *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
        *("tool_search_call", "tool_search_output", "computer_call"),
    }
)
