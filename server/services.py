"""What runs beside the routes for as long as the application does: the store of responses, followers of the cache, the
request trace, admission. Made with the application, closed with it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from edgellm.server.admission.budget import Budget
from edgellm.server.admission.gate import Admission
from edgellm.server.admission.policy import Scheduler
from edgellm.server.admission.program import Decision
from edgellm.server.admission.settings import AdmissionSettings
from edgellm.server.admission.tier import EngineTier
from edgellm.server.kv_events.mirror import KvMirror
from edgellm.server.kv_events.zmq_publisher import ZmqPublisher
from edgellm.server.load import Load
from edgellm.server.responses.shelf import Shelf
from edgellm.server.responses.store import Store
from edgellm.server.sessions.table import Sessions
from edgellm.server.settings import ServerSettings
from edgellm.server.tracing.sink import RequestTrace
from edgellm.server.turns import unix_ms

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


class Services:
    """Attributes:
        shelf: responses that were kept or run.
        mirror: of the prefix cache.
        sessions: those that are alive.
        trace: None when requests are not traced.
        admission: None when every request goes to the engine at once.

    Raises:
        ConfigError: a file cannot be made, an address cannot be bound, or an extra is not installed.
    """

    def __init__(self, llm: LLM, settings: ServerSettings, load: Load) -> None:
        block_tokens = llm.info.block_tokens
        self.shelf = Shelf(Store(settings.responses_store, max_bytes=settings.responses_store_bytes))
        self.mirror = KvMirror(llm.engine.cache)
        self.sessions = Sessions()
        self._publisher: ZmqPublisher | None = None
        self.trace: RequestTrace | None = None
        try:
            if settings.kv_events_zmq is not None:
                self._publisher = ZmqPublisher(self.mirror, settings.kv_events_zmq, block_tokens)
            if settings.request_trace is not None:
                self.trace = RequestTrace(settings.request_trace, block_tokens)
            self.admission: Admission | None = None
            if settings.admission is not None:
                self.admission = self._admission(llm, settings.admission, load, settings.retry_after_s)
        except BaseException:
            self.close()
            raise

    def _admission(self, llm: LLM, settings: AdmissionSettings, load: Load, retry_after_s: int) -> Admission:
        stats = llm.engine.stats()
        budget = Budget.of_cache(llm.info, stats.cache)
        return Admission(
            Scheduler(budget, settings, time.monotonic),
            tier=EngineTier(llm.engine) if stats.tier.budget_bytes else None,
            retry_after_s=retry_after_s,
            draining=lambda: load.draining,
            observers=[self._trace_decision, self.sessions.on_decision],
        )

    def _trace_decision(self, decision: Decision) -> None:
        if self.trace is not None and not decision.key.anonymous:
            details = {"utilisation": decision.utilisation, **decision.details}
            self.trace.admission(unix_ms(), decision.session_id, decision.action, details)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self.mirror.close()
        if self.trace is not None:
            self.trace.close()
        self.shelf.store.close()
