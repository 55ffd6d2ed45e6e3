"""What must hold of every table of parameters."""

from __future__ import annotations

from edgellm.server.parameters import Parameters


def check_classes(table: Parameters, names: set[str]) -> None:
    """Every field that an SDK can send is in exactly one class, and the classes have nothing in common."""
    classes = [set(table.honoured), set(table.refused), set(table.ignored)]
    found = {name: sum(name in known for known in classes) for name in names}
    assert found, "the SDK's types have moved"
    assert {name for name, times in found.items() if times != 1} == set()
    assert len(set.union(*classes)) == sum(map(len, classes))
