"""Dynamo's block hashes, against values that its own code gave."""

from __future__ import annotations

from edgellm.cache.block_hashes import local_hashes, sequence_hashes


def test_known_values() -> None:
    local = local_hashes(range(100, 132), 16)
    assert local == [10823191264391160519, 1219978239041041138]
    assert sequence_hashes(local) == [10823191264391160519, 4102179227871607950]


def test_a_last_block_that_is_not_full_counts_only_on_request() -> None:
    tokens = list(range(545))
    assert len(local_hashes(tokens, 16)) == 34
    whole = local_hashes(tokens, 16, partial=True)
    assert len(whole) == 35
    assert whole[:34] == local_hashes(tokens, 16)
    assert local_hashes([], 16, partial=True) == sequence_hashes([]) == []
