"""Sessions that need three times the cache: with admission none prefills what it had, none starves, none fails."""

from __future__ import annotations

from edgellm.server.measure_sessions import measure_sessions


def test_with_admission_a_turn_prefills_what_it_would_alone() -> None:
    cost = measure_sessions(sessions=8, turns=6)
    alone, together, admitted = cost.runs
    for run in cost.runs:
        assert (run.failed, run.finished, run.turns) == (0, 8, 48)
        assert run.prompt_tokens == alone.prompt_tokens
    assert admitted.prefilled_tokens <= 1.05 * alone.prefilled_tokens
    assert together.prefilled_tokens > 2 * alone.prefilled_tokens  # otherwise nothing was shown
    assert admitted.offloads > 0
    assert admitted.recalls > 0
