"""Conversations of several requests over one list of tools: calls, calls in parallel and refusals, in any order.

What must stay true: a request that is refused has the verb and the thing of no tool at once, though both may be there;
every call follows from its own request alone.
"""

from __future__ import annotations

import json
from typing import Any

from edgetiny import calls
from edgetiny.answers import results, told
from edgetiny.functions import Function
from edgetiny.schemas import SchemaMaker
from edgetiny.turns import Message, assistant, made, tool


def session(maker: SchemaMaker) -> dict[str, Any]:
    """Two to six requests; some calls are followed by a result and the answer."""
    rng = maker.rng
    function = maker.function(low=2, roles=calls.TYPED) if rng.random() < 0.3 else maker.function()
    tools = [function, *calls.distractors(maker, function, rng.randint(0, 1 + round(3 * maker.stage)))]
    messages: list[Message] = []
    count = rng.randint(2, 3 + round(3 * maker.stage))
    for turn in range(count):
        chance = rng.random()
        chosen = rng.choice(tools)
        if chance < 0.3:
            messages += _refused(maker, tools)
        elif chance < 0.5 and chosen.fields:
            messages += calls.several(maker, [chosen, *rng.choices((chosen, *tools), k=rng.choice((1, 1, 2)))])
        else:
            messages += calls.several(maker, [chosen])
        if len(messages[-1].get("tool_calls", ())) == 1 and turn < count - 1 and rng.random() < 0.3:
            result = results(maker)
            messages += [tool(json.dumps(result)), assistant(told(chosen, result))]
    shown = rng.sample(tools, len(tools))
    return made(messages, [f.tool() for f in shown], "I look at the last request and at the functions.")


def _refused(maker: SchemaMaker, tools: list[Function]) -> list[Message]:
    rng = maker.rng
    while True:
        verb = rng.choice(tools).verb if rng.random() < 0.4 else ""
        thing = rng.choice(tools).thing if rng.random() < 0.4 else ""
        function = maker.function(verb=verb, thing=thing)
        if not any(calls.alike(function, other) for other in tools):
            return calls.refused(maker, function)
