"""JSON schemas of request bodies, for /openapi.json.

Bodies are typed but open: unknown fields are allowed, as the readers allow them. The readers decide; these schemas tell
the same in a form that tools read. Sentences come from the tables of `parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgellm.decode.params import MAX_LOGPROBS
from edgellm.server.messages import ROLES
from edgellm.server.parameters import CHAT, COMPLETION, MESSAGE, STREAM_OPTIONS, Parameters
from edgellm.server.schema_words import BOOLEAN, OPEN, STRING, TEXT, Schema, array, between, nullable, record, reference
from edgellm.server.settings import ServerSettings
from edgellm.server.structured import MAX_CHOICES, THINKING_BUDGETS


def _list(items: Schema, **more: Any) -> Schema:
    return nullable("array", items=items, **more)


def _token(vocab_size: int) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}


_PART = record({"type": {"enum": ["text"]}, "text": TEXT})
_PREDICTED = record({"type": {"enum": ["content"]}, "content": {"anyOf": [TEXT, array(_PART)]}})
_PREDICTION: Schema = {**_PREDICTED, "type": ["object", "null"]}


_DURATION = nullable("number", exclusiveMinimum=0)
_RETENTION_RANGE = record(
    {
        "token_start": nullable("integer", minimum=0),
        "token_end": nullable("integer", minimum=1),
        "priority": nullable("integer", minimum=0, maximum=100),
        "duration_ms": _DURATION,
    },
    (),
)
_RETENTION = record(
    {
        "token_range_retention_configs": _list(_RETENTION_RANGE),
        "decode_retention_priority": nullable("integer", minimum=0, maximum=100),
        "decode_duration_ms": _DURATION,
    },
    (),
)


def _sampling(settings: ServerSettings, vocab_size: int) -> dict[str, Schema]:
    return {
        "model": {"enum": [*settings.names, None]},
        "temperature": between(0, 2),
        "top_p": between(0, 1),
        "top_k": nullable("integer", minimum=-1),
        "min_p": between(0, 1),
        "presence_penalty": between(-2, 2),
        "frequency_penalty": between(-2, 2),
        "repetition_penalty": between(0.01, 10),
        "logit_bias": nullable("object", additionalProperties={"type": "number", "minimum": -100, "maximum": 100}),
        "seed": nullable("integer"),
        "n": nullable("integer", minimum=1, maximum=settings.max_n),
        "max_tokens": nullable("integer", minimum=1),
        "max_completion_tokens": nullable("integer", minimum=1),
        "min_tokens": nullable("integer", minimum=0),
        "stop": nullable("string", "array", items=TEXT, maxItems=settings.max_stops),
        "stop_token_ids": _list(_token(vocab_size)),
        "ignore_eos": BOOLEAN,
        "stream": BOOLEAN,
        "stream_options": {
            **table_schema(STREAM_OPTIONS, dict.fromkeys(STREAM_OPTIONS.honoured, BOOLEAN)),
            "type": ["object", "null"],
        },
        "prediction": _PREDICTION,
        "cache_salt": STRING,
        "nvext": OPEN,
        "kv_retention": {**_RETENTION, "type": ["object", "null"]},
        "skip_special_tokens": BOOLEAN,
        "guided_json": nullable("object", "string"),
        "guided_regex": STRING,
        "guided_choice": _list(TEXT, minItems=1, maxItems=MAX_CHOICES),
        "guided_grammar": STRING,
        "structured_outputs": OPEN,
        "json_schema": nullable("object", "string"),
        "regex": STRING,
        "ebnf": STRING,
        "grammar": STRING,
    }


def _chat(settings: ServerSettings, vocab_size: int) -> dict[str, Schema]:
    return {
        **_sampling(settings, vocab_size),
        "messages": array(reference("Message"), minItems=1, maxItems=settings.max_messages),
        "tools": _list(reference("Tool"), maxItems=settings.max_tools),
        "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required", None]}, {"type": "object"}]},
        "parallel_tool_calls": BOOLEAN,
        "response_format": nullable(
            "object", properties={"type": {"enum": ["text", "json_object", "json_schema"]}, "json_schema": OPEN}
        ),
        "modalities": _list({"enum": ["text"]}),
        "logprobs": BOOLEAN,
        "top_logprobs": nullable("integer", minimum=0, maximum=MAX_LOGPROBS),
        "reasoning_effort": STRING,
        "enable_thinking": BOOLEAN,
        **dict.fromkeys(THINKING_BUDGETS, nullable("integer", minimum=0)),
        "chat_template_kwargs": OPEN,
        "add_generation_prompt": BOOLEAN,
        "continue_final_message": BOOLEAN,
    }


def _completion(settings: ServerSettings, vocab_size: int) -> dict[str, Schema]:
    text: Schema = {**TEXT, "minLength": 1}
    ids = array(_token(vocab_size), minItems=1)
    texts, many_ids = (array(one, minItems=1, maxItems=settings.max_choices) for one in (text, ids))
    return {
        **_sampling(settings, vocab_size),
        "prompt": {"anyOf": [text, ids, texts, many_ids]},
        "echo": BOOLEAN,
        "best_of": nullable("integer", minimum=1),
        "logprobs": nullable("integer", minimum=0, maximum=MAX_LOGPROBS),
    }


_CALLED = record({"name": {**TEXT, "minLength": 1}, "arguments": nullable("string", "object")}, ("name",))
_CALL = record({"id": STRING, "type": {"enum": ["function", None]}, "function": _CALLED}, ("function",))
_MESSAGE: dict[str, Schema] = {
    "role": {"enum": list(ROLES)},
    "content": nullable("string", "array", items=_PART),
    "refusal": STRING,
    "name": STRING,
    "tool_calls": _list(_CALL),
    "tool_call_id": STRING,
    "reasoning_content": nullable("string", "array", items=TEXT),
    "reasoning": nullable("string", "array", items=TEXT),
}
_FUNCTION = {
    "name": {**TEXT, "pattern": r"^[^\s<>]{1,256}$"},
    "description": STRING,
    "parameters": OPEN,
    "strict": BOOLEAN,
}
_TOOL = record({"type": {"enum": ["function"]}, "function": record(_FUNCTION, ("name",))})


def table_schema(table: Parameters, types: Mapping[str, Schema], *required: str) -> Schema:
    """A body whose fields are those of `table`; refused and ignored ones are listed with their reason."""
    properties = {name: {**types.get(name, {}), "description": text} for name, text in table.honoured.items()}
    properties |= {name: {"description": f"Refused: {why}"} for name, why in table.refused.items()}
    properties |= {name: {"description": f"Ignored: {why}"} for name, why in table.ignored.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


def request_schemas(settings: ServerSettings, vocab_size: int) -> dict[str, Schema]:
    """Schemas of bodies by name."""
    chat = _chat(settings, vocab_size)
    of_prompt = (
        *("tools", "reasoning_effort", "enable_thinking", "chat_template_kwargs"),
        *("add_generation_prompt", "continue_final_message"),
    )
    return {
        "ChatRequest": table_schema(CHAT, chat, "messages"),
        "CompletionRequest": table_schema(COMPLETION, _completion(settings, vocab_size), "prompt"),
        "Message": table_schema(MESSAGE, _MESSAGE, "role"),
        "Tool": _TOOL,
        "TokenizeRequest": {
            **record(
                {
                    "model": chat["model"],
                    "prompt": STRING,
                    "messages": _list(reference("Message"), minItems=1, maxItems=settings.max_messages),
                    **{name: chat[name] for name in of_prompt},
                    "return_token_strs": BOOLEAN,
                },
                (),
            ),
            "description": "Either prompt or messages.",
        },
        "DetokenizeRequest": record({"model": chat["model"], "tokens": array(_token(vocab_size))}, ("tokens",)),
    }
