"""JSON schemas of the Messages routes, for /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgellm.server.anthropic.parameters import MESSAGES, TOOL
from edgellm.server.anthropic.turns import ROLES
from edgellm.server.request_schemas import table_schema
from edgellm.server.schema_words import (
    BOOLEAN,
    COUNT,
    OPEN,
    STRING,
    TEXT,
    Schema,
    array,
    between,
    nullable,
    record,
    reference,
)
from edgellm.server.settings import ServerSettings

_MARK = {
    **record({"type": {"enum": ["ephemeral"]}, "ttl": {"enum": ["5m", "1h", None]}}, ("type",)),
    "type": ["object", "null"],
}
_TEXT_BLOCK = record({"type": {"const": "text"}, "text": TEXT, "cache_control": _MARK}, ("type", "text"))
_BLOCK = {
    **record({"type": {**TEXT, "minLength": 1}, "cache_control": _MARK}, ("type",)),
    "description": "text, thinking, tool_use, tool_result; what Anthropic's own tools left is dropped",
}
_TYPES: dict[str, Schema] = {
    "temperature": between(0, 2),
    "top_p": between(0, 1),
    "top_k": nullable("integer", minimum=-1),
    "seed": nullable("integer"),
    "max_tokens": {"type": "integer", "minimum": 1},
    "system": nullable("string", "array", items=_TEXT_BLOCK),
    "tool_choice": nullable(
        "object",
        properties={
            "type": {"enum": ["auto", "any", "tool", "none"]},
            "name": STRING,
            "disable_parallel_tool_use": BOOLEAN,
        },
    ),
    "thinking": nullable(
        "object",
        properties={
            "type": {"enum": ["enabled", "adaptive", "between_tools", "disabled"]},
            "budget_tokens": nullable("integer", minimum=0),
        },
    ),
    "context_management": OPEN,
    "output_config": nullable("object", properties={"effort": STRING, "format": OPEN}),
    "output_format": OPEN,
    "stream": BOOLEAN,
    "cache_control": _MARK,
    "cache_salt": STRING,
    "kv_retention": OPEN,
    "chat_template_kwargs": OPEN,
}
_TOOL: dict[str, Schema] = {
    "type": STRING,
    "name": {**TEXT, "pattern": r"^[^\s<>]{1,256}$"},
    "description": STRING,
    "input_schema": OPEN,
    "strict": BOOLEAN,
    "cache_control": _MARK,
}
_USAGE = record(
    {
        "input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_read_input_tokens": COUNT,
        "output_tokens": COUNT,
        "output_tokens_details": record({"thinking_tokens": COUNT}),
    },
    ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"),
)
_SAID = {
    "oneOf": [
        record({"type": {"const": "thinking"}, "thinking": TEXT, "signature": {**TEXT, "minLength": 1}}),
        record({"type": {"const": "text"}, "text": TEXT}),
        record({"type": {"const": "tool_use"}, "id": TEXT, "name": TEXT, "input": {"type": "object"}}),
    ]
}
_ANSWER: dict[str, Schema] = {
    "id": TEXT,
    "type": {"const": "message"},
    "role": {"const": "assistant"},
    "model": TEXT,
    "content": array(_SAID),
    "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    "stop_sequence": STRING,
    "usage": _USAGE,
}
_INDEXED: dict[str, dict[str, Schema]] = {
    "content_block_start": {"content_block": OPEN},
    "content_block_delta": {"delta": OPEN},
    "content_block_stop": {},
}
_EVENTS: list[Schema] = [
    record({"type": {"const": "message_start"}, "message": {"type": "object"}}),
    *(record({"type": {"const": name}, "index": COUNT, **more}) for name, more in _INDEXED.items()),
    record({"type": {"const": "message_delta"}, "delta": {"type": "object"}, "usage": _USAGE}),
    *(record({"type": {"const": name}}) for name in ("message_stop", "ping")),
    reference("AnthropicError"),
]
_CARD = record(
    {
        "type": {"const": "model"},
        "id": TEXT,
        "display_name": TEXT,
        "created_at": {**TEXT, "format": "date-time"},
        "max_input_tokens": COUNT,
        "max_tokens": COUNT,
    }
)
_EVENT = record({"event": TEXT, "data": {"contentMediaType": "application/json", "contentSchema": {"oneOf": _EVENTS}}})
_ANSWERS: dict[str, Schema] = {
    "AnthropicAnswer": record(_ANSWER),
    "AnthropicError": record({"type": {"const": "error"}, "error": record({"type": TEXT, "message": TEXT})}),
    "AnthropicModel": _CARD,
    "AnthropicModelList": record(
        {"data": array(_CARD), "has_more": {"const": False}, "first_id": TEXT, "last_id": TEXT}
    ),
    "TokenCount": record({"input_tokens": COUNT}),
    "AnyModel": {"oneOf": [reference("Model"), reference("AnthropicModel")]},
    "AnyModelList": {"oneOf": [reference("ModelList"), reference("AnthropicModelList")]},
}
_NEEDED = {"MessagesRequest": ("max_tokens", "messages"), "CountTokensRequest": ("messages",)}


def anthropic_schemas(settings: ServerSettings) -> dict[str, Schema]:
    """Schemas of bodies by name."""
    types: dict[str, Schema] = {
        **_TYPES,
        "model": {"enum": [*settings.names, None]},
        "messages": array(reference("AnthropicMessage"), minItems=1, maxItems=settings.max_messages),
        "tools": nullable("array", items=reference("AnthropicTool"), maxItems=settings.max_tools),
        "stop_sequences": nullable("array", items={**TEXT, "minLength": 1}, maxItems=settings.max_stops),
    }
    return {
        **_ANSWERS,
        **{name: table_schema(MESSAGES, types, *needed) for name, needed in _NEEDED.items()},
        "AnthropicMessage": record(
            {"role": {"enum": list(ROLES)}, "content": {"anyOf": [TEXT, array(_BLOCK)]}},
        ),
        "AnthropicTool": table_schema(TOOL, _TOOL, "name"),
    }


def anthropic_paths(statuses: Mapping[str, str]) -> dict[str, Any]:
    """The routes. `statuses`: what those other than 200 mean."""
    errors = {code: {"description": text, "content": _json("AnthropicError")} for code, text in statuses.items()}
    streamed = {
        "description": "With stream: an event for each piece, named by its type; `ping` while waiting.",
        "content": {**_json("AnthropicAnswer"), "text/event-stream": {"schema": _EVENT}},
    }
    count = {"description": "OK", "content": _json("TokenCount")}
    return {
        "/v1/messages": {
            "post": {
                "summary": "Answer a conversation, in the form of Anthropic's Messages API",
                "requestBody": {"required": True, "content": _json("MessagesRequest")},
                "responses": {"200": streamed, **errors},
            }
        },
        "/v1/messages/count_tokens": {
            "post": {
                "summary": "Tokens of the prompt that such a conversation gives; nothing is generated",
                "requestBody": {"required": True, "content": _json("CountTokensRequest")},
                "responses": {"200": count, **{code: error for code, error in errors.items() if code != "504"}},
            }
        },
    }


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": reference(name)}}
