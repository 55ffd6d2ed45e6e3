"""Calls in Python's notation: literals only, named arguments only."""

from __future__ import annotations

from typing import Any

import pytest
from parsed import Answer, parse_all_ways, tool

from edgellm.text.deltas import ToolCallArguments
from edgellm.text.dialects import make_parser

TOOLS = [tool("read", path="string", limit="integer"), tool("files.list"), tool("now")]


def read(text: str, **options: Any) -> Answer:
    return parse_all_ways(text, TOOLS, dialect="pythonic", **options)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}),
        ('path="a", limit=5', {"path": "a", "limit": 5}),
        ("path='a',limit = -1.50 ,", {"path": "a", "limit": -1.5}),
        ("\n    path = 'a',\n    limit=None,\n", {"path": "a", "limit": None}),
        ("path=True, limit=false, x=null", {"path": True, "limit": False, "x": None}),
        ("path=[1, 'a', (2, 3), (4,), [], ()], limit={'a': {}, \"b\": [None,],}",
         {"path": [1, "a", [2, 3], [4], [], []], "limit": {"a": {}, "b": [None]}}),
        (r"""path='it\'s "x"\n\t\\ \d \x41\u00e9\U0001F600\101\
 end'""", {"path": 'it\'s "x"\n\t\\ \\d Aé😀A end'}),
        (r"path='\ud83d\ude00 \ud83d'", {"path": "😀 \ufffd"}),
        ('path="""a "quoted" \'b\'\n""", limit=\'\'\'\'\'\'', {"path": "a \"quoted\" 'b'\n", "limit": ""}),
        ("path='', limit=\"\"", {"path": "", "limit": ""}),
        ("path='two\nlines'", {"path": "two\nlines"}),
        ("path='a', path='b'", {"path": "a"}),
        ("path={'a': 1, 'a': 2}", {"path": {"a": 1}}),
        ("größe='a'", {"größe": "a"}),
        ("path='), now()]'", {"path": "), now()]"}),
    ],
)  # fmt: skip
def test_calls(arguments: str, given: dict[str, Any]) -> None:
    answer = read(f"[read({arguments})]")
    assert answer.arguments() == [("read", given)]
    assert (answer.content, answer.ended) == ("", [0])


def test_numbers_keep_their_text() -> None:
    big = "9" * 400
    assert read(f"[read(limit={big}, x=1.10, y=1e5)]").calls == [("read", f'{{"limit": {big}, "x": 1.10, "y": 1e5}}')]


@pytest.mark.parametrize(
    "call",
    ["read('a')", "read(path)", "read(path=a)", "read(path=1+1)", "read path='a'", "read(path=f'a')", "read(=1)",
     "read(path==1)", "read(path=NaN)", "read(path=0x10)", "read(path=open('x').read())", "read(**{})", "read(path=)",
     "Read(path='a')", "nope()", "now() is a call", "now", "now(", "", "x", "'a', 'b'", "[now()]"],
)  # fmt: skip
def test_what_is_no_call_is_text(call: str) -> None:
    for text in (f"[{call}]", f"So:\n[{call}] more"):
        answer = read(text, finish="length")
        assert (answer.content, answer.calls) == (text, [])


@pytest.mark.parametrize(
    ("arguments", "sent", "rest"),
    [
        ("path='a', limit=2+2)", {"path": "a"}, "2+2)]"),
        ("path='a', 'b')", {"path": "a"}, "'b')]"),
        ("path='a' 'b')", {"path": "a"}, "'b')]"),
        ("path='a', limit=(1))", {"path": "a", "limit": [1]}, "))]"),
        ("path='\\N{BULLET}')", {"path": ""}, "\\N{BULLET}')]"),
        ("path='\\xzz')", {"path": ""}, "\\xzz')]"),
        ("limit={1, 2})", {"limit": {}}, "1, 2})]"),
        ("limit={1: 2})", {"limit": {}}, "1: 2})]"),
    ],
)
def test_a_fault_behind_the_first_value_leaves_the_call_without_an_end(
    arguments: str, sent: dict[str, Any], rest: str
) -> None:
    answer = read(f"[read({arguments}]")
    assert (answer.arguments(), answer.ended, answer.content) == ([("read", sent)], [], rest)


def test_lists_and_where_they_begin() -> None:
    calls = [("now", {}), ("files.list", {}), ("read", {"path": "a"})]
    text = "[now(), files.list(),\n read(path='a')]"
    for whole in (text, f"<|python_start|>{text}<|python_end|>", f"<|python_tag|> {text}", text[:-1]):
        answer = read(whole)
        assert (answer.arguments(), answer.content) == (calls, "")
    assert read(f"Look.\n\n{text}\n\nDone.").content == "Look.\n\nDone."
    for prose in (f"say {text}", f"```python\n{text}\n```", "<|python_start|>print(1)<|python_end|>"):
        assert read(prose).key() == (prose, "", (), ())
    assert read("[now(), nope(), now()]").key() == (", nope(), now()]", "", (("now", "{}"),), (0,))
    assert read("[now()], so").content == ", so"


def test_the_end_of_the_turn_closes_what_can_be_closed() -> None:
    for arguments, closed in [
        ("path='a\\", {"path": "a"}),
        ('path="""a""', {"path": "a"}),
        ("path='a', limit", {"path": "a"}),
        ("path='a', limit=", {"path": "a"}),
        ("path='a', limit=Tru", {"path": "a"}),
        ("path='a', limit=12", {"path": "a", "limit": 12}),
        ("path=[1, {'b': 'c", {"path": [1, {"b": "c"}]}),
    ]:
        answer = read(f"[read({arguments}")
        assert (answer.arguments(), answer.ended, answer.content) == ([("read", closed)], [0], "")
        assert read(f"[read({arguments}", finish="length").ended == []
    assert read("[now()").content == "[now()"


def test_strings_flow_at_once() -> None:
    parser = make_parser("pythonic", TOOLS, thinking_open=False)
    parser.feed("[read(path='x")
    assert parser.feed('a"\\') == [ToolCallArguments(0, 'a\\"')]
    assert parser.feed("n") == [ToolCallArguments(0, "\\n")]
