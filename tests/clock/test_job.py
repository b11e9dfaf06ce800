"""The time of one job, by hand."""

import math

import pytest

from common.settings.clock import Clock, Profile
from common.settings.config import Train
from common.settings.profiles import NETWORKS, PRESETS, Device, device, is_assumed
from server_app.clock.job import EXACT, Factors, Job, Time, bytes_of_step, time_of
from server_app.clock.prediction import quantile

LENET = Job(down=246_824, up=246_824, steps=24, operations=1_675_300_800)
"""LeNet-5 on 370 digits, two epochs of batches of 32."""


def test_the_seconds_of_a_job_by_hand() -> None:
    """Down .019746, up .019746, operations .235958, steps .024, latency .01 seconds."""
    pi = Device("pi4", flops=7.1e9, down=100e6, up=100e6, latency=0.005, step_overhead=0.001)
    assert time_of(LENET, pi, "lenet5", 0.0).micros == 309_450
    phone = Device("dl4j-low", flops=0.63e9, down=20e6, up=5e6, latency=0.05, step_overhead=0.002)
    assert time_of(LENET, phone, "lenet5", 0.0).micros == 3_300_856


def test_memory_traffic_and_factors() -> None:
    board = Device("x", flops=1e9, down=8e6, up=4e6, step_overhead=0.0, memory_bandwidth=1e9)
    job = Job(down=1_000_000, up=1_000_000, steps=10, operations=2_000_000_000)
    time = time_of(job, board, "mlp", bytes_of_step(Train(momentum=0.9), 1_000_000))
    assert time == pytest.approx((3.0, 2.2)), "1 + 2 s of messages, 2 s and 10 · 20 MB"
    assert time_of(job, board, "mlp", 0.0, Factors(2.0, 0.5, 0.1)) == pytest.approx((22.0, 4.0))
    assert [
        bytes_of_step(Train(momentum=m, optimizer=o), 1)
        for o, m in (("sgd", 0.0), ("sgd", 0.9), ("rmsprop", 0.9), ("AdamW", 0.9))
    ] == [12, 20, 20, 28]
    watts = Device("y", flops=1.0, down=1.0, up=1.0, power=3.0, radio_power=2.0)
    assert Time(1.0, 2.0).energy(watts) == 8.0 and Time(1.0, 2.0).energy(board) is None


def test_a_job_is_rounded_up_to_microseconds() -> None:
    assert [Time(0.0, s).micros for s in (1e-6, 1.0000001e-6, 1.1e-6, 0.3)] == [1, 1, 2, 300_000]


def test_drawn_factors_have_their_mean_and_belong_to_a_job() -> None:
    settings = Clock(jitter=0.5, bandwidth_sigma=0.4)
    drawn = [Factors.drawn(settings, 1, k, 2) for k in range(4000)]
    assert math.fsum(f.work for f in drawn) / 4000 == pytest.approx(1.0, abs=0.03)
    assert math.fsum(f.down for f in drawn) / 4000 == pytest.approx(1.0, abs=0.03)
    assert min(f.up for f in drawn) == 0.1, "at least a tenth"
    assert Factors.drawn(settings, 1, 3, 2) == drawn[3] != Factors.drawn(settings, 1, 3, 3)
    assert Factors.drawn(Clock(), 1, 3, 2) == EXACT


def test_a_quantile_is_one_of_the_times() -> None:
    times = {0: 40, 1: 10, 2: 30, 3: 20, 4: 50}
    shares = (0.01, 0.2, 0.21, 0.8, 1.0)
    assert [quantile(times, share) for share in shares] == [10, 10, 20, 40, 50]


def test_a_profile_takes_what_it_lacks_from_its_base() -> None:
    assert device("pi5", {}).flops == 70e9 and device("pi5", {}).down == NETWORKS["lan"][0]
    tables = {
        "pi5": Profile(memory=4e9, network="4g"),
        "mine": Profile(base="pi5", up=1e6, efficiency_by="resnet=0.4,resnet18=0.5"),
    }
    mine = device("mine", tables)
    assert (mine.memory, mine.up, mine.down, mine.latency) == (4e9, 1e6, 20e6, 0.05)
    assert [mine.rate(name) for name in ("resnet18@0.5", "resnet8", "mlp")] == [35e9, 28e9, 21e9]
    with pytest.raises(ValueError, match="a circle"):
        device("a", {"a": Profile(base="b"), "b": Profile(base="a")})
    assert all(device(name, {}).memory for name in PRESETS)
    assert is_assumed("pi5", tables) and not is_assumed("mine", tables)
    assert is_assumed("own", {"own": Profile(base="laptop"), "laptop": Profile(memory=1e9)})
    assert not is_assumed("phone-mid", {}), "measured"
