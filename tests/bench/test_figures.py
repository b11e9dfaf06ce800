"""What benchmarks compute from processes and records, and the faults of a soak."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.bench import memory, page, record, soak

pytestmark = pytest.mark.full


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_told_by_part_and_shared_pages_are_counted_once() -> None:
    code = (
        "import os, sys\n"
        "block = bytearray(b'x') * 2**26\n"
        "if os.fork() == 0: open('/proc/self/comm', 'w').write('flwr-clientapp')\n"
        "os.write(1, b'.'); sys.stdin.read()\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process: Any = subprocess.Popen([sys.executable, "-c", code], **pipes, start_new_session=True)
    assert [process.stdout.read(1) for _ in range(2)] == [b".", b"."]
    found = memory.usage({process.pid: "warm"})
    seconds = memory.processor({process.pid: "warm"})
    process.stdin.close()
    process.wait()
    parts = {"warm", "ClientApps"}
    assert {name for name, kind in found if kind == "processes"} == parts
    assert all(found[name, "processes"] == 1 for name in parts)
    assert min(found[name, "rss"] for name in parts) > 2**26
    assert 2**26 < found[memory.TOTAL] < 1.6 * 2**26
    assert found[memory.TOTAL] == sum(found[name, "pss"] for name in parts)
    assert all(found[name, "own"] <= found[name, "pss"] <= found[name, "rss"] for name in parts)
    assert seconds["warm"] > 0


def test_a_peak_is_the_most_of_each_number() -> None:
    looks = iter([Counter(a=1, b=5), Counter(a=3, b=2)])
    over = threading.Event()

    def look() -> Counter[str]:
        now = next(looks, None)
        if now is None:
            over.set()
        return now or Counter()

    with memory.peak(look, 0.001) as most:
        over.wait()
    assert most == {"a": 3, "b": 5}


def test_the_estimate_is_the_slope_of_what_was_measured() -> None:
    crowd = {
        "2": {"idle": {"superlink": {"rss": 100}}, "idle cpu": {"superlink": 0.02}},
        "12": {"idle": {"superlink": {"rss": 400}}, "idle cpu": {"superlink": 0.03}},
    }
    assert page.slopes(crowd) == pytest.approx((30.0, 0.001))
    with pytest.raises(ValueError, match="measure two at least"):
        page.slopes({"2": crowd["2"]})


def test_the_page_shows_the_records_and_an_unknown_table_is_refused() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.fill(text, page.recorded()) == text
    with pytest.raises(ValueError, match="no table is called 'typo'; there are starts, crowd"):
        page.fill("<!-- typo -->\n<!-- end -->", {})


def test_a_record_is_added_to_those_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    record.add(file, "many", "5", value={"seconds": 2, "ü": [1]})
    record.add(file, "many", "10", value={})
    text = '{\n "many": {\n  "5": {"seconds": 2, "ü": [1]},\n  "10": {}\n }\n}\n'
    assert file.read_text() == text
    assert record.read(file) == {"many": {"5": {"seconds": 2, "ü": [1]}, "10": {}}}


def test_the_faults_of_a_soak_are_those_of_its_seed() -> None:
    faults = soak.schedule(200, 1)
    assert faults == soak.schedule(200, 1) != soak.schedule(200, 2)
    assert {fault.kind for fault in faults} == {*soak.KINDS, "join"}
    for t in range(200):
        busy = [fault.k for fault in faults if fault.t <= t <= fault.end]
        assert len(set(busy)) == len(busy) <= soak.AWAY + len(soak.LATER)
    assert max(fault.end for fault in faults) < 199, "every client is back at the end"
