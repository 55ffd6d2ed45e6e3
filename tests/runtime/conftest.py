"""Engines over the scripted executor, a way to stop one in the middle of a call, and the tiny model's files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgellm.checkpoint.synth import make_checkpoint
from edgellm.decode.params import SamplingParams
from edgellm.engine.scripted import ScriptedExecutor
from edgellm.runtime.engine import Engine
from edgellm.runtime.generation import Generation
from edgellm.runtime.results import Collector, Result
from edgellm.runtime.settings import EngineSettings
from edgellm.runtime.types import Output, Request
from edgellm.text.chat import ChatRenderer
from edgellm.text.tokenizer import Tokenizer

PATIENCE_S = 60.0  # a hanging test fails after this


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint."""
    return make_checkpoint("tiny", tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint)


@pytest.fixture(scope="session")
def renderer(checkpoint: Path, tokenizer: Tokenizer) -> ChatRenderer:
    return ChatRenderer.load(checkpoint, tokenizer)


class Hold:
    """The engine thread stops at one call until `open`."""

    def __init__(self, operation: str, number: int) -> None:
        self.operation = operation
        self.left = number
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        """Until the engine thread is held."""
        assert self.reached.wait(PATIENCE_S), f"the {self.operation} to hold at never came"

    def open(self) -> None:
        self.opened.set()


class Gate:
    """An `on_call` hook that can hold the engine thread in calls of its executor."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []

    def __call__(self, operation: str, _: int) -> None:
        for hold in [hold for hold in self._holds if hold.operation == operation]:
            hold.left -= 1
            if hold.left == 0:
                self._holds.remove(hold)
                hold.reached.set()
                assert hold.opened.wait(PATIENCE_S), "the gate was never opened"

    def hold(self, operation: str, number: int = 1) -> Hold:
        """Stop at the `number`-th call of `operation` from now on."""
        hold = Hold(operation, number)
        self._holds.append(hold)
        return hold


@pytest.fixture
def gate() -> Gate:
    return Gate()


class Rig:
    """An engine over a scripted executor, and what tests ask of it."""

    def __init__(self, tokenizer: Tokenizer, executor: ScriptedExecutor, engine: Engine) -> None:
        self.tokenizer = tokenizer
        self.executor = executor
        self.engine = engine
        self._count = 0

    def submit(self, prompt: Sequence[int], sampling: SamplingParams | None = None, **fields: Any) -> Generation:
        self._count += 1
        chosen = sampling or SamplingParams(max_tokens=8)
        return self.engine.submit(Request(id=f"r{self._count}", prompt=tuple(prompt), sampling=chosen, **fields))

    def run(self, prompt: Sequence[int], sampling: SamplingParams | None = None, **fields: Any) -> Result:
        return collect(self.submit(prompt, sampling, **fields))

    def settle(self) -> None:
        """Wait until nothing runs, then check that nothing is held that should not be."""
        wait_until(lambda: self.engine.stats().running == 0 and self.engine.stats().queued == 0)
        stats, memory = self.engine.stats(), self.executor.memory()
        assert stats.slots_free == stats.slots
        assert stats.cache.leases == 0
        assert memory["n_blocks"] == stats.cache.blocks
        assert memory["n_snapshots"] == stats.cache.snapshots
        self.engine.cache.check()


def collect(generation: Generation) -> Result:
    collector = Collector()
    for output in generation:
        collector.add(output)
    return collector.result()


def last(generation: Generation) -> Output:
    outputs = list(generation)
    assert all(output.finish_reason is None for output in outputs[:-1])
    return outputs[-1]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)


@pytest.fixture
def open_rig(tokenizer: Tokenizer) -> Iterator[Callable[..., Rig]]:
    """Makes rigs: keywords of `EngineSettings`, `eos` and `clock` go to the engine, the others to the executor."""
    rigs: list[Rig] = []

    def make(script: Any = None, *, eos: Sequence[int] = (), **fields: Any) -> Rig:
        clock = {"clock": fields.pop("clock")} if "clock" in fields else {}
        wanted = {name: fields.pop(name) for name in list(fields) if name in EngineSettings.__dataclass_fields__}
        settings = EngineSettings(**{"block_budget": 1 << 30, "snapshot_budget": 1 << 30, "speculation": None} | wanted)
        executor = ScriptedExecutor(script, **{"vocab_size": tokenizer.vocab_size} | fields)
        rigs.append(Rig(tokenizer, executor, Engine(executor, tokenizer, settings, eos=eos, **clock)))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.engine.close()
        memory = rig.executor.memory()
        assert memory["n_blocks"] == memory["n_snapshots"] == 0, "references are left after close"


@pytest.fixture
def read_last() -> Callable[[Generation], Output]:
    """Read a generation to its end; its last output."""
    return last


@pytest.fixture
def read_all() -> Callable[[Generation], Result]:
    """Read a generation to its end; everything put together."""
    return collect


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds."""
    return wait_until
