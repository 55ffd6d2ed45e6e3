"""The lexer loses nothing, and pieces of input change only where text is cut; lines and fences likewise."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.text.lexer import Kind, Lexeme, Lexer
from edgellm.text.lines import LineTracker

SOUP = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "<parameter=", "a b", ">", "<", "</", "\n",
         "</function>", "</parameter>", "```", "`", " ", "x" * 300]
    ),
    max_size=20,
).map("".join)  # fmt: skip


def joined(lexemes: list[Lexeme]) -> list[Lexeme]:
    result: list[Lexeme] = []
    for lexeme in lexemes:
        if result and result[-1].kind is Kind.TEXT and lexeme.kind is Kind.TEXT:
            result[-1] = Lexeme(Kind.TEXT, result[-1].raw + lexeme.raw)
        else:
            result.append(lexeme)
    return result


def lex(pieces: list[str], *, tools: bool) -> list[Lexeme]:
    lexer = Lexer(tools=tools)
    return joined([lexeme for piece in pieces for lexeme in lexer.feed(piece)] + lexer.finish())


@settings(max_examples=300, deadline=None)
@given(text=SOUP, cut=st.integers(1, 9), tools=st.booleans())
def test_pieces_give_the_lexemes_of_the_whole(text: str, cut: int, tools: bool) -> None:
    whole = lex([text], tools=tools)
    assert "".join(lexeme.raw for lexeme in whole) == text
    assert lex([text[at : at + cut] for at in range(0, len(text), cut)], tools=tools) == whole


@settings(max_examples=200, deadline=None)
@given(text=SOUP, cut=st.integers(1, 5))
def test_lines_do_not_depend_on_pieces(text: str, cut: int) -> None:
    whole, pieces = LineTracker(), LineTracker()
    whole.feed(text)
    for at in range(0, len(text), cut):
        pieces.feed(text[at : at + cut])
    assert (pieces.at_start, pieces.in_fence) == (whole.at_start, whole.in_fence)
    assert whole.in_fence == (sum(line.lstrip(" ").startswith("```") for line in text.split("\n")) % 2 == 1)
