"""The engine: one thread that owns the executor and keeps every running request moving.

Requests come from any thread or event loop through `submit`; outputs leave through `Generation`. A turn of the loop is:
end what was cancelled or is late, admit, compute one prefill chunk, then one decode round over all decoding sequences.
What must stay true: only the engine's thread touches the executor and the cache; nobody who waits is left waiting: if
the engine dies, every request ends with an error and later ones are refused.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future
from itertools import count
from typing import TypeVar

from edgellm.cache import EventBus, Offloaded, PrefixCache, PrefixStore, Recalled, Tier, TokenKey, offload, recall
from edgellm.cache.keys import Tokens
from edgellm.decode.draft import draft_tree
from edgellm.decode.params import SpeculationParams
from edgellm.engine.base import Chunk, Executor, ExecutorInfo
from edgellm.errors import EngineDeadError, ExecutionError, RequestError
from edgellm.runtime.adaptive import OFF, AutoSpeculation
from edgellm.runtime.checks import check_request
from edgellm.runtime.generation import Channel
from edgellm.runtime.generation import Generation as Generation
from edgellm.runtime.metered import ExecutorFault, MeteredExecutor
from edgellm.runtime.scheduler import Scheduler
from edgellm.runtime.sequence import Phase, Sequence
from edgellm.runtime.settings import EngineSettings
from edgellm.runtime.stats import EngineStats, Totals
from edgellm.runtime.stepper import Stepper
from edgellm.runtime.transfers import IDLE_PIECE_BYTES, PIECE_BYTES, Transfers
from edgellm.runtime.types import FinishReason, Request
from edgellm.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Engine:
    """See the module's docstring. Takes over the executor, once it is made: `close` closes it.

    Args:
        tokenizer: turns tokens into text.
        eos: tokens that end a sequence unless a request ignores them.
        spoken: texts of control tokens that belong to an answer's text.
        clock: seconds, for deadlines and timings.

    Raises:
        ConfigError: a setting is out of range.
        Exception: whatever the executor raises while it is warmed up.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        settings: EngineSettings,
        *,
        eos: Collection[int],
        spoken: Collection[str] = (),
        events: EventBus | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = MeteredExecutor(executor)
        self.info: ExecutorInfo = self._executor.info
        self._tokenizer = tokenizer
        self._settings = settings
        self._eos = frozenset(eos)
        self._spoken = frozenset(spoken)
        self._clock = clock
        self.cache = PrefixCache(
            self._executor,
            block_budget_bytes=settings.block_budget,
            snapshot_budget_bytes=settings.snapshot_budget,
            retained_share=settings.retained_share,
            events=events,
        )
        self._prefixes = None if settings.cache_dir is None else PrefixStore(self.cache, settings.cache_dir)
        self._tier = Tier(
            self.info, budget_bytes=settings.offload_bytes, directory=settings.offload_dir, clock=time.monotonic
        )
        self._totals = Totals()
        self._transfers = Transfers(self._totals)
        self._scheduler = Scheduler(self.info.slots, settings.max_queue)
        self._stepper = Stepper(
            self._executor,
            self.cache,
            self._prefixes,
            self._totals,
            prefill_chunk=settings.prefill_chunk,
            leave=self._left,
            clock=clock,
        )
        self._can_draft = self.info.draft_top_k > 0 and self.info.max_tree > 1
        asked = settings.speculation
        self._default = asked if isinstance(asked, SpeculationParams) else OFF
        self._auto = AutoSpeculation(settings.full_tree) if asked == "auto" and self._can_draft else None
        self._memory = executor.memory()
        self._memory_changed = False
        self._wake = threading.Condition()  # guards what follows
        self._cancelled: set[Sequence] = set()
        self._orders = count()
        self._closing = False
        self._dead: str | None = None
        self._started = threading.Event()
        self._start_error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="edgellm-engine", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self._tier.close()
            raise self._start_error
        atexit.register(self.close)

    # -- from any thread

    def submit(self, request: Request) -> Generation:
        """Queue a request.

        Raises:
            RequestError: it is invalid; names the field.
            QueueFullError: too many requests wait.
            EngineDeadError: the engine was closed or died.
        """
        key = check_request(request, self.info)
        channel = Channel()
        sequence = Sequence(
            request,
            key,
            channel,
            self._tokenizer,
            order=next(self._orders),
            now=self._clock(),
            context=self.info.max_tokens,
            eos=self._eos,
            spoken=self._spoken,
        )
        channel.on_cancel = lambda: self._cancel(sequence)
        with self._wake:
            self._check_open()
            self._scheduler.enqueue(sequence)
            self._wake.notify()
        return Generation(request.id, channel)

    def offload(self, tokens: Tokens, *, salt: str = "") -> Future[Offloaded]:
        """Move what is cached of a conversation to the second tier (see `edgellm.cache.transfer`), between turns.

        Without room there, or without a tier, the result says so and the cache stays as it was. A future can be
        cancelled until its turn comes; its callbacks run on the engine's thread.

        Args:
            tokens: all that the conversation has committed, its last answer included.

        Raises:
            RequestError: `tokens` are no token ids.
            EngineDeadError: the engine was closed or died; later the future has it.
        """
        return self._transfer(offload(self.cache, self._tier, _packed(tokens), salt=salt))

    def recall(self, tokens: Tokens, *, salt: str = "") -> Future[Recalled]:
        """Bring back what the second tier has of a conversation's tokens, between turns.

        Cheap when it has nothing: the result then says what the cache has.

        Raises:
            As `offload`.
        """
        return self._transfer(recall(self.cache, self._tier, _packed(tokens), salt=salt, step_bytes=PIECE_BYTES))

    def _transfer(self, steps: Generator[int, None, _Result]) -> Future[_Result]:
        with self._wake:
            self._check_open()
            future = self._transfers.add(steps)
            self._wake.notify()
        return future

    def _check_open(self) -> None:
        if self._closing or self._dead is not None:
            raise EngineDeadError(self._dead or "the engine is closed")

    @property
    def queued(self) -> int:
        """Requests that wait for a slot now."""
        with self._wake:
            return self._scheduler.queued

    def stats(self) -> EngineStats:
        """What was done so far and is held now; also of an engine that is dead or closed."""
        totals, scheduler = self._totals, self._scheduler
        executor_s = self._executor.seconds
        with self._wake:
            return EngineStats(
                healthy=self._dead is None and not self._closing,
                error=self._dead or ("the engine is closed" if self._closing else None),
                queued=scheduler.queued,
                running=scheduler.running,
                slots=self.info.slots,
                slots_free=scheduler.free_slots,
                prompt_tokens=totals.prompt_tokens,
                cached_tokens=totals.cached_tokens,
                prefilled_tokens=totals.prefilled_tokens,
                generated_tokens=totals.generated_tokens,
                drafted_tokens=totals.drafted_tokens,
                accepted_tokens=totals.accepted_tokens,
                steps=totals.steps,
                verify_steps=totals.verify_steps,
                prefill_chunks=totals.prefill_chunks,
                faults=totals.faults,
                finished=dict(totals.finished),
                executor_s=executor_s,
                host_s=totals.host_s,
                cache=self.cache.stats(),
                tier=self._tier.stats(),
                memory=dict(self._memory),
            )

    def close(self) -> None:
        """Stop: whatever runs or waits ends with "abort", prefixes are saved, the executor is closed. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def _cancel(self, sequence: Sequence) -> None:
        with self._wake:
            if sequence.phase is not Phase.DONE:
                self._cancelled.add(sequence)
                self._wake.notify()

    def _left(self, sequence: Sequence) -> None:
        with self._wake:
            self._scheduler.leave(sequence)
        self._memory_changed = True

    # -- the engine's thread

    def _main(self) -> None:
        try:
            self._start()
        except BaseException as error:
            self._start_error = error
            return
        finally:
            self._started.set()
        try:
            while self._wait():
                start, inside = time.perf_counter(), self._executor.seconds
                self._turn()
                self._totals.host_s += time.perf_counter() - start - (self._executor.seconds - inside)
        except BaseException as error:
            logger.critical("the engine stops", exc_info=error)
            with self._wake:
                self._dead = f"the engine stopped after a fault: {error}"
        self._shut_down()

    def _start(self) -> None:
        if self._settings.warm_up:
            try:
                _warm_up(self._executor, self._settings.full_tree if self._can_draft else OFF)
            except ExecutorFault as fault:
                raise ExecutionError(f"the first run of the model failed: {fault}") from fault
        if self._prefixes is not None:
            self._prefixes.load_all()

    def _wait(self) -> bool:
        """Sleep until there is work; False when the engine is to stop. Noted prefixes are saved in quiet moments."""
        if self._memory_changed:
            self._memory, self._memory_changed = self._executor.memory(), False
        while not self._closing and not self._work_waits and self._save_prefix():
            pass  # one at a time: a request may come
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._work_waits)
            return not self._closing

    @property
    def _work_waits(self) -> bool:
        return not self._scheduler.idle or self._transfers.pending

    def _save_prefix(self) -> bool:
        """Write one noted prefix to the cache folder; False when there is none."""
        try:
            return self._prefixes is not None and self._prefixes.flush(1) > 0
        except ExecutorFault as fault:
            logger.error("prefixes are no longer saved: the executor cannot dump them", exc_info=fault)
            self._prefixes = None
            return False

    def _turn(self) -> None:
        scheduler, stepper = self._scheduler, self._stepper
        with self._wake:
            cancelled, late = scheduler.ended(self._clock(), self._cancelled)
            self._cancelled.clear()
        for sequence in cancelled:
            stepper.drop(sequence, "abort")
        for sequence in late:
            stepper.drop(sequence, "deadline")
        with self._wake:
            scheduler.admit()
        next_to_prefill, decoding = scheduler.to_prefill(), scheduler.to_decode()
        if next_to_prefill is not None:
            stepper.prefill(next_to_prefill)
        if decoding:
            self._decode_round(decoding)
        if self._transfers.pending and self._transfers.work(IDLE_PIECE_BYTES if scheduler.idle else PIECE_BYTES):
            self._memory_changed = True

    def _decode_round(self, decoding: list[Sequence]) -> None:
        """One step of every decoding sequence: single tokens together, trees one by one.

        A round in which a prediction told what comes next says nothing about the draft layer.
        """
        default, size = self._default, len(decoding)
        if self._auto is not None:
            default = self._auto.choose(size)
            start, tokens = time.perf_counter(), self._totals.generated_tokens
        plain: list[Sequence] = []
        guessed = False
        for sequence in decoding:
            params = sequence.request.speculation or default
            if guess := sequence.guess(self.info.max_tree):
                guessed = True
                self._stepper.speculate(sequence, params, guess)
            elif params.enabled and self._can_draft and sequence.remaining > 1:
                self._stepper.speculate(sequence, params)
            else:
                plain.append(sequence)
        for first in range(0, len(plain), self.info.max_batch):
            self._stepper.decode(plain[first : first + self.info.max_batch])
        if self._auto is not None and not guessed:
            seconds = time.perf_counter() - start
            self._auto.record(size, default, seconds, self._totals.generated_tokens - tokens)

    def _shut_down(self) -> None:
        reason: FinishReason = "abort" if self._dead is None else "error"
        for sequence in self._scheduler.everyone():
            try:
                self._stepper.drop(sequence, reason, self._dead)
            except Exception as error:
                logger.error("request %s: %s", sequence.request.id, error)
        with self._wake:
            self._scheduler.forget_queue()
        try:
            self._transfers.close(self._dead or "the engine was closed")
            if self._prefixes is not None and self._dead is None:
                self._prefixes.close()
            self.cache.clear()
            self._memory = self._executor.memory()
        except Exception as error:
            logger.error("while the engine was closed", exc_info=error)
        finally:
            self._tier.close()
            self._executor.close()


def _packed(tokens: Tokens) -> TokenKey:
    try:
        return TokenKey(tokens)
    except (OverflowError, TypeError) as error:
        raise RequestError(f"tokens: {error}", param="tokens", code="invalid_value") from error


def _warm_up(executor: MeteredExecutor, shape: SpeculationParams) -> None:
    """Run a chunk, a single token and a tree once: first runs allocate and are slow."""
    info = executor.info
    size = min(16, info.max_chunk)
    if info.max_tokens < size + 2 + shape.steps:
        return
    executor.reset(0)
    executor.advance([Chunk(0, [0] * size, True)])
    executor.advance([Chunk(0, [0], True)])
    if shape.enabled:
        executor.verify(draft_tree(executor, 0, 0, shape, max_depth=shape.steps).tree)
        executor.commit(0, [0])
    executor.reset(0)
