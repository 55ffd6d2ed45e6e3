"""A quick look at how well held-out conversations are predicted, between training steps.

Every assistant token is predicted from the true tokens before it. A turn of which all are the most probable ones is
exactly the turn that greedy decoding would write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from edgellm.text.tokenizer import Tokenizer
from edgetiny.batches import Batch, Tokens
from edgetiny.conversations import conversation
from edgetiny.loss import draft_mask
from edgetiny.model import EdgeTiny
from edgetiny.rendering import render
from edgetiny.tokenizer import chat_template

_SEED: Final = 1_000_003
_BATCH: Final = 8


class HeldOut:
    """A fixed sample of held-out conversations of the last stage."""

    def __init__(self, tokenizer: Path, count: int) -> None:
        loaded, template = Tokenizer.load(tokenizer), chat_template()
        made = [conversation(_SEED, index, "held_out", 1.0) for index in range(count)]
        samples: list[tuple[Tokens, str]] = [(render(one, loaded, template), one["kind"]) for one in made]
        self._samples = sorted(samples, key=lambda sample: len(sample[0][0]))

    def check(self, model: EdgeTiny) -> dict[str, Any]:
        """Shares: of tokens predicted, of turns predicted whole (in all and per kind), of tokens each draft step hits.

        Draft steps are teacher-forced too: step s given that the s tokens before it were drafted right.
        """
        tokens, drafts = [], defaultdict[int, list[bool]](list)
        turns = defaultdict[str, list[bool]](list)
        for start in range(0, len(self._samples), _BATCH):
            part = self._samples[start : start + _BATCH]
            batch = Batch.of([sample for sample, _ in part])
            right, hits = _predicted(model, batch)
            tokens += right[batch.mask[:, 1:]].tolist()
            for row, (_, kind) in enumerate(part):
                turns[kind] += _whole(right[row].tolist(), batch.mask[row, 1:].tolist())
            for step, hit in enumerate(hits, 1):
                drafts[step] += hit[draft_mask(batch.mask, step)].tolist()
        whole = [turn for found in turns.values() for turn in found]
        return {
            "tokens_right": _share(tokens),
            "turns_right": _share(whole),
            "turns": len(whole),
            "kinds": {kind: _share(found) for kind, found in sorted(turns.items())},
            "drafts_right": [_share(found) for found in drafts.values()],
        }


def _predicted(model: EdgeTiny, batch: Batch, steps: int = 8) -> tuple[Tensor, list[Tensor]]:
    """Where the best token is the true one: [B, T-1] of the decoder, [B, T-2] of each draft step."""
    with torch.no_grad():
        hidden, drafts = model(batch.ids, steps)
        head = model.head.to(model.compute)
        best = [(rows[:, :-1].to(model.compute) @ head.t()).argmax(-1) for rows in (hidden, *drafts)]
    return best[0] == batch.ids[:, 1:], [found == batch.ids[:, 2:] for found in best[1:]]


def _whole(right: Sequence[bool], mask: Sequence[bool]) -> list[bool]:
    """For each run of true `mask`: whether all of it is `right`."""
    found: list[bool] = []
    inside = False
    for good, learn in zip(right, mask, strict=True):
        if learn:
            found = [*found[:-1], found[-1] and good] if inside else [*found, good]
        inside = learn
    return found


def _share(found: Sequence[bool]) -> float:
    return round(sum(found) / max(len(found), 1), 4)
