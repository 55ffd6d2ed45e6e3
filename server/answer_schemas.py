"""JSON schemas of answers, for /openapi.json."""

from __future__ import annotations

from edgellm.server.schema_words import COUNT, OPEN, STRING, TEXT, Schema, array, nullable, record, reference
from edgellm.server.settings import REASONING_FIELDS


def _envelope(kind: str, choice: Schema, usage: Schema) -> Schema:
    """An answer, or a chunk of one."""
    head: dict[str, Schema] = {
        "id": TEXT,
        "object": {"const": kind},
        "created": COUNT,
        "model": TEXT,
        "system_fingerprint": TEXT,
    }
    return record({**head, "choices": array(choice), "usage": usage}, (*head, "choices"))


_USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
        "completion_tokens_details": record(
            {"reasoning_tokens": COUNT, "accepted_prediction_tokens": COUNT, "rejected_prediction_tokens": COUNT}, ()
        ),
    },
    ("prompt_tokens", "completion_tokens", "total_tokens"),
)
_FUNCTION = {"name": TEXT, "arguments": TEXT}
_CALL = record({"id": TEXT, "type": {"const": "function"}, "function": record(_FUNCTION)})
_CALL_DELTA = record(
    {"index": COUNT, "id": TEXT, "type": {"const": "function"}, "function": record(_FUNCTION, ())},
    ("index", "function"),
)
_MESSAGE_PARTS: dict[str, Schema] = {"role": {"const": "assistant"}, "content": STRING, "refusal": {"type": "null"}}
_FINISH = ("stop", "length", "tool_calls")
_TEXT_CHOICE: dict[str, Schema] = {
    "index": COUNT,
    "text": TEXT,
    "logprobs": OPEN,
    "finish_reason": {"enum": ["stop", "length"]},
}
ANSWERS: dict[str, Schema] = {
    "ChatCompletion": _envelope(
        "chat.completion",
        record(
            {
                "index": COUNT,
                "message": record(
                    {
                        **_MESSAGE_PARTS,
                        **dict.fromkeys(REASONING_FIELDS, TEXT),
                        "tool_calls": array(_CALL),
                    },
                    tuple(_MESSAGE_PARTS),
                ),
                "logprobs": OPEN,
                "finish_reason": {"enum": list(_FINISH)},
            }
        ),
        _USAGE,
    ),
    "ChatCompletionChunk": _envelope(
        "chat.completion.chunk",
        record(
            {
                "index": COUNT,
                "delta": record(
                    {
                        "role": {"const": "assistant"},
                        "content": TEXT,
                        **dict.fromkeys(REASONING_FIELDS, TEXT),
                        "tool_calls": array(_CALL_DELTA),
                    },
                    (),
                ),
                "logprobs": OPEN,
                "finish_reason": {"enum": [*_FINISH, None]},
            },
            ("index", "delta", "finish_reason"),
        ),
        {"anyOf": [_USAGE, {"type": "null"}]},
    ),
    "Completion": _envelope("text_completion", record(_TEXT_CHOICE), _USAGE),
    "CompletionChunk": _envelope(
        "text_completion",
        record({**_TEXT_CHOICE, "finish_reason": {"enum": ["stop", "length", None]}}),
        {"anyOf": [_USAGE, {"type": "null"}]},
    ),
    "Model": record(
        {
            "id": TEXT,
            "object": {"const": "model"},
            "created": COUNT,
            "owned_by": TEXT,
            "root": TEXT,
            "max_model_len": COUNT,
            "context_window": COUNT,
        }
    ),
    "ModelList": record({"object": {"const": "list"}, "data": array(reference("Model"))}),
    "Tokens": record(
        {
            "tokens": array(COUNT),
            "count": COUNT,
            "max_model_len": COUNT,
            "token_strs": nullable("array", items=TEXT),
        }
    ),
    "Text": record({"prompt": TEXT}),
    "Rendered": record(
        {
            "prompt": TEXT,
            "token_ids": array(COUNT),
            "count": COUNT,
            "max_model_len": COUNT,
            "stable_lengths": array(COUNT),
            "thinking_open": {"type": "boolean"},
        }
    ),
    "Status": record({"status": {"enum": ["ok", "ready", "dead", "draining", "busy"]}}),
    "Error": record({"error": record({"message": TEXT, "type": TEXT, "param": STRING, "code": STRING})}),
}
