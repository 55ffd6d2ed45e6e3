"""The network and its MTP head as one module whose state_dict is the family's checkpoint.

What must stay true: parameter names are those of a text-only Qwen3.5 file with tied embeddings; the MTP layer is
trained on exactly what a draft computes: row p takes the embedding of token p+1 and a hidden row for token p, predicts
token p+2, and step s of a draft sees the committed rows before its root (made from the decoder's hidden rows) and the
rows of its own earlier steps (made from the MTP head's hidden rows after `mtp.norm`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgellm.checkpoint.spec import ModelSpec
from edgetiny.attention import attend
from edgetiny.layers import Layer, Linear, Norm, Rope, project


class Decoder(nn.Module):
    """Embedding, decoder layers and final norm."""

    def __init__(self, spec: ModelSpec, std: float, out_std: float) -> None:
        super().__init__()
        self.embed_tokens = Linear(spec.hidden, spec.vocab, 0.02)
        self.layers = nn.ModuleList(Layer(spec, kind == "full_attention", std, out_std) for kind in spec.layers)
        self.norm = Norm(spec.hidden, spec.rms_eps)

    def forward(self, ids: Tensor, rope: Rope, compute: torch.dtype) -> Tensor:
        x = functional.embedding(ids, self.embed_tokens.weight)
        for layer in self.layers:
            x = layer(x, rope, compute)
        return self.norm(x)


class Mtp(nn.Module):
    """One attention layer over (embedding, hidden) pairs."""

    def __init__(self, spec: ModelSpec, std: float, out_std: float) -> None:
        super().__init__()
        self.fc = Linear(2 * spec.hidden, spec.hidden, std)
        self.layers = nn.ModuleList([Layer(spec, True, std, out_std)])
        self.norm = Norm(spec.hidden, spec.rms_eps)
        self.pre_fc_norm_embedding = Norm(spec.hidden, spec.rms_eps)
        self.pre_fc_norm_hidden = Norm(spec.hidden, spec.rms_eps)

    def forward(self, embedded: Tensor, hidden: Tensor, rope: Rope, steps: int, compute: torch.dtype) -> list[Tensor]:
        """The hidden rows [B, R, hidden] of each draft step.

        In the result of step s (1, 2 …), row p belongs to a draft whose root is token p-s+2; rows p < s-1, for which
        there is no such draft, mean nothing. Step s sees step 1 up to row p-s+1 and, of each step j between, row p-s+j.

        Args:
            embedded: [B, R, hidden], embeddings of tokens 1 … R.
            hidden: [B, R, hidden], decoder rows of tokens 0 … R-1.
        """
        layer, embedded = self.layers[0], self.pre_fc_norm_embedding(embedded)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        found: list[Tensor] = []
        for step in range(1, steps + 1):
            pair = torch.cat([embedded, self.pre_fc_norm_hidden(hidden)], -1)
            x = project(pair, self.fc, compute=compute)[0].float()
            q, k, v, gate = layer.self_attn.heads(layer.input_layernorm(x), rope, compute)
            keys.append(k)
            values.append(v)
            own = [(_shifted(keys[j], step - 1 - j), _shifted(values[j], step - 1 - j)) for j in range(1, step)]
            context = attend(q, keys[0], values[0], step - 1, own)
            found.append(self.norm(layer.close(x + layer.self_attn.merge(context, gate, compute), compute)))
            hidden = _shifted(found[-1], 1)  # row p continues row p-1
        return found


def _shifted(x: Tensor, rows: int) -> Tensor:
    """Row p of the result is row p - `rows` of x [..., T, d]; the first ones are zero."""
    return functional.pad(x[..., : x.shape[-2] - rows, :], (0, 0, rows, 0))


class EdgeTiny(nn.Module):
    """Decoder (`model`) and MTP head (`mtp`).

    Args:
        spec: a shape with tied embeddings and one MTP layer.
        seed: of the initial weights.
        compute: of the matrix products.
    """

    def __init__(self, spec: ModelSpec, seed: int = 0, compute: torch.dtype = torch.bfloat16) -> None:
        if not spec.tied_embeddings or spec.mtp_layers != 1:
            raise ValueError("edge-tiny has tied embeddings and one MTP layer")
        super().__init__()
        self.spec, self.compute = spec, compute
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            std = spec.hidden**-0.5 / 2
            out_std = std / (2 * len(spec.layers)) ** 0.5
            self.model = Decoder(spec, std, out_std)
            self.mtp = Mtp(spec, std, out_std)

    @property
    def head(self) -> Tensor:
        """The output matrix [vocab, hidden]: the embedding."""
        return self.model.embed_tokens.weight

    def forward(self, ids: Tensor, draft_steps: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Decoder rows [B, T, hidden] after the final norm, and the draft rows [B, T-1, hidden] of each step."""
        hidden = self.model(ids, Rope(self.spec, ids.shape[1]), self.compute)
        if not draft_steps:
            return hidden, []
        embedded = functional.embedding(ids[:, 1:], self.head)
        rope = Rope(self.spec, ids.shape[1] - 1)
        return hidden, self.mtp(embedded, hidden[:, :-1], rope, draft_steps, self.compute)
