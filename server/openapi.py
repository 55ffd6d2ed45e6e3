"""GET /openapi.json: what this server serves, for people's tools. Written here, not derived from the handlers.

What must stay true: every route of the application is described, with every status it answers with.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse

from edgellm.server.answer_schemas import ANSWERS
from edgellm.server.anthropic.schemas import anthropic_paths, anthropic_schemas
from edgellm.server.gate import OPEN_PATHS
from edgellm.server.request_schemas import request_schemas
from edgellm.server.responses.schemas import responses_paths, responses_schemas
from edgellm.server.schema_words import record, reference
from edgellm.server.settings import ServerSettings

_STREAM = (
    "With stream: one `data:` line of JSON per event, comments (`: ping`) while waiting, `data: [DONE]` at the end."
)
_ERRORS = {
    "400": "The body cannot be served; `param` names the field.",
    "401": "No valid API key.",
    "404": "No such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "500": "A fault of the server's; its log has the reason.",
    "503": "No room now, shutting down, or the engine is dead; see Retry-After.",
    "504": "Not finished within the server's time limit.",
}
_OF_POST = ("400", "401", "404", "408", "413", "500", "503")


def add_openapi(app: FastAPI, settings: ServerSettings, vocab_size: int) -> None:
    """Serve the document."""
    document = openapi_document(settings, vocab_size)

    @app.get("/openapi.json")
    async def openapi() -> JSONResponse:
        return JSONResponse(document)


def openapi_document(settings: ServerSettings, vocab_size: int) -> dict[str, Any]:
    """An OpenAPI 3.1 document. `vocab_size`: of the tokenizer."""
    paths = {
        "/v1/chat/completions": {"post": _generating("Answer a conversation", "ChatRequest", "ChatCompletion")},
        "/v1/completions": {"post": _generating("Continue a text", "CompletionRequest", "Completion")},
        "/v1/chat/completions/render": {
            "post": _looking("The prompt that a chat request gives; nothing is generated", "ChatRequest", "Rendered")
        },
        "/tokenize": {"post": _looking("Tokens of a text or a conversation", "TokenizeRequest", "Tokens")},
        "/detokenize": {"post": _looking("Text of tokens", "DetokenizeRequest", "Text")},
        "/v1/models": {"get": _get("The served model under each of its names", "AnyModelList")},
        "/v1/models/{name}": {
            "get": {
                **_get("One model", "AnyModel", "404"),
                "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}],
            }
        },
        "/health": {"get": _status("200 while the engine serves and the server is not told to stop")},
        "/ready": {"get": _status("200 while a request would also find room")},
        "/metrics": {"get": _text("Prometheus metrics", "text/plain")},
        "/dashboard": {"get": _text("A page of what the server is doing; it asks /dashboard/state", "text/html")},
        "/dashboard/state": {"get": _get("What the dashboard shows", None)},
        "/v1/kv/events": {"get": _kv_events()},
        "/openapi.json": {"get": _get("This document", None)},
        **anthropic_paths({code: _ERRORS[code] for code in (*_OF_POST, "504")}),
        **responses_paths({code: _ERRORS[code] for code in (*_OF_POST, "504")}),
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "edgellm", "version": version("edgellm")},
        "paths": paths,
        "components": {
            "schemas": {
                **request_schemas(settings, vocab_size),
                **ANSWERS,
                **anthropic_schemas(settings),
                **responses_schemas(settings, vocab_size),
            }
        },
    }
    if settings.api_keys:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document["security"] = [{"bearer": []}, {"key": []}]
        for path in OPEN_PATHS:
            paths[path]["get"]["security"] = []
    return document


def _json(name: str | None) -> dict[str, Any]:
    return {"application/json": {"schema": {"type": "object"} if name is None else reference(name)}}


def _errors(*codes: str) -> dict[str, Any]:
    return {code: {"description": _ERRORS[code], "content": _json("Error")} for code in codes}


def _get(summary: str, answer: str | None, *codes: str) -> dict[str, Any]:
    responses = {"200": {"description": "OK", "content": _json(answer)}, **_errors("401", *codes)}
    return {"summary": summary, "responses": responses}


def _text(summary: str, kind: str) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "string"}}}
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}, **_errors("401")}}


def _status(summary: str) -> dict[str, Any]:
    responses = {
        code: {"description": text, "content": _json("Status")} for code, text in (("200", "Yes"), ("503", "No"))
    }
    return {"summary": summary, "responses": {**responses, **_errors("401")}}


def _kv_events() -> dict[str, Any]:
    """Endless without `poll`."""
    operation = _get("What changes in the prefix cache, in TensorRT-LLM's form", None, "400", "503")
    found = {"text/event-stream": {"schema": {"type": "string"}}, "application/json": {"schema": {"type": "array"}}}
    operation["responses"]["200"] = {"description": "Events, or with poll=true those that there are", "content": found}
    flag = {"enum": ["true", "false"]}
    schemas = {"snapshots": flag, "poll": flag, "timeout_ms": {"type": "integer"}, "last_event_id": {"type": "string"}}
    operation["parameters"] = [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]
    return operation


def _looking(summary: str, body: str, answer: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {"200": {"description": "OK", "content": _json(answer)}, **_errors(*_OF_POST)},
    }


def _generating(summary: str, body: str, answer: str) -> dict[str, Any]:
    operation = _looking(summary, body, answer)
    operation["responses"]["200"] = {
        "description": _STREAM,
        "content": {**_json(answer), "text/event-stream": {"schema": _event(f"{answer}Chunk")}},
    }
    operation["responses"] |= _errors("504")
    return operation


def _event(chunk: str) -> dict[str, Any]:
    """Of one event; the data of the last is ``[DONE]``."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": reference(chunk)}
    return record({"data": {"anyOf": [{"const": "[DONE]"}, data]}})
