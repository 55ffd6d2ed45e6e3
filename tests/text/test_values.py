"""Parameter values: the schema decides, what does not fit stays the model's text, nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.text.values import ValueWriter, allowed_types, to_json

NOT_GIVEN = object()
NULLABLE_STRING = {"type": ["string", "null"]}
ROOT = {"$defs": {"n": {"type": "integer"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}] * 10 + [{"type": "boolean"}]}}}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, " 5\n", 5),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "integer"}, "007", "007"),
        ({"type": "integer"}, "", NOT_GIVEN),
        ({"type": "integer"}, "None", NOT_GIVEN),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"type": "number"}, "1e400", "1e400"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "3.10.5-beta", "3.10.5-beta"),
        ({"type": "float"}, "2.5", 2.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "string"}, "None", "None"),
        ({"type": "string"}, "5", "5"),
        (NULLABLE_STRING, "null", None),
        (NULLABLE_STRING, "", ""),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "3.10", "3.10"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "3.5", 3.5),
        ({"oneOf": [{"type": "array"}, {"type": "string"}]}, '["a"]', ["a"]),
        ({"$ref": "#/$defs/n"}, "7", 7),
        ({"$ref": "#/$defs/loop"}, "true", True),
        ({"$ref": "#/nowhere"}, "7", "7"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"properties": {}}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "{'a': True, 'b': None}", {"a": True, "b": None}),
        ({"type": "array"}, '["two\nlines"]', ["two\nlines"]),
        ({"type": "array"}, "[1, 2", "[1, 2"),
        ({"type": "array"}, "[__import__('os').getpid()]", "[__import__('os').getpid()]"),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
        ({}, "3.10", "3.10"),
        ({}, '{"a": 1}', {"a": 1}),
        ({"type": "custom"}, "x", "x"),
        (None, "x", "x"),
        (True, "x", "x"),
    ],
)  # fmt: skip
def test_values(schema: Any, text: str, expected: Any) -> None:
    found = to_json(text, allowed_types(schema, ROOT))
    value = NOT_GIVEN if found is None else json.loads(found)
    assert value == expected
    assert type(value) is type(expected)


@given(text=st.text(max_size=30), types=st.sets(st.sampled_from(["string", "integer", "array", "null", "boolean"])))
def test_any_text_of_any_type_is_json_that_utf8_can_carry(text: str, types: set[str]) -> None:
    found = to_json(text, frozenset(types))
    if found is not None:
        json.loads(found)
        found.encode()


@pytest.mark.parametrize("schema", [{"type": "string"}, {}, {"type": "integer"}, {"type": "array"}])
@given(text=st.text(alphabet='\n[]{1a"\\ é', max_size=12))
def test_pieces_give_the_value_of_the_whole(schema: Any, text: str) -> None:
    types = allowed_types(schema, {})
    whole, pieces = ValueWriter("k:", types), ValueWriter("k:", types)
    one = [whole.add(text), whole.end()]
    many = [*(pieces.add(char) for char in text), pieces.end()]
    assert (one[-1] is None) == (many[-1] is None)
    assert "".join(part or "" for part in one) == "".join(part or "" for part in many)
    if one[-1] is None:
        assert not any(one)
