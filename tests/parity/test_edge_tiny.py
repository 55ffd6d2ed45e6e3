"""The training code of edge-tiny computes the family's network: against transformers, the graphs and float64."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_runner import Graphs, Slot

from edgellm.checkpoint.reader import Checkpoint
from edgellm.checkpoint.small_tokenizer import write_small_tokenizer
from edgellm.checkpoint.spec import ModelSpec
from edgellm.graph.encodings import WeightFormat
from edgellm.graph.export import build_ort_graphs

try:
    import torch
except ImportError:
    pytest.skip("the parity extra is not installed", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "edge-tiny"))

from edgetiny.batches import Batch, Stream
from edgetiny.delta_rule import gated_delta_rule
from edgetiny.export import export, load_weights
from edgetiny.loss import losses
from edgetiny.model import EdgeTiny
from edgetiny.schedule import Schedule
from edgetiny.shape import CONFIG
from edgetiny.training import Settings, Trainer

pytestmark = pytest.mark.parity

TOLERANCE = 1e-4
SMALL = {
    **CONFIG,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 512,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
PROMPTS = {
    "random": np.random.default_rng(0).integers(0, 512, 77),
    "repeated": np.full(100, 7),
    "short": np.array([3]),
}
Rows = Any


def model_of(compute: Any = torch.float32) -> EdgeTiny:
    """A small network, its weights moved off their initial values and rounded to bfloat16."""
    model = EdgeTiny(ModelSpec.from_config(SMALL), 3, compute)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, param in model.named_parameters():
            noise = torch.randn(param.shape, generator=generator)
            scale = 2.0 if "proj" in name or "fc" in name else 1.0
            param.copy_((param * scale + noise * 0.05).bfloat16().float())
    return model


@pytest.fixture(scope="module")
def model() -> EdgeTiny:
    return model_of()


@pytest.fixture(scope="module")
def folder(model: EdgeTiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("edge-tiny")
    (parent / "tokenizer").mkdir()
    write_small_tokenizer(parent / "tokenizer", 512)
    export(model, parent / "tokenizer", parent / "checkpoint")
    return parent / "checkpoint"


@pytest.fixture(scope="module")
def reference(folder: Path) -> Callable[[Any], Any]:
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(loaded).__name__ == "Qwen3_5ForCausalLM"

    def forward(ids: Any) -> Any:
        with torch.no_grad():
            return loaded(torch.tensor(ids)[None]).logits[0].numpy()

    return forward


@pytest.fixture(scope="module")
def graphs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Graphs:
    made, checkpoint = tmp_path_factory.mktemp("graphs"), Checkpoint.open(folder)
    build_ort_graphs(checkpoint, made, WeightFormat())
    return Graphs(made, checkpoint.spec)


def rows_of(model: EdgeTiny, ids: Any, steps: int = 0) -> tuple[Rows, list[Rows]]:
    with torch.no_grad():
        hidden, drafts = model(torch.tensor(ids)[None], steps)
    return hidden[0], [draft[0] for draft in drafts]


@pytest.mark.parametrize("kind", PROMPTS)
def test_logits_are_those_of_transformers(model: EdgeTiny, reference: Callable[[Any], Any], kind: str) -> None:
    hidden, _ = rows_of(model, PROMPTS[kind])
    logits = (hidden @ model.head.detach().t()).numpy()
    assert logits.std() > 0.1
    assert np.abs(logits - reference(PROMPTS[kind])).max() <= TOLERANCE


def test_export_and_back(folder: Path, model: EdgeTiny) -> None:
    fresh = EdgeTiny(model.spec, 9, torch.float32)
    load_weights(fresh, folder)
    kept = model.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in fresh.state_dict().items())


@pytest.mark.parametrize("kind", PROMPTS)
def test_logits_are_those_of_the_graphs(model: EdgeTiny, graphs: Graphs, kind: str) -> None:
    hidden, _ = rows_of(model, PROMPTS[kind])
    logits = (hidden @ model.head.detach().t()).numpy()
    assert np.abs(Slot(graphs).advance(PROMPTS[kind]) - logits).max() <= 1e-3


def test_draft_rows_are_those_of_the_mtp_graph(model: EdgeTiny, graphs: Graphs) -> None:
    """Each step of a teacher-forced draft, from several roots, against the engine's chain of rows."""
    ids = PROMPTS["random"]
    _, drafts = rows_of(model, ids, 4)
    slot = Slot(graphs)
    slot.advance(ids)
    hidden = slot.hidden[0]
    got = slot.draft(ids[1:], hidden[:-1], 0)
    assert np.abs(got["hidden_out"][0] - drafts[0].numpy()).max() <= TOLERANCE
    best = torch.topk(drafts[0] @ model.head.detach().t(), 4, dim=-1)
    assert np.abs(got["topk_logits"] - best.values.numpy()).max() <= TOLERANCE
    for root in (1, 20, 60):  # its row is root - 1
        slot.draft(ids[1:root], hidden[: root - 1], 0) if root > 1 else None
        row = hidden[root - 1 : root]
        for step in range(4):
            row = slot.draft(ids[root + step : root + step + 1], row, root - 1 + step)["hidden_out"][0]
            assert np.abs(row[0] - drafts[step][root - 1 + step].numpy()).max() <= TOLERANCE, (root, step)


def sequential(q: Rows, k: Rows, v: Rows, g: Rows, beta: Rows) -> Rows:
    share = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(share, 2), k.repeat_interleave(share, 2)
    state, out = torch.zeros(len(v), v.shape[2], k.shape[3], v.shape[3], dtype=v.dtype), []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        fresh = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], fresh)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1)


@pytest.mark.parametrize("length", [1, 32, 77])
@pytest.mark.parametrize("alike", [0.0, 100.0])
def test_delta_rule_and_its_gradients(length: int, alike: float) -> None:
    torch.manual_seed(length)
    q, k = (torch.randn(2, length, 2, 8, dtype=torch.float64) for _ in range(2))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k + alike))
    v, weights = (torch.randn(2, length, 4, 6, dtype=torch.float64) for _ in range(2))
    g, beta = -torch.rand(2, length, 4, dtype=torch.float64) * 0.2, torch.rand(2, length, 4, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v, g, beta)]
    got, wanted = gated_delta_rule(*inputs), sequential(*inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    pair = [torch.autograd.grad((x * weights).sum(), inputs) for x in (got, wanted)]
    torch.testing.assert_close(pair[0], pair[1], rtol=1e-9, atol=1e-9)


def test_losses_and_their_gradients(model: EdgeTiny) -> None:
    """Against plain cross entropy; padding and the other sequences of a batch change nothing."""
    generator = np.random.default_rng(1)
    samples = [(generator.integers(0, 512, n), generator.random(n) < 0.6) for n in (9, 40, 23)]
    batch = Batch.of(samples)
    base, steps = losses(model(batch.ids, 3), batch.ids, batch.mask, model.head, torch.float32)
    total, wanted = torch.zeros(()), [torch.zeros(()) for _ in range(4)]
    for ids, mask in samples:
        row = torch.tensor(ids)
        hidden, drafts = model(row[None], 3)
        for at in range(1, len(ids)):
            for n, rows in enumerate((hidden, *drafts)):  # n steps after the root, which is token at-n
                if mask[at] and at - n >= (1 if n else 0) and mask[at - n]:
                    logits = rows[0, at - 1 - (n > 0)] @ model.head.t()
                    wanted[n] = wanted[n] + torch.nn.functional.cross_entropy(logits, row[at])
    torch.testing.assert_close((base, *steps), tuple(wanted), rtol=1e-4, atol=1e-4)
    total = base + sum(steps)
    pair = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in (total, sum(wanted))]
    torch.testing.assert_close(pair[0], pair[1], rtol=1e-3, atol=1e-3)


def sample(index: int, stage: float) -> tuple[list[int], list[bool]]:
    ids = np.random.default_rng(index).integers(0, 512, 10 + index % 30).tolist()
    return ids, [n > 5 for n in range(len(ids))]


def test_repeated_pairs_of_the_prompt_are_marked() -> None:
    batch = Batch.of([([5, 6, 7, 5, 6, 8, 5, 6], [0, 0, 0, 0, 0, 0, 0, 1]), ([1, 1, 1], [0, 0, 0])])
    assert batch.repeats.tolist() == [
        [False, False, False, False, True, False, False, False],  # the last one is learnt anyway
        [False, False, True, False, False, False, False, False],
    ]
    assert batch.mask.sum() == 1


def test_stream_resumes() -> None:
    stream = Stream(sample, size=128, longest=36, pool=16)
    for _ in range(7):
        stream.next(0.25)
    resumed = Stream(sample, size=128, longest=36, pool=16, state=stream.state())
    for _ in range(20):
        one, other = stream.next(0.5), resumed.next(0.5)
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.mask, other.mask)
        assert one.ids.numel() <= 128
        assert one.ids.shape[1] <= 36


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_training_resumes_bit_for_bit(optimizer: str, tmp_path: Path) -> None:
    settings = Settings(optimizer=optimizer, micro_tokens=256, longest=64)
    schedule = Schedule(100_000, 1000, 0.2, 40_000)

    def trainer(threads: int, state: Any = None) -> Trainer:
        return Trainer(model_of(torch.bfloat16), sample, schedule, settings, threads=threads, state=state)

    whole, half = trainer(2), trainer(1)
    for _ in range(4):
        whole.step()
    for _ in range(2):
        half.step()
    torch.save(half.state(), tmp_path / "state.pt")
    rest = trainer(2, torch.load(tmp_path / "state.pt", weights_only=True))
    losses = [rest.step()["loss"] for _ in range(2)]
    assert rest.tokens == whole.tokens
    assert losses[1] < 7
    for one, other in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(one, other)
