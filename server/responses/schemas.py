"""The Responses routes for /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edgellm.server.request_schemas import request_schemas, table_schema
from edgellm.server.responses.parameters import RESPONSE
from edgellm.server.schema_words import BOOLEAN, COUNT, OPEN, STRING, TEXT, Schema, array, nullable, record, reference
from edgellm.server.settings import ServerSettings

_STREAM: Final = (
    "With stream: events called by their type, whose data is one line of JSON, comments (`: ping`) while waiting; "
    "response.completed, response.incomplete or response.failed is the last."
)
_PART = record({"type": {**TEXT, "minLength": 1}, "text": STRING}, ("type",))
_ITEM: Schema = {
    **record(
        {
            "type": {**STRING, "description": "left out: message"},
            "role": {"enum": ["user", "assistant", "system", "developer", None]},
            "content": nullable("string", "array", items=_PART),
            "id": STRING,
            "call_id": STRING,
            "name": STRING,
            "arguments": STRING,
            "input": STRING,
            "output": nullable("string", "array", items=_PART),
            "summary": nullable("array", items=_PART),
        },
        (),
    ),
    "description": "message, reasoning, function_call, custom_tool_call and their results, item_reference",
}
_TOOL = {
    **record(
        {
            "type": {"enum": ["function", "custom", "namespace"]},
            "name": {**TEXT, "pattern": r"^[^\s<>]{1,256}$"},
            "description": STRING,
            "parameters": OPEN,
            "strict": BOOLEAN,
            "format": OPEN,
            "tools": nullable("array", items=OPEN),
        },
        ("type", "name"),
    ),
}
_USAGE: Schema = {
    **record(
        {
            "input_tokens": COUNT,
            "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
            "output_tokens": COUNT,
            "output_tokens_details": record({"reasoning_tokens": COUNT}),
            "total_tokens": COUNT,
        }
    ),
    "type": ["object", "null"],
}
_OUTPUT = record(
    {
        "id": TEXT,
        "type": {"enum": ["message", "reasoning", "function_call", "custom_tool_call"]},
        "status": {"enum": ["in_progress", "completed", "incomplete"]},
    }
)
_RESPONSE = record(
    {
        "id": TEXT,
        "object": {"const": "response"},
        "created_at": COUNT,
        "completed_at": nullable("integer"),
        "status": {"enum": ["in_progress", "completed", "incomplete", "cancelled", "failed"]},
        "model": TEXT,
        "output": array(_OUTPUT),
        "usage": _USAGE,
        "error": OPEN,
        "incomplete_details": OPEN,
        "instructions": STRING,
        "previous_response_id": STRING,
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "store": {"type": "boolean"},
        "tools": array({"type": "object"}),
    }
)
_SALT = {"name": "cache_salt", "in": "query", "required": False, "schema": TEXT, "description": "the tenant, if any"}
_ID = {"name": "response_id", "in": "path", "required": True, "schema": TEXT}
_PAGE = [
    {"name": "after", "in": "query", "required": False, "schema": TEXT},
    {"name": "limit", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
    {"name": "order", "in": "query", "required": False, "schema": {"enum": ["asc", "desc"]}},
]


def responses_schemas(settings: ServerSettings, vocab_size: int) -> dict[str, Schema]:
    """Schemas by name."""
    return {
        "ResponseRequest": table_schema(RESPONSE, _types(settings, vocab_size), "input"),
        "Response": _RESPONSE,
        "ResponseEvent": record({"type": TEXT, "sequence_number": COUNT}),
        "ResponseDeleted": record({"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}}),
        "ResponseInputTokens": record({"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}),
        "ResponseItemList": record(
            {
                "object": {"const": "list"},
                "data": array(_ITEM),
                "first_id": STRING,
                "last_id": STRING,
                "has_more": {"type": "boolean"},
            }
        ),
    }


def responses_paths(errors: Mapping[str, str]) -> dict[str, Any]:
    """The routes. `errors`: what statuses mean."""

    def operation(summary: str, answer: str, *statuses: str, **more: Any) -> dict[str, Any]:
        ok = {"description": "OK", "content": {"application/json": {"schema": reference(answer)}}}
        failed = {
            status: {"description": errors[status], "content": {"application/json": {"schema": reference("Error")}}}
            for status in statuses
        }
        return {"summary": summary, "responses": {"200": ok, **failed}, **more}

    body = {"required": True, "content": {"application/json": {"schema": reference("ResponseRequest")}}}
    of_post = tuple(status for status in errors if status != "504")
    create = operation("Answer a conversation", "Response", *errors, requestBody=body)
    event = {"type": "string", "contentMediaType": "application/json", "contentSchema": reference("ResponseEvent")}
    created = create["responses"]["200"]
    created["description"] = _STREAM
    created["content"]["text/event-stream"] = {"schema": record({"event": TEXT, "data": event})}
    known = {"parameters": [_ID, _SALT]}
    return {
        "/v1/responses": {"post": create},
        "/v1/responses/input_tokens": {
            "post": operation("Tokens of a prompt", "ResponseInputTokens", *of_post, requestBody=body)
        },
        "/v1/responses/{response_id}": {
            "get": operation("A response that is stored or runs", "Response", "400", "401", "404", **known),
            "delete": operation("Forget a response", "ResponseDeleted", "401", "404", **known),
        },
        "/v1/responses/{response_id}/cancel": {
            "post": operation("Stop a response that runs", "Response", "401", "404", "503", **known)
        },
        "/v1/responses/{response_id}/input_items": {
            "get": operation(
                "Input items of a response", "ResponseItemList", "400", "401", "404", parameters=[_ID, _SALT, *_PAGE]
            )
        },
    }


def _types(settings: ServerSettings, vocab_size: int) -> dict[str, Schema]:
    chat = request_schemas(settings, vocab_size)["ChatRequest"]["properties"]
    shared = {
        name: {key: value for key, value in chat[name].items() if key != "description"}
        for name in RESPONSE.honoured.keys() & chat.keys()
    }
    return {
        **shared,
        "input": {"anyOf": [TEXT, array(_ITEM, minItems=1, maxItems=settings.max_messages)]},
        "instructions": STRING,
        "previous_response_id": STRING,
        "store": BOOLEAN,
        "max_output_tokens": nullable("integer", minimum=1),
        "tools": nullable("array", items=_TOOL, maxItems=settings.max_tools),
        "text": nullable("object", properties={"format": OPEN, "verbosity": STRING}),
        "reasoning": nullable(
            "object", properties={"effort": STRING, "summary": {"enum": ["auto", "concise", "detailed", "none", None]}}
        ),
        "include": nullable("array", items=TEXT),
        "metadata": nullable("object", additionalProperties=TEXT, maxProperties=16),
        "truncation": {"enum": ["disabled", None]},
    }
