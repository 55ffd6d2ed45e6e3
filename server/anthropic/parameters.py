"""What becomes of every field of a Messages request; see `server.parameters`, whose rules hold here too."""

from __future__ import annotations

from typing import Final

from edgellm.server.parameters import Parameters

_NOT_STORED: Final = "nothing is stored between requests"

MESSAGES: Final = Parameters(
    honoured={
        "model": "name or alias of the served model; left out: the served model",
        "max_tokens": "limit of generated tokens; more than the context has left is clamped; count_tokens needs none",
        "messages": "the conversation: text, thinking, tool calls and their results",
        "system": "a string or text blocks; a preamble that differs from session to session is removed",
        "tools": "tools with an input_schema; those of Anthropic's own types are left out",
        "tool_choice": "type auto, any, tool or none; disable_parallel_tool_use: the answer ends after its first call",
        "thinking": "type enabled (budget_tokens: reasoning is closed after that many), adaptive, or "
        "disabled, which between_tools means too; left out: the server's default",
        "output_config": "format: a JSON schema that the answer follows; effort 'none': thinking off unless `thinking` "
        "says otherwise; other efforts have no effect",
        "output_format": "the same as output_config.format",
        "context_management": "an edit clear_thinking_… with keep 'all': earlier turns keep their reasoning; other "
        "edits have no effect: the prompt is what the messages say",
        "stop_sequences": "the match is not part of the answer",
        "temperature": "0 (greedy) to 2",
        "top_p": "above 0, up to 1",
        "top_k": "0 or -1: off",
        "seed": "left out: fresh randomness at temperatures above 0",
        "stream": "server-sent events",
        "cache_control": "the prompt's tokens stay in the cache longer; ttl 5m or 1h",
        "cache_salt": "cached prefixes are shared only among requests with the same salt",
        "kv_retention": "how long the cache keeps which tokens; goes before cache_control",
        "chat_template_kwargs": "arguments of the checkpoint's template; go before thinking",
    },
    refused={
        "compaction": "this server makes no summaries; ask for one in words",
        "mcp_servers": "this server calls no MCP servers; connect them to the client",
        "nvext": "belongs to /v1/chat/completions; here use cache_salt and the routing headers",
        "thread": f"{_NOT_STORED}; send the whole conversation",
    },
    ignored={
        "betas": "betas are known by their fields",
        "billing_policy": "nothing is billed",
        "container": "there are no containers",
        "diagnostics": _NOT_STORED,
        "fallback_credit_token": "nothing is billed",
        "fallbacks": "there is one model, which refuses nothing by policy",
        "inference_geo": "the server is where it is",
        "metadata": "a note of the client's; nothing is kept",
        "service_tier": "there is one tier",
        "speed": "there is one speed",
        "user_profile_id": "nothing is billed",
        "workspace_id": "there are no workspaces",
    },
)

TOOL: Final = Parameters(
    honoured={
        "type": "'custom' or left out; tools of other types are left out of the prompt",
        "name": "1 to 256 characters without spaces or angle brackets",
        "description": "printed by the template",
        "input_schema": "JSON schema of the call's input",
        "strict": "true: calls follow the schema",
        "cache_control": "system prompt and tools stay in the cache longer anyhow",
    },
    refused={},
    ignored={
        "allowed_callers": "only the model calls",
        "defer_loading": "every tool is in the prompt from the start",
        "eager_input_streaming": "input is always streamed as it is made",
        "input_examples": "templates print none",
    },
)
