"""What runs beside the routes for as long as the application does: the store of responses, followers of the cache, the
request trace. Made with the application, closed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.server.kv_events.mirror import KvMirror
from edgellm.server.kv_events.zmq_publisher import ZmqPublisher
from edgellm.server.responses.shelf import Shelf
from edgellm.server.responses.store import Store
from edgellm.server.settings import ServerSettings
from edgellm.server.tracing.sink import RequestTrace

if TYPE_CHECKING:
    from edgellm.runtime.llm import LLM


class Services:
    """Attributes:
        shelf: responses that were kept or run.
        mirror: of the prefix cache.
        trace: None when requests are not traced.

    Raises:
        ConfigError: a file cannot be made, an address cannot be bound, or an extra is not installed.
    """

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        block_tokens = llm.info.block_tokens
        self.shelf = Shelf(Store(settings.responses_store, max_bytes=settings.responses_store_bytes))
        self.mirror = KvMirror(llm.engine.cache)
        self._publisher: ZmqPublisher | None = None
        self.trace: RequestTrace | None = None
        try:
            if settings.kv_events_zmq is not None:
                self._publisher = ZmqPublisher(self.mirror, settings.kv_events_zmq, block_tokens)
            if settings.request_trace is not None:
                self.trace = RequestTrace(settings.request_trace, block_tokens)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self.mirror.close()
        if self.trace is not None:
            self.trace.close()
        self.shelf.store.close()
