"""Which dialects there are, and how a template tells which one a model speaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from parsed import FORMS, tool

from edgellm.errors import ConfigError
from edgellm.text.deltas import ToolCallStart
from edgellm.text.dialects import ALIASES, DIALECTS, detect, make_parser, visible_markers


def test_the_dialects() -> None:
    assert DIALECTS[0] == "qwen3_coder"
    assert {form.split()[0] for form in FORMS} == set(DIALECTS)
    assert set(ALIASES.values()) <= set(DIALECTS)
    assert not set(ALIASES) & set(DIALECTS)


def test_an_alias_is_the_same_dialect() -> None:
    parser = make_parser("qwen3", [tool("now")], thinking_open=False)
    assert isinstance(parser.feed('<tool_call>{"name": "now"}')[0], ToolCallStart)
    assert visible_markers("qwen3") == visible_markers("hermes")


def test_an_unknown_dialect_is_an_error_that_names_it() -> None:
    for wrong in ("", "Hermes", "xml"):
        with pytest.raises(ConfigError, match=f"dialect: .*{wrong!r}"):
            make_parser(wrong, [], thinking_open=False)
        with pytest.raises(ConfigError, match="dialect"):
            visible_markers(wrong)


def test_markers_hold_what_a_parser_looks_for() -> None:
    for dialect in DIALECTS:
        markers = visible_markers(dialect)
        assert markers
        assert all(marker == marker.strip() and len(marker) > 3 for marker in markers)
    assert "[ARGS]" in visible_markers("mistral")
    assert "<|message|>" in visible_markers("harmony")


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        ("{{ '<tool_call>\\n<function=' + name + '>' }}<parameter=", "qwen3_coder"),
        ("{{ '<tool_call>\\n{\"name\": \"' + name + '\", \"arguments\": ' }}", "hermes"),
        ('<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>', "hermes"),
        ("{{ '<tool_call>' + name }}<arg_key>{{ k }}</arg_key>", "glm45"),
        ("{{ '[TOOL_CALLS] [' }}", "mistral"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", "mistral"),
        ("<|start_header_id|>{{ '<TOOLCALL>[' }}{\"name\": ", "nemotron_deci"),
        ("Environment: ipython {\"name\": function name, \"parameters\": dictionary}", "llama3_json"),
        ("{{ '<|python_tag|>' + name + '.call(' }}", "llama3_json"),
        ("Environment: ipython [func_name1(params_name1=params_value1), func_name2(params)]", "pythonic"),
        ("{{ tool_call.name + '(' -}}", "pythonic"),
        ("{{ '<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name }}", "deepseek_v3"),
        ("<|start|>assistant<|channel|>commentary to=functions.{{ name }}<|message|>", "harmony"),
        ("{{ bos_token }}{{ message.content }}", "qwen3_coder"),
        ("", "qwen3_coder"),
    ],
)  # fmt: skip
def test_detection(template: str, dialect: str) -> None:
    assert detect(template) == dialect


def test_the_familys_own_template_is_recognised(checkpoint_dir: Path) -> None:
    assert detect((checkpoint_dir / "chat_template.jinja").read_text(encoding="utf-8")) == "qwen3_coder"
