"""What counts as a valid call, an exact call, and no call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "edge-tiny"))
from edgetiny.scoring import Score, summarize, valid_call

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book_room",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "guests": {"type": "integer"},
                    "price": {"type": "number"},
                    "view": {"type": "string", "enum": ["sea", "garden"]},
                    "quiet": {"type": "boolean"},
                },
                "required": ["city"],
            },
        },
    }
]


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"city": "Oslo"}, True),
        ({"city": "Oslo", "guests": 2, "price": 3, "view": "sea", "quiet": False}, True),
        ({"city": "Oslo", "price": 2.5}, True),
        ({"guests": 2}, False),  # a required parameter is missing
        ({"city": "Oslo", "stars": 5}, False),
        ({"city": "Oslo", "guests": "2"}, False),
        ({"city": "Oslo", "guests": True}, False),
        ({"city": "Oslo", "quiet": 1}, False),
        ({"city": "Oslo", "view": "street"}, False),
        ("not JSON", False),
    ],
)
def test_validity_is_that_of_the_schema(arguments: Any, valid: bool) -> None:
    assert valid_call(("book_room", arguments), TOOLS) is valid
    assert not valid_call(("book_rooms", arguments), TOOLS)


def test_rates_count_only_what_they_are_about() -> None:
    def score(kind: str, due: int, **rest: Any) -> Score:
        found = {"called": False, "valid": False, "exact": False, "verify_steps": 0, "emitted": 0} | rest
        return Score(kind=kind, due=due, expected="", answer="", **found)

    scores = [
        score("single", 1, called=True, valid=True, exact=True, verify_steps=2, emitted=8),
        score("single", 1, called=True, valid=True, verify_steps=2, emitted=4),
        score("irrelevant", 0, verify_steps=100, emitted=100),
        score("irrelevant", 0, called=True),
        score("multi_turn", 0),  # answers in words
    ]
    assert summarize(scores) == {
        "conversations": 5,
        "calls_due": 2,
        "valid_call_rate": 1.0,
        "exact_call_rate": 0.5,
        "no_call_rate": 0.5,
        "mean_accepted_length": 3.0,
    }
    assert [one.right for one in scores] == [True, False, True, False, True]


def test_nothing_due_has_no_rate() -> None:
    assert summarize([])["valid_call_rate"] is None
