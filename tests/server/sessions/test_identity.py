"""Every combination of session headers that Dynamo's matrix tells apart, and values that are no ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.server.sessions.identity import HARNESSES, MAX_ID_BYTES, identify

D, DP = "x-dynamo-session-id", "x-dynamo-parent-session-id"
C, CA, CP = "x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id"
X, XP = "thread-id", "x-codex-parent-thread-id"
H, HP = "x-deepseek-harness-session-id", "x-deepseek-harness-parent-session-id"
S, SP = "x-session-id", "x-parent-session-id"

# (headers, (session, parent, harness) or None)
MATRIX = {
    "canonical": ({D: "s"}, ("s", None, "dynamo")),
    "canonical with parent": ({D: "s", DP: "p"}, ("s", "p", "dynamo")),
    "canonical, parent is itself": ({D: "s", DP: "s"}, ("s", None, "dynamo")),
    "canonical parent alone": ({DP: "p"}, None),
    "claude root": ({C: "s"}, ("s", None, "claude-code")),
    "claude child": ({C: "s", CA: "a"}, ("a", "s", "claude-code")),
    "claude grandchild": ({C: "s", CA: "b", CP: "a"}, ("b", "a", "claude-code")),
    "claude agent alone": ({CA: "a"}, None),
    "claude agent and parent alone": ({CA: "b", CP: "a"}, None),
    "claude root with a parent agent": ({C: "s", CP: "a"}, ("s", None, "claude-code")),
    "claude child that is the session": ({C: "s", CA: "s"}, ("s", None, "claude-code")),
    "codex": ({X: "t"}, ("t", None, "codex")),
    "codex with parent": ({X: "t", XP: "p"}, ("t", "p", "codex")),
    "codex session-id alone": ({"session-id": "s"}, None),
    "codex session-id beside": ({"session-id": "s", X: "t"}, ("t", None, "codex")),
    "codex parent alone": ({XP: "p"}, None),
    "deepseek": ({H: "s"}, ("s", None, "deepseek")),
    "deepseek with parent": ({H: "s", HP: "p"}, ("s", "p", "deepseek")),
    "opencode by its affinity": ({S: "s", "x-session-affinity": "s"}, ("s", None, "opencode")),
    "opencode by its agent": ({S: "s", "user-agent": "opencode/1.18 ai-sdk"}, ("s", None, "opencode")),
    "opencode with parent": ({S: "s", SP: "p"}, ("s", "p", "opencode")),
    "opencode parent alone": ({SP: "p"}, None),
    "opencode's own name": ({"x-opencode-session-id": "s"}, ("s", None, "opencode")),
    "opencode's own name, second": ({"x-opencode-session-id": "o", S: "s"}, ("s", None, "mlperf")),
    "opencode affinity alone": ({"x-session-affinity": "s"}, None),
    "mlperf": ({S: "django__django-16899"}, ("django__django-16899", None, "mlperf")),
    "canonical before claude and its parent": ({D: "s", C: "c", CA: "a", CP: "b"}, ("s", None, "dynamo")),
    "canonical before all": ({D: "s", DP: "p", C: "c", X: "t", XP: "q", H: "h", S: "o"}, ("s", "p", "dynamo")),
    "claude before codex": ({C: "c", X: "t", XP: "q"}, ("c", None, "claude-code")),
    "codex before deepseek": ({X: "t", H: "h", HP: "p"}, ("t", None, "codex")),
    "deepseek before opencode": ({H: "h", S: "o", SP: "p"}, ("h", None, "deepseek")),
    "bare agent does not hide codex": ({CA: "a", X: "t"}, ("t", None, "codex")),
    "empty": ({}, None),
    "empty value": ({D: ""}, None),
    "blank value": ({D: " \t "}, None),
    "blank canonical, claude": ({D: " ", C: "c"}, ("c", None, "claude-code")),
    "trimmed": ({D: "  s\t", DP: " p "}, ("s", "p", "dynamo")),
    "blank parent": ({D: "s", DP: "  "}, ("s", None, "dynamo")),
    "request id is no session": ({"x-request-id": "r", "user-agent": "opencode"}, None),
}


def _headers(given: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in given.items()]


@pytest.mark.parametrize("name", MATRIX)
def test_matrix(name: str) -> None:
    given, expected = MATRIX[name]
    found = identify(_headers(given))
    assert (None if found is None else (found.session_id, found.parent_id, found.harness)) == expected
    assert identify(reversed(_headers(given))) == found, "the order of headers does not matter"


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a" * 257, b"a\x00b", b"a\tb", b"a\x7fb", "a\u0085b".encode()])
def test_a_value_that_is_no_id_counts_as_absent(value: bytes) -> None:
    assert identify([(D.encode(), value)]) is None
    found = identify([(D.encode(), value), (C.encode(), b"c"), (CA.encode(), value)])
    assert found is not None
    assert (found.session_id, found.parent_id, found.harness) == ("c", None, "claude-code")
    assert found.headers == {C: ("c",)}


@pytest.mark.parametrize("value", ["a" * MAX_ID_BYTES, "é" * (MAX_ID_BYTES // 2), "sitzung-ß", "a b/c:d"])
def test_the_longest_and_strangest_ids_are_kept(value: str) -> None:
    found = identify([(D.encode(), f" {value} ".encode())])
    assert found is not None
    assert found.session_id == value


@pytest.mark.parametrize("row", HARNESSES, ids=lambda row: row.session)
@pytest.mark.parametrize(
    ("said", "final"),
    [(b"true", True), (b" TRUE ", True), (b"1", True), (b"yes", True), (b"false", False), (b"0", False), (b"", False)],
)
def test_the_end_of_a_session_goes_with_any_identity(row: object, said: bytes, final: bool) -> None:
    found = identify([(row.session.encode(), b"s"), (b"x-dynamo-session-final", said)])  # type: ignore[attr-defined]
    assert found is not None
    assert found.final is final


def test_the_end_of_no_session_is_nothing() -> None:
    assert identify([(b"x-dynamo-session-final", b"true")]) is None


def test_headers_of_the_harness_are_kept_for_traces_and_ours_and_others_not() -> None:
    headers = {D: "s", C: "c", CA: "a", "authorization": "secret", "user-agent": "x", "x-dynamo-session-final": "1"}
    found = identify([*_headers(headers), (CA.encode(), b"a2")])
    assert found is not None
    assert found.headers == {C: ("c",), CA: ("a", "a2")}


_NAMES = st.sampled_from([D, DP, C, CA, CP, X, XP, H, HP, S, SP, "session-id", "user-agent", "x-other"])


@given(st.lists(st.tuples(_NAMES, st.binary(max_size=300)), max_size=12))
def test_no_headers_are_an_error_and_ids_are_always_sound(headers: list[tuple[str, bytes]]) -> None:
    found = identify([(name.encode(), value) for name, value in headers])
    if found is None:
        return
    for value in (found.session_id, found.parent_id):
        if value is not None:
            assert value == value.strip() != ""
            assert len(value.encode()) <= MAX_ID_BYTES
            assert value.isprintable() or not any(ord(char) < 32 for char in value)
    assert found.parent_id != found.session_id
