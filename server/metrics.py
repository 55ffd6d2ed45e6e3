"""Prometheus metrics: counted per finished request, and the engine's state read when they are scraped.

Every server has its own registry, so that several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from edgellm.runtime.types import Output

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2)
_LENGTH_BUCKETS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 12, 16)


class Metrics:
    """What one server counts. `state` gives the engine's statistics (a dataclass)."""

    def __init__(self, state: Callable[[], DataclassInstance]) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"edgellm_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"edgellm_{name}", text, buckets=buckets, registry=self.registry)

        self.http_requests = counter("http_requests", "HTTP requests by route and status", ("route", "status"))
        self._requests = counter("requests", "Generations by outcome (ok, cancelled, error)", ("outcome",))
        self._finish = counter("finish", "Generations by the engine's finish reason", ("reason",))
        self._prompt = counter("prompt_tokens", "Prompt tokens, cached ones included")
        self._cached = counter("cached_tokens", "Prompt tokens restored from the prefix cache")
        self._generated = counter("generated_tokens", "Tokens generated")
        self._drafted = counter("drafted_tokens", "Draft tokens verified")
        self._accepted = counter("accepted_tokens", "Draft tokens accepted")
        self._verify = counter("verify_steps", "Verification steps")
        self._empty = counter("empty_turns", "Finished answers with neither text nor a tool call")
        self.preambles = counter("preambles_removed", "Requests whose system prompt lost a session's own first line")
        self._ttft = histogram("time_to_first_token_seconds", "From submission to the first token", _TTFT_BUCKETS)
        self._tpot = histogram("time_per_output_token_seconds", "Per token after the first", _TPOT_BUCKETS)
        self._queue = histogram("queue_seconds", "From submission to the start of prefill", _TTFT_BUCKETS)
        self._length = histogram("accepted_length", "Mean tokens per verify step of a request", _LENGTH_BUCKETS)
        self.watch("engine", "Engine state", state)

    def watch(self, name: str, text: str, state: Callable[[], DataclassInstance]) -> None:
        """Show the numbers of `state()` whenever metrics are scraped, as ``edgellm_<name>_<field>``."""
        self.registry.register(_State(name, text, state))

    def finished(self, outcome: str, final: Output | None, *, empty: bool) -> None:
        """Count one generation; `final` is its last output, None when it never came."""
        self._requests.labels(outcome).inc()
        if empty:
            self._empty.inc()
        if final is None:
            return
        self._finish.labels(final.finish_reason).inc()
        usage, timing = final.usage, final.timing
        if usage is None:
            return
        self._prompt.inc(usage.prompt_tokens)
        self._cached.inc(usage.cached_tokens)
        self._generated.inc(usage.completion_tokens)
        self._drafted.inc(usage.drafted_tokens)
        self._accepted.inc(usage.accepted_tokens)
        self._verify.inc(usage.verify_steps)
        if usage.accepted_length is not None:
            self._length.observe(usage.accepted_length)
        if timing is None or usage.completion_tokens == 0:
            return
        self._queue.observe(timing.queued_s)
        self._ttft.observe(timing.first_token_s)
        if usage.completion_tokens > 1:
            self._tpot.observe((timing.total_s - timing.first_token_s) / (usage.completion_tokens - 1))

    def exposition(self) -> bytes:
        """The text format that Prometheus scrapes."""
        return generate_latest(self.registry)


class _State(Collector):
    """Numbers of a statistics object. A mapping called ``…_by_priority`` is one metric with a label."""

    def __init__(self, name: str, text: str, state: Callable[[], DataclassInstance]) -> None:
        self._name = name
        self._text = text
        self._state = state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for path, value in _values(asdict(self._state()), ""):
            name, text = f"edgellm_{self._name}_{path}", f"{self._text}: {path.replace('_', ' ')}"
            if isinstance(value, Mapping):
                family = GaugeMetricFamily(name, text, labels=("priority",))
                for priority, each in value.items():
                    family.add_metric((priority,), float(each))
                yield family
            else:
                yield GaugeMetricFamily(name, text, value)


def _values(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float | Mapping[str, float]]]:
    """Every number of a nested statistics object, under its joined field names, and the mappings by priority."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and name.endswith("_by_priority"):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}_")
        elif isinstance(value, (int, float)):
            yield f"{prefix}{name}", float(value)
