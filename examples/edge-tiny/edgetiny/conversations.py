"""One synthetic conversation from a seed and an index.

What must stay true: `conversation` is a function of its arguments alone; `expected` are the calls of the last assistant
turn, in order, with arguments in the order in which the user gives them (a program does not mind the order, and a small
model reads on where it is instead of searching).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from edgetiny import answers, calls, sessions, shell
from edgetiny.schemas import SchemaMaker
from edgetiny.words import Split, lexicon

# Share of each kind at stage 0 and at stage 1.
MIXTURE: Final = {
    "single": (0.42, 0.08),
    "parallel": (0.0, 0.11),
    "multiple": (0.06, 0.10),
    "irrelevant": (0.04, 0.06),
    "typed": (0.0, 0.10),
    "multi_turn": (0.0, 0.06),
    "shell": (0.0, 0.03),
    "chat": (0.03, 0.02),
    "copy": (0.45, 0.01),
    "session": (0.0, 0.43),
}
KINDS: Final = tuple(MIXTURE)
_SYSTEMS: Final = (
    "You are a helpful assistant.",
    "Be brief.",
    "You help users with functions.",
    "You are edge-tiny, a small assistant that calls functions.",
    "Answer in English. Use the functions when they fit.",
    "You are an assistant. Today is a good day.",
)
_MAKERS: Final[dict[str, Callable[[SchemaMaker], dict[str, Any]]]] = {
    "single": calls.single,
    "parallel": calls.parallel,
    "multiple": calls.multiple,
    "irrelevant": calls.irrelevant,
    "typed": calls.typed,
    "multi_turn": answers.multi_turn,
    "shell": shell.shell,
    "chat": answers.chat,
    "copy": answers.copy,
    "session": sessions.session,
}


def conversation(seed: int, index: int, split: Split, stage: float, kind: str | None = None) -> dict[str, Any]:
    """A conversation.

    Args:
        seed: of the whole stream.
        index: of the conversation in the stream.
        split: whose words it uses.
        stage: 0 (copy drills, one short call) to 1 (the full mixture, up to six tools).
        kind: one of `KINDS`; drawn by `MIXTURE` if None.

    Returns:
        ``kind``, ``messages`` (OpenAI form, arguments as objects; the last is the assistant's), ``tools`` (or None),
        ``expected`` (name and arguments of each call of the last turn), ``thinking`` (assistant turns may reason) and
        ``preserve_thinking`` (the template keeps the think block of every turn, so that each is a turn to learn from).
    """
    rng = Random(f"{seed}/{index}/{split}/{kind}")
    if kind is None:
        kind = rng.choices(KINDS, [early + (late - early) * stage for early, late in MIXTURE.values()])[0]
    made = _MAKERS[kind](SchemaMaker(lexicon(split), rng, stage))
    messages = made["messages"]
    if messages[0]["role"] != "system" and rng.random() < 0.12:
        messages.insert(0, {"role": "system", "content": rng.choice(_SYSTEMS)})
    thinking = split == "train" and bool(made["thought"]) and kind != "session" and rng.random() < 0.12
    if thinking:
        messages[-1]["reasoning_content"] = made["thought"]
    return {
        "kind": kind,
        "messages": messages,
        "tools": made["tools"],
        "expected": [call["function"] for call in messages[-1].get("tool_calls", ())],
        "thinking": thinking,
        "preserve_thinking": kind == "session",
    }
