"""Named randomness."""

from __future__ import annotations

import torch

from common import seeds


def test_a_name_is_a_stream_of_its_own() -> None:
    names = [("select", 1), ("select", 2), ("noise", 1), ("select", 1, 2), ("select", 12)]
    draws = {seeds.rng(7, *name).integers(2**62) for name in names}
    draws |= {seeds.rng(8, "select", 1).integers(2**62)}
    assert len(draws) == len(names) + 1


def test_streams_are_what_they_were_in_every_release() -> None:
    # A change here changes every published number.
    assert seeds.key(1, "select", 1) == 1496340550885364099
    assert seeds.rng(1, "select", 1).integers(1000) == 49


def test_a_scope_repeats_and_leaves_no_trace() -> None:
    before = torch.random.get_rng_state()
    with seeds.scope(1, "dropout"):
        first = torch.rand(3)
    with seeds.scope(1, "dropout"):
        assert torch.equal(torch.rand(3), first)
    assert torch.equal(torch.random.get_rng_state(), before)
