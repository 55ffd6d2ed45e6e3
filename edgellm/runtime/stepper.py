"""The model work of one step, for one sequence or one batch: prefill, decode, verify, and what is kept afterwards.

Runs on the engine thread. What must stay true: the cache is given committed tokens only, and a sequence that is stopped
midway leaves there what it had stored by then, nothing else; a fault of one request ends that request, a fault of the
executor ends those whose slots were involved; every sequence that got a slot passes through `finish` or `drop` once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from edgellm.cache import PrefixCache, PrefixStore, SnapshotKind, TokenKey, keep_after_generation, plan_snapshots
from edgellm.decode.accept import accept_row, accept_tree
from edgellm.decode.draft import Drafter
from edgellm.decode.params import SpeculationParams
from edgellm.engine.base import Chunk, TokenTree
from edgellm.errors import EdgeLLMError
from edgellm.runtime.metered import ExecutorFault, MeteredExecutor
from edgellm.runtime.sequence import Phase, Sequence, Taken
from edgellm.runtime.stats import Totals
from edgellm.runtime.types import FinishReason, Output

logger = logging.getLogger(__name__)

MAX_FAULTS = 3  # executor calls in a row that fail before the engine gives up


class BrokenExecutorError(Exception):
    """The executor cannot be trusted any more."""


class Stepper:
    """See the module's docstring.

    Args:
        leave: called when a sequence no longer uses its slot.
        prefill_chunk: most tokens of one prefill step.
    """

    def __init__(
        self,
        executor: MeteredExecutor,
        cache: PrefixCache,
        prefixes: PrefixStore | None,
        totals: Totals,
        *,
        prefill_chunk: int,
        leave: Callable[[Sequence], None],
        clock: Callable[[], float],
    ) -> None:
        info = executor.info
        self._executor = executor
        self._cache = cache
        self._prefixes = prefixes
        self._totals = totals
        self._chunk = min(prefill_chunk, info.max_chunk)
        self._leave = leave
        self._clock = clock
        budgets = cache.stats()
        self._caching = (
            budgets.snapshot_budget_bytes >= info.snapshot_bytes and budgets.block_budget_bytes >= info.block_bytes
        )
        self._faults = 0  # in a row

    # -- steps

    def prefill(self, sequence: Sequence) -> None:
        """Compute the sequence's next chunk; with the last one comes its first token."""
        with self._faults_of([sequence]):
            if sequence.lease is None:
                self._begin(sequence)
            prompt, start = sequence.request.prompt, sequence.length
            target = sequence.points[-1].offset if sequence.points else len(prompt)
            end = min(start + self._chunk, target)
            last = end == len(prompt)
            logits = self._executor.advance([Chunk(sequence.slot, prompt[start:end], last)])
            self._faults = 0
            sequence.length = end
            self._totals.prefill_chunks += 1
            self._totals.prefilled_tokens += end - start
            if last:
                sequence.phase = Phase.DECODE
                sequence.first_token_at = self._clock()
                self._deliver(sequence, sequence.take(accept_row(logits, 0, sequence.sampler, sequence.stop)))
            elif end == target:
                self._store(sequence, sequence.key, sequence.points.pop().kind)

    def decode(self, batch: list[Sequence]) -> None:
        """One token for each of up to `max_batch` sequences."""
        self._totals.steps += 1
        results: list[Taken | Exception] = []
        with self._faults_of(batch):
            logits = self._executor.advance([Chunk(sequence.slot, (sequence.root,), True) for sequence in batch])
            self._faults = 0
            for row, sequence in enumerate(batch):  # all rows first: they are valid until the next executor call
                sequence.length += 1
                try:
                    results.append(sequence.take(accept_row(logits, row, sequence.sampler, sequence.stop)))
                except Exception as error:
                    results.append(error)
        for sequence, result in zip(batch, results, strict=False):  # none after a fault of the executor
            with self._faults_of([sequence]):
                if isinstance(result, Exception):
                    raise result
                self._deliver(sequence, result)

    def speculate(self, sequence: Sequence, params: SpeculationParams, guess: tuple[int, ...] = ()) -> None:
        """Draft a tree, verify it, take what the model agrees with. At least two tokens may still be generated.

        With a `guess` of what comes next, that is the tree; the draft layer is not asked.
        """
        totals = self._totals
        totals.steps += 1
        with self._faults_of([sequence]):
            if guess:
                tree = TokenTree(sequence.slot, [sequence.root, *guess], list(range(-1, len(guess))))
            else:
                tree = self._draft(sequence, params)
            logits = self._executor.verify(tree)
            self._faults = 0
            step = sequence.take(accept_tree(tree, logits, sequence.sampler, sequence.stop))
            drafted, accepted = len(tree.tokens) - 1, len(step.path) - 1
            sequence.judge(drafted, accepted, guessed=bool(guess))
            totals.verify_steps += 1
            totals.drafted_tokens += drafted
            totals.accepted_tokens += accepted
            self._deliver(sequence, step, step.path)

    def drop(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End a sequence from outside, queued or running."""
        if not sequence.channel.finished:
            self._send_last(sequence, Output(finish_reason=reason, error=error))
        if sequence.slot >= 0:
            self._vacate(sequence)

    # -- parts of steps

    def _draft(self, sequence: Sequence, params: SpeculationParams) -> TokenTree:
        """A tree by the draft layer."""
        drafter = Drafter(
            sequence.slot,
            sequence.root,
            params,
            max_nodes=self._executor.info.max_tree,
            max_depth=sequence.remaining - 1,
            terminal=sequence.stop.ending,
        )
        while (nodes := drafter.pending()) is not None:
            drafter.feed(self._executor.draft([nodes])[0])
        return drafter.finish().tree

    def _begin(self, sequence: Sequence) -> None:
        """Restore what the cache has and plan where snapshots are taken.

        Done with the first chunk, not on admission: what others have prefilled meanwhile can be used too.
        """
        request, size = sequence.request, len(sequence.key)
        sequence.started_at = self._clock()
        limit = size - 1 if request.cache.read else 0
        lease = sequence.lease = self._cache.acquire(sequence.key, salt=request.cache.salt, limit=limit)
        self._executor.restore(sequence.slot, lease.length, lease.blocks, lease.snapshot)
        sequence.length = sequence.restored = lease.length
        self._totals.prompt_tokens += size
        self._totals.cached_tokens += lease.length
        if request.cache.write and self._caching:
            points = plan_snapshots(
                size,
                restored=lease.length,
                matched=lease.matched,
                stable_lengths=request.stable_lengths,
                kept_lengths=sequence.retention.kept_lengths,
            )
            sequence.points = list(reversed(points))
            if not points:
                self._cache.keep(sequence.key, sequence.retention, namespace=lease.namespace)

    def _store(self, sequence: Sequence, tokens: TokenKey, kind: SnapshotKind) -> None:
        """Give the cache all committed tokens of the slot: the first `sequence.length` of `tokens`."""
        retention, lease, end = sequence.retention, sequence.lease, sequence.length
        assert lease is not None
        stored = self._cache.store(lease, tokens, end, slot=sequence.slot, snapshot=kind, retention=retention)
        if stored and self._prefixes is not None:
            priority = retention.state_at(end, self._clock()).priority
            self._prefixes.maybe_save(tokens, end, salt=sequence.request.cache.salt, kind=kind, priority=priority)

    def _deliver(self, sequence: Sequence, step: Taken, path: tuple[int, ...] = ()) -> None:
        """Send what a step gave, then commit `path` of the verified tree; or end the sequence."""
        self._totals.generated_tokens += len(step.output.token_ids)
        if step.output.finish_reason is not None:
            self._send_last(sequence, step.output)
            self._keep(sequence, path)
            self._vacate(sequence)
            return
        sequence.channel.push(step.output)
        if path:
            self._executor.commit(sequence.slot, path)
            sequence.length += len(path)

    def _keep(self, sequence: Sequence, path: tuple[int, ...]) -> None:
        """Keep the state after the answer when the next turn can use it."""
        request = sequence.request
        if not (
            self._caching and request.cache.write and keep_after_generation(len(sequence.key), request.stable_lengths)
        ):
            return
        try:
            if path:
                self._executor.commit(sequence.slot, path)
                sequence.length += len(path)
            self._store(sequence, sequence.held(), "output")
        except Exception as error:  # the answer is out; only what would have been kept is lost
            self._count_fault(error)

    def _send_last(self, sequence: Sequence, output: Output) -> None:
        reason, now = output.finish_reason, self._clock()
        assert reason is not None
        self._totals.finished[reason] = self._totals.finished.get(reason, 0) + 1
        sequence.channel.push(replace(output, usage=sequence.usage(), timing=sequence.timing(now)))

    def _vacate(self, sequence: Sequence) -> None:
        """The sequence no longer uses the cache and its slot."""
        if sequence.lease is not None:
            self._cache.release(sequence.lease)
        try:
            self._executor.reset(sequence.slot)
        except ExecutorFault as fault:
            raise BrokenExecutorError(f"slot {sequence.slot} cannot be reset: {fault}") from fault
        finally:
            self._leave(sequence)

    # -- faults

    @contextmanager
    def _faults_of(self, sequences: list[Sequence]) -> Iterator[None]:
        """Work for `sequences`: what goes wrong in it ends them and nothing else."""
        try:
            yield
        except BrokenExecutorError:
            raise
        except ExecutorFault as fault:
            for sequence in sequences:
                self._end_at_fault(sequence, f"the model run failed: {fault}")
            self._count_fault(fault)
        except Exception as error:
            expected = isinstance(error, EdgeLLMError)
            for sequence in sequences:
                logger.warning(
                    "request %s failed: %s", sequence.request.id, error, exc_info=None if expected else error
                )
                self._end_at_fault(sequence, str(error) if expected else f"{type(error).__name__}: {error}")

    def _end_at_fault(self, sequence: Sequence, message: str) -> None:
        if not sequence.channel.finished:
            self._send_last(sequence, Output(finish_reason="error", error=message))
        if sequence.phase is not Phase.DONE:
            self._vacate(sequence)

    def _count_fault(self, error: Exception) -> None:
        logger.error("an executor call failed", exc_info=error)
        self._totals.faults += 1
        self._faults += 1
        if self._faults >= MAX_FAULTS:
            raise BrokenExecutorError(f"{self._faults} executor calls in a row failed, the last with: {error}")
