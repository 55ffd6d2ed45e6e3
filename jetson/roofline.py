"""The roofline of decoding: bytes that a verify step and a draft step must move, and the tokens per second they allow.

Decoding on these devices is bound by memory: a step cannot be faster than its bytes over the bandwidth. Nothing here is
measured; what must stay true is that every figure follows from `ModelSpec`, the precision and the bandwidth alone.

Source of the formulas: one verify of N nodes reads every weight once, the keys and values of the context once, reads
and writes the recurrent and convolution state once (the commit), writes and reads one capsule per node (a state per
node would be 3 MiB per layer and node instead), and writes and reads the logits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from edgellm.checkpoint.spec import ModelSpec
from edgellm.jetson.devices import Device
from edgellm.jetson.precision import Precision, weight_counts
from edgellm.jetson.sequence import capsule_bytes, conv_bytes, kv_token_bytes, state_bytes

REDUCED_VOCABULARY = 32_768  # tokens of a draft head over a part of the vocabulary
GEMM_SHARE = 0.85  # of the peak bandwidth that the matrix products of a step are taken to reach; to be measured
OVERHEAD_MS = 4.0  # launches, gaps and host work beside them that a cautious estimate adds to a step; to be measured


@dataclass(frozen=True, slots=True)
class VerifyBytes:
    """Bytes that one verify step moves, by part."""

    weights: float
    head: float
    kv: float
    state: float
    conv: float
    capsules: float
    logits: float

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values()))


def verify_bytes(spec: ModelSpec, precision: Precision, *, context: int, nodes: int) -> VerifyBytes:
    """Bytes of one verify step of `nodes` nodes (1: a step without speculation) behind `context` cached tokens."""
    counts = weight_counts(spec)
    return VerifyBytes(
        weights=sum(counts[part] * precision.per_weight(part) for part in ("gdn", "attention", "mlp")),
        head=precision.head_bytes(spec),
        kv=context * kv_token_bytes(spec, precision.kv, mtp=False),
        state=2 * state_bytes(spec),
        conv=2 * conv_bytes(spec),
        capsules=2 * nodes * capsule_bytes(spec),
        logits=2 * nodes * spec.vocab * 4,
    )


def draft_bytes(spec: ModelSpec, precision: Precision, *, context: int, vocabulary: int | None = None) -> float:
    """Bytes of one draft step: the MTP layer, its head over `vocabulary` tokens (None: all) and its keys and values."""
    layer = weight_counts(spec)["mtp"] * precision.mtp
    return layer + precision.head_bytes(spec, vocabulary) + context * _mtp_kv(spec, precision)


def _mtp_kv(spec: ModelSpec, precision: Precision) -> float:
    return kv_token_bytes(spec, precision.kv, mtp=True) - kv_token_bytes(spec, precision.kv, mtp=False)


def milliseconds(size: float, gb_s: float) -> float:
    """Time to move `size` bytes at `gb_s` x 10^9 bytes per second."""
    return size / gb_s / 1e6


@dataclass(frozen=True, slots=True)
class Step:
    """One round of speculative decoding: draft steps, then a verify.

    Attributes:
        label: what was assumed.
        verify_ms, draft_ms: of the verify, and of all draft steps together.
        overhead_ms: added for everything that moves no bytes.
    """

    label: str
    verify_ms: float
    draft_ms: float
    overhead_ms: float = 0.0

    @property
    def ms(self) -> float:
        return self.verify_ms + self.draft_ms + self.overhead_ms

    def tokens_per_s(self, accepted: float) -> float:
        """With `accepted` tokens gained per step on average, the bonus token included."""
        return 1000 * accepted / self.ms

    def accepted_for(self, tpot_ms: float) -> float:
        """Accepted length at which a token takes `tpot_ms` on average."""
        return self.ms / tpot_ms


def decode_steps(
    spec: ModelSpec, precision: Precision, device: Device, *, context: int, nodes: int, drafts: int
) -> list[Step]:
    """Steps of `drafts` draft steps and a verify on `device`, from the most to the least hopeful assumption.

    At the data sheet's bandwidth with a full and a reduced draft head, at the best read bandwidth that was measured,
    and at `GEMM_SHARE` of the peak with `OVERHEAD_MS`; without drafts for a model that has no MTP layer.
    """
    verify = verify_bytes(spec, precision, context=context, nodes=nodes).total
    count = drafts if spec.mtp_layers else 0
    reduced = min(REDUCED_VOCABULARY, spec.vocab)

    def step(label: str, gb_s: float, vocabulary: int | None, overhead_ms: float = 0.0) -> Step:
        draft = count * draft_bytes(spec, precision, context=context, vocabulary=vocabulary) if count else 0.0
        head = "full" if vocabulary is None else f"{vocabulary:,}-token"
        return Step(f"{label}, {head} draft head", milliseconds(verify, gb_s), milliseconds(draft, gb_s), overhead_ms)

    peak = device.peak_gb_s
    steps = [step(f"{peak:g} GB/s, peak", peak, None), step(f"{peak:g} GB/s, peak", peak, reduced)]
    if device.read_gb_s is not None:
        steps.append(step(f"{device.read_gb_s:g} GB/s, measured read", device.read_gb_s, reduced))
    cautious = GEMM_SHARE * peak
    steps.append(step(f"{cautious:.0f} GB/s + {OVERHEAD_MS:g} ms, cautious", cautious, reduced, OVERHEAD_MS))
    return steps
