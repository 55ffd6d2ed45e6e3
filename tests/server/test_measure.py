"""The measurement of streaming measures: every stream arrives whole. How fast is no matter of a test."""

from __future__ import annotations

import pytest

from edgellm.server import measure


def test_all_streams_are_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_TOKENS", 40)
    monkeypatch.setattr(measure, "_PACED_TOKENS", 20)
    cost = measure.measure_streams(3)
    assert cost.streams == 3
    assert cost.us_per_delta > 0
    assert cost.alone_us_per_delta > 0
    assert 0 < cost.deltas_per_s <= 3 / measure._PACE_S
    assert 0 <= cost.p99_stall_ms <= cost.longest_stall_ms
