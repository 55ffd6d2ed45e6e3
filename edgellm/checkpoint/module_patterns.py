"""Patterns of module names in quantization configs: plain names, wildcards, and regular expressions (``re:…``).

A pattern may use any of the prefixes that files of the family use, or none, and name a fused projection in place of
its parts. A plain name also means everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Final

from edgellm.errors import CheckpointError

PREFIXES: Final = ("model.language_model.", "language_model.model.", "language_model.", "model.")
# Projections that other runtimes fuse: quantized alike or not at all.
FUSED: Final = {
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_FUSED_NAME: Final = {part: fused for fused, parts in FUSED.items() for part in parts}
# Parts that a checkpoint of the family may lack while lists still name them.
_PERHAPS_ABSENT: Final = re.compile(r"visual|vision|mtp|expert|router|mlp\.gate\b|audio|talker")


def canonical(name: str) -> str:
    """A module or tensor name without the file's prefix."""
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def matches(pattern: str, module: str) -> bool:
    """Whether `pattern` means the module with the canonical name `module`."""
    names = {module, fused_name(module)}
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            raise CheckpointError(f"the exclude pattern {pattern!r} is no regular expression: {error}") from error
        return any(expression.match(prefix + name) for name in names for prefix in ("", *PREFIXES))
    bare = canonical(pattern)
    return any(name == bare or name.startswith(f"{bare}.") or fnmatchcase(name, bare) for name in names)


def fused_name(module: str) -> str:
    """The name of the fused projection that a module is part of, or its own."""
    stem, _, leaf = module.rpartition(".")
    return f"{stem}.{_FUSED_NAME[leaf]}" if leaf in _FUSED_NAME else module


def check_patterns(patterns: Iterable[str], modules: Collection[str], where: str) -> None:
    """See that every pattern means something.

    Args:
        modules: canonical names of all modules with tensors.

    Raises:
        CheckpointError: naming those that match no module of the checkpoint.
    """
    unused = [
        pattern
        for pattern in patterns
        if not _PERHAPS_ABSENT.search(pattern) and not any(matches(pattern, module) for module in modules)
    ]
    if unused:
        shown = ", ".join(map(repr, unused[:5])) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
        raise CheckpointError(f"{where} excludes {shown}: no module of the checkpoint has such a name")
