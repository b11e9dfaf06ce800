"""What a soak plays: the faults of a seed."""

from tests.bench import soak


def test_the_faults_of_a_soak_are_those_of_its_seed() -> None:
    faults = soak.schedule(200, 1)
    assert faults == soak.schedule(200, 1) != soak.schedule(200, 2)
    assert {fault.kind for fault in faults} == {*soak.KINDS, "join"}
    for t in range(200):
        busy = [fault.k for fault in faults if fault.t <= t <= fault.end]
        assert len(set(busy)) == len(busy) <= soak.AWAY + len(soak.LATER)
    assert max(fault.end for fault in faults) < 199, "every client is back at the end"
