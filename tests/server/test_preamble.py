"""A session's own first line never reaches the model."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgellm.errors import ConfigError
from edgellm.server.preamble import Preambles

HEADER = "x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli;"
REST = "You are an agent.\nBe brief."


@pytest.mark.parametrize(
    ("system", "left"),
    [
        (f"{HEADER}\n{REST}", REST),
        (f"{HEADER}\r\n{REST}", REST),
        (f"  \n{HEADER}\n{REST}", REST),  # white space in front
        (HEADER, ""),  # no line end
        (f"{HEADER}\n\n{REST}", f"\n{REST}"),  # the blank line behind it stays
        (f"{HEADER}\n{HEADER}\n{REST}", f"{HEADER}\n{REST}"),  # once
        (f"{REST}\n{HEADER}", f"{REST}\n{HEADER}"),  # not in front
        (f"X-Anthropic-Billing-Header: a\n{REST}", f"X-Anthropic-Billing-Header: a\n{REST}"),
        (f"x-anthropic-billing-header A\n{REST}", f"x-anthropic-billing-header A\n{REST}"),  # no colon
        (f"a x-anthropic-billing-header: b\n{REST}", f"a x-anthropic-billing-header: b\n{REST}"),
        (f" {REST}", f" {REST}"),  # nothing to remove: not even the space
        ("x-anthropic-billing-header:\nrest", "rest"),
        ("", ""),
    ],
)
def test_text(system: str, left: str) -> None:
    assert Preambles().strip(system) == (left, left != system)


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


@pytest.mark.parametrize(
    ("system", "left"),
    [
        ([block(HEADER), block(REST)], [block(REST)]),  # as Claude Code sends it
        ([block(f"{HEADER}\n{REST}", cache_control={})], [block(REST, cache_control={})]),
        ([block(HEADER)], []),
        ([block(REST), block(HEADER)], [block(REST), block(HEADER)]),
        ([block(HEADER), block(HEADER)], [block(HEADER)]),
        ([], []),
        ([{"type": "image"}], [{"type": "image"}]),
        ([HEADER], [HEADER]),
        (None, None),
        (5, 5),
    ],
)
def test_blocks(system: Any, left: Any) -> None:
    before = repr(system)
    assert Preambles().strip(system) == (left, left != system)
    assert repr(system) == before  # the request's own object is left alone


def test_patterns_of_other_harnesses() -> None:
    removed = Preambles.of((r"x-anthropic-billing-header:[^\n]*\n?", r"\[run [0-9a-f]+\] ")).strip
    assert removed("[run 0af] You are") == ("You are", True)
    assert removed(f"{HEADER}\nA") == ("A", True)
    assert Preambles.of(()).strip(f"{HEADER}\nA") == (f"{HEADER}\nA", False)
    assert Preambles((re.compile("x*"),)).strip("abc") == (
        "abc",
        False,
    )  # a pattern that matches nothing removes nothing
    with pytest.raises(ConfigError, match=r"preamble: '\('"):
        Preambles.of(("(",))


@pytest.mark.parametrize("system", [f"{HEADER}\n{REST}", [block(HEADER), block(REST)]])
def test_sessions_share_their_prompt(running: Any, system: Any) -> None:
    """The same tokens with the line and without, and the metric counts."""
    turn = {"role": "user", "content": "hi"}
    running.post(messages=[{"role": "system", "content": system}, turn])
    running.post(messages=[{"role": "system", "content": REST}, turn])
    first, second = running.script.requests
    assert first.prompt == second.prompt
    assert "edgellm_preambles_removed_total 1.0" in running.http.get("/metrics").text


def test_it_can_be_switched_off(start: Any) -> None:
    running = start(preambles=Preambles.of(()))
    text = running.post(
        "/v1/chat/completions/render",
        messages=[{"role": "system", "content": f"{HEADER}\n{REST}"}, {"role": "user", "content": "hi"}],
    ).json()["prompt"]
    assert HEADER in text
