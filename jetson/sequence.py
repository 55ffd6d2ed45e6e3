"""What a sequence needs on a device: bytes of its cache rows, recurrent state, capsules and rotary tables.

Layouts as the kernels have them: KV rows of 1 or 2 bytes per value; recurrent state and capsules float32.
"""

from __future__ import annotations

from edgellm.checkpoint.spec import ModelSpec


def kv_token_bytes(spec: ModelSpec, per_value: float, *, mtp: bool) -> float:
    """Keys and values of one token: 2 x layers x KV heads x head dim values; with `mtp` those of its layer too."""
    layers = len(spec.full_layers) + (spec.mtp_layers if mtp else 0)
    return 2 * layers * spec.attention.kv_heads * spec.attention.head_dim * per_value


def state_bytes(spec: ModelSpec) -> int:
    """Recurrent state: float32 [value heads, key dim, value dim] per linear layer."""
    g = spec.linear
    return 4 * len(spec.linear_layers) * g.value_heads * g.key_dim * g.value_dim


def conv_bytes(spec: ModelSpec) -> int:
    """Convolution state: float32 [kernel - 1, channels] per linear layer."""
    g = spec.linear
    return 4 * len(spec.linear_layers) * (g.conv_kernel - 1) * g.conv_channels


def capsule_bytes(spec: ModelSpec) -> int:
    """What a commit needs of one node: float32 keys [key heads, key dim] and updates [value heads, value dim] per
    linear layer. The cumulative log-decay (one value a head) and the convolution rows are in `capsule_extra_bytes`."""
    g = spec.linear
    return 4 * len(spec.linear_layers) * (g.key_heads * g.key_dim + g.value_heads * g.value_dim)


def capsule_extra_bytes(spec: ModelSpec) -> int:
    """The rest of a node's capsule: float32 log-decay [value heads] and bfloat16 convolution row [channels] per linear
    layer. A convolution row is also an activation that the step has anyway: the roofline does not count it again."""
    g = spec.linear
    return len(spec.linear_layers) * (4 * g.value_heads + 2 * g.conv_channels)


def snapshot_bytes(spec: ModelSpec) -> int:
    """A recurrent snapshot: both states and, with an MTP layer, the float32 hidden row of the last token."""
    return state_bytes(spec) + conv_bytes(spec) + (4 * spec.hidden if spec.mtp_layers else 0)


def rotary_bytes(spec: ModelSpec, context: int) -> int:
    """Tables of cosines and sines: float32 [context, rotary dim / 2] each. One for all sequences and layers."""
    return 4 * context * spec.attention.rotary_dim
