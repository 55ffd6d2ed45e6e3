"""GET /dashboard and /dashboard/state: a page of what the server is doing now, for people.

The page is one static file that holds no data and needs no key; what it shows it asks of `/dashboard/state`, which
needs one.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, JSONResponse

from edgellm.server.services import Services
from edgellm.server.sessions.table import SessionRow
from edgellm.server.settings import ServerSettings

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_MOST_SESSIONS = 500  # shown


def add_dashboard(app: FastAPI, llm: LLM, settings: ServerSettings, services: Services) -> None:
    page = files("edgellm.server.dashboard").joinpath("page.html").read_text(encoding="utf-8")
    started = time.monotonic()

    @app.get("/dashboard")
    async def dashboard() -> HTMLResponse:
        return HTMLResponse(page, headers=_HEADERS)

    @app.get("/dashboard/state")
    async def state() -> JSONResponse:
        now = _state(llm, settings, services) | {"uptime_s": time.monotonic() - started}
        return JSONResponse(now, headers={"cache-control": "no-store"})


def _state(llm: LLM, settings: ServerSettings, services: Services) -> dict[str, Any]:
    """What the page shows. Bytes, tokens, seconds; shares are 0 to 1, null where there is nothing to share."""
    stats, now = llm.engine.stats(), time.time()
    cache, tier, admission = stats.cache, stats.tier, services.admission
    length = None if not stats.verify_steps else 1 + stats.accepted_tokens / stats.verify_steps
    return {
        "model": settings.model,
        "unix_ms": round(now * 1e3),
        "healthy": stats.healthy,
        "reason": stats.error,
        "engine": {
            "running": stats.running,
            "queued": stats.queued,
            "slots": stats.slots,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "prefilled_tokens": stats.prefilled_tokens,
            "generated_tokens": stats.generated_tokens,
            "accepted_length": length,
        },
        "cache": {
            "lookups": cache.lookups,
            "hits": cache.hits,
            "hit_rate": cache.hit_rate,
            "evicted_blocks": cache.evicted_blocks,
            "evicted_snapshots": cache.evicted_snapshots,
            "block_budget_bytes": cache.block_budget_bytes,
            "snapshot_budget_bytes": cache.snapshot_budget_bytes,
            "block_bytes_by_priority": dict(cache.block_bytes_by_priority),
            "snapshot_bytes_by_priority": dict(cache.snapshot_bytes_by_priority),
            "tier": {"bytes": tier.bytes, "budget_bytes": tier.budget_bytes} if tier.budget_bytes else None,
        },
        "admission": None if admission is None else asdict(admission.stats()),
        "sessions": [_session(row, now) for row in services.sessions.snapshot()[:_MOST_SESSIONS]],
    }


def _session(row: SessionRow, now: float) -> dict[str, Any]:
    return {
        "id": row.session_id,
        "parent": row.parent_id,
        "harness": row.harness,
        "phase": row.phase,
        "turns": row.turns,
        "failed": row.failed,
        "tokens": row.prompt_tokens,
        "cached_share": row.cached_share,
        "accepted_length": row.accepted_length,
        "held_s": row.held_s,
        "idle_s": max(now - row.last_seen, 0.0),
    }
