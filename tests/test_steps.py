"""Long loops report how far they are, short ones report nothing."""

import gc
import logging
import re
import weakref
from pathlib import Path

import pytest
import torch

from common import progress
from common.progress import Reporter, reporting, steps
from common.training.task import epochs
from tests.support.battery import config, tiers
from tests.support.tiny import play

GENERATOR, BATCH = "generator step", "batch"
LOOPS = {
    **{"dafl": GENERATOR, "dense": GENERATOR, "fedgen": GENERATOR, "co-boosting": "weight step"},
    **{"fedgkt": BATCH, "fedkemf": BATCH, "dl-mh": BATCH, "fedmd": "reply", "kt-pfl": "reply"},
    **{"feddf": "architecture 1/2, epoch", "fedftg": "student step"},
    **{"hetfedfl": "noise batch", "fedorion": "noise batch", "fedkf": GENERATOR},
}
"""Innermost loop of the server's work that a method reports."""


class Clock:
    """A clock that tests set; a reporter with a pause of 2 s, and its lines."""

    def __init__(self) -> None:
        self.now, self.lines = 100.0, list[str]()  # seconds
        self.reporter = Reporter(self.lines.append, 2.0, lambda: self.now)


def test_a_line_names_the_running_blocks_and_loops_and_comes_after_each_pause() -> None:
    clock = Clock()
    with reporting(clock.reporter), progress.block("round 3"):
        for _ in epochs([(torch.zeros(1),)] * 4, 2):
            clock.now += 0.8
    assert clock.lines == ["round 3, epoch 1/2, batch 4/4", "round 3, epoch 2/2, batch 3/4"]


def test_what_is_short_reports_nothing_even_long_after_the_last_line() -> None:
    clock = Clock()
    with reporting(clock.reporter):
        for _ in range(3):
            clock.now += 50.0
            with progress.block("round"):
                assert list(steps([1, 2, 3], "step")) == [1, 2, 3]
    assert clock.lines == []


def test_a_block_reports_its_own_count_and_the_line_of_another_process() -> None:
    clock = Clock()
    with reporting(clock.reporter), progress.block("replies", 1000) as report:
        clock.now += 2.0
        clock.reporter.note = "client 4, epoch 2/5"
        report(7)
    with reporting(clock.reporter), progress.block("replies", 1000) as report:
        clock.now += 2.0
        report(8)
    assert clock.lines == ["replies 7/1,000, client 4, epoch 2/5", "replies 8/1,000"]


def test_an_equal_line_comes_once_a_minute() -> None:
    clock = Clock()
    with reporting(clock.reporter), progress.block("replies", 10) as report:
        for count in [3] * 40 + [4]:
            clock.now += 2.0
            report(count)
    assert clock.lines == ["replies 3/10", "replies 3/10", "replies 4/10"]


def test_items_of_unknown_number_and_single_ones_are_handed_on_as_they_are() -> None:
    unknown, single = iter([1, 2]), [1]
    assert steps(unknown, "step") is unknown and steps(single, "step") is single
    assert steps(unknown, "step", 2) is not unknown


def test_a_loop_that_is_left_early_is_no_longer_named() -> None:
    clock = Clock()
    with reporting(clock.reporter), progress.block("round 1"):
        for item in steps([1, 2, 3], "step"):
            if item == 2:
                break
        gc.collect()
        for _ in steps(range(2), "batch"):
            clock.now += 2.0
    assert clock.lines == ["round 1, batch 2/2"]


def test_a_counted_loop_keeps_no_item_longer_than_a_plain_one() -> None:
    def items():  # type: ignore[no-untyped-def]
        for _ in range(2):
            last = torch.zeros(1)
            alive.append(weakref.ref(last))
            yield last
            del last
            seen.append(alive[-1]() is None)

    alive, seen = list[weakref.ref[torch.Tensor]](), list[bool]()
    for item in steps(items(), "step", 2):
        del item
    assert seen == [True, True]


def test_without_a_reporter_of_its_own_a_thread_writes_to_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_PAUSE", 0.0)
    token = progress._reporter.set(None)
    with caplog.at_level(logging.INFO, "flwr.fedmosaic"), progress.block("client 2"):
        list(steps(range(2), "step"))
    progress._reporter.reset(token)
    lines = [record.message for record in caplog.records]
    assert lines == [f"progress: client 2, step {i}/2" for i in (1, 2)]


@pytest.mark.parametrize("name", tiers(LOOPS, first=("dense", "fedgkt", "fedkf")))
def test_the_servers_long_loops_and_the_clients_epochs_report(name: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with reporting(Reporter(lines.append, 0.0)):
        play(config(name, tmp_path / "run", fedkf__generator_at="server"))
    assert any(re.search(r"clients, replies 0/4, client 0, epoch 1/", line) for line in lines)
    server = [line for line in lines if "replies" not in line]
    assert any(f"{LOOPS[name]} 2/" in line for line in server), sorted(set(server))
