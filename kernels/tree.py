"""Kernels that make and walk trees of draft tokens."""

from __future__ import annotations

from edgellm.kernels.reference import tree as reference
from edgellm.kernels.spec import CONTROL, Kernel, Param

TREE_BUILD = Kernel(
    name="tree_build",
    source="tree_build.cu",
    params=(
        Param("parents", "i32", "in", lambda s: (s.rows,)),
        Param("control", "i32", "in", lambda s: (CONTROL,)),
        Param("ancestors", "i32", "inout", lambda s: (s.tail, s.words)),
        Param("depths", "i32", "inout", lambda s: (s.tail,)),
        Param("positions", "i32", "out", lambda s: (s.rows,)),
    ),
    grid=lambda s: (1, 1, 1),
    threads=lambda s: 32,
    defines=lambda s: {"ROWS": s.rows, "TAIL": s.tail, "WORDS": s.words, "POSITIONS": s.positions},
    reference=reference.tree_build,
    refuses=lambda s: None,
    plugin=False,
)

TREE_ACCEPT = Kernel(
    name="tree_accept",
    source="tree_accept.cu",
    params=(
        Param("best", "i32", "in", lambda s: (s.rows, s.top_k)),  # candidates after each node, best first
        Param("tokens", "i32", "in", lambda s: (s.rows,)),
        Param("parents", "i32", "in", lambda s: (s.rows,)),
        Param("control", "i32", "in", lambda s: (CONTROL,)),
        Param("accepted", "i32", "out", lambda s: (2,)),  # bit mask of the accepted nodes, the last of them
        Param("emitted", "i32", "out", lambda s: (s.rows + 2,)),  # number of tokens, the tokens, zeros
    ),
    grid=lambda s: (1, 1, 1),
    threads=lambda s: 32,
    defines=lambda s: {"ROWS": s.rows, "TOP_K": s.top_k},
    reference=reference.tree_accept,
    refuses=lambda s: "a tree of more than 32 nodes has no 32-bit mask" if s.rows > 32 else None,
    plugin=False,
)

KERNELS = (TREE_BUILD, TREE_ACCEPT)
