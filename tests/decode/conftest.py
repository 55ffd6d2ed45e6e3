"""A toy decoding loop over the scripted executor, as the runtime runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.decode.accept import Accepted, accept_row, accept_tree
from edgellm.decode.constraint import Constraint
from edgellm.decode.draft import draft_tree
from edgellm.decode.logprobs import TokenLogprob
from edgellm.decode.params import SamplingParams, SpeculationParams
from edgellm.decode.sampler import Sampler
from edgellm.decode.stop import Finish, StopRule
from edgellm.engine.base import Chunk
from edgellm.engine.scripted import ScriptedExecutor


@dataclass
class Sequence_:
    """One generation in progress."""

    executor: ScriptedExecutor
    slot: int
    sampler: Sampler
    stop: StopRule
    speculation: SpeculationParams
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    finish: Finish | None = None
    steps: int = 0
    deepest: int = 0  # tokens emitted by the best step

    def step(self) -> None:
        if self.speculation.enabled:
            depth = self.stop.remaining(self.sampler.generated) - 1
            draft = draft_tree(
                self.executor,
                self.slot,
                self.tokens[-1],
                self.speculation,
                max_depth=depth,
                terminal=self.stop.ending,
            )
            outcome = accept_tree(draft.tree, self.executor.verify(draft.tree), self.sampler, self.stop)
            self.executor.commit(self.slot, outcome.path)
        else:
            logits = self.executor.advance([Chunk(self.slot, self.tokens[-1:], True)])
            outcome = accept_row(logits, 0, self.sampler, self.stop)
        self.steps += 1
        self.take(outcome)

    def take(self, outcome: Accepted) -> None:
        assert len(outcome.path) == len(outcome.tokens)
        self.tokens += outcome.tokens
        self.logprobs += outcome.logprobs
        self.margins += outcome.margins
        self.finish = outcome.finish
        self.deepest = max(self.deepest, len(outcome.tokens))


Start = Callable[..., Sequence_]


@pytest.fixture(scope="session")
def start() -> Start:
    """Prefill a prompt and draw the first token."""

    def run(
        executor: ScriptedExecutor,
        prompt: Sequence[int],
        params: SamplingParams,
        speculation: SpeculationParams,
        *,
        slot: int = 0,
        eos: Sequence[int] = (),
        constraint: Constraint | None = None,
        margins: bool = False,
    ) -> Sequence_:
        executor.reset(slot)
        stop = StopRule.of(params, eos_token_ids=eos, prompt_tokens=len(prompt), context=executor.info.max_tokens)
        sampler = Sampler(params, prompt, ending=stop.ending, constraint=constraint, margins=margins)
        found = Sequence_(executor, slot, sampler, stop, speculation)
        found.take(accept_row(executor.advance([Chunk(slot, prompt, True)]), 0, sampler, stop))
        return found

    return run


@pytest.fixture(scope="session")
def generate(start: Start) -> Start:
    """Run a prompt to its end."""

    def run(*args: object, **kwargs: object) -> Sequence_:
        found = start(*args, **kwargs)
        while found.finish is None:
            found.step()
        committed = found.executor.tokens(found.slot)
        prompt_tokens = len(committed) - len(found.tokens) + 1
        assert committed[prompt_tokens:] == tuple(found.tokens[:-1])
        return found

    return run


class StepConstraint:
    """Allows the tokens of one residue class, which moves on with every token: a mask that depends on the path."""

    def __init__(self, vocab_size: int, period: int) -> None:
        self._ids = np.arange(vocab_size)
        self._period = period
        self._state = 0

    def mask(self) -> NDArray[np.bool_] | None:
        return None if self._state % 5 == 4 else self._ids % self._period == self._state % self._period

    def advance(self, token: int) -> None:
        mask = self.mask()
        assert mask is None or mask[token], "a token that the mask forbids was emitted"
        self._state = self._state * 3 + token + 1


@pytest.fixture(scope="session")
def step_constraint() -> type[StepConstraint]:
    return StepConstraint
