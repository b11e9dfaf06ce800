"""What the benchmarks over gRPC compute from marks, processes and bytes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import memory, page, picture, timeline

pytestmark = pytest.mark.full

MARKS = """\
10.0 1 pushed 0
11.0 2 pulled 0
11.5 3 started 0
12.0 3 called 0.25
12.25 3 imported 0.3
12.5 3 ready 0.4
13.5 3 trained 1.2
13.6 3 ended 1.3
12.0 4 pulled 0
12.5 5 started 0
13.0 5 called 0.25
13.25 5 imported 0.3
13.5 5 ready 0.4
16.5 5 trained 3.2
16.6 5 ended 3.3
14.0 2 sent 0
17.0 4 sent 0
17.5 1 collected 0
18.0 1 pushed 0
18.5 1 collected 0
"""


def test_the_phases_of_a_message_add_up_to_the_exchange(tmp_path: Path) -> None:
    (tmp_path / "marks").write_text(MARKS)
    training, other = timeline.exchanges(timeline.read(tmp_path / "marks"))
    found = timeline.phases(training)
    assert found == pytest.approx(
        {
            "wait": (1.0 + 2.0) / 2,
            "start": 0.5,
            "unpack": 0.5,
            "import": 0.25,
            "load": 0.25,
            "train": (1.0 + 3.0) / 2,
            "reply": 0.5,
            "cpu": (1.3 + 3.3) / 2,
            "collect": 0.5,
        }
    )
    assert timeline.phases(other) == {}
    assert found.keys() - {"cpu"} == timeline.PHASES.keys()


def test_the_tap_marks_begin_and_end_of_what_it_knows(tmp_path: Path) -> None:
    messaging = tmp_path / "server_app" / "messaging"
    messaging.mkdir(parents=True)
    for package in (messaging.parent, messaging):
        (package / "__init__.py").touch()
    (messaging / "exchange.py").write_text("def exchange(x): return x + 1\n")
    marks = tmp_path / "marks"
    path = os.pathsep.join([str(timeline.TAP), str(tmp_path)])
    env = {**os.environ, "PYTHONPATH": path, "FEDMOSAIC_TIMELINE": str(marks)}
    code = "from server_app.messaging.exchange import exchange; print(exchange(1))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr
    assert [mark.name for mark in timeline.read(marks)] == ["pushed", "collected"]


def test_every_tapped_function_exists() -> None:
    script = (
        "import importlib, operator\n"
        "from tests.bench.tap.sitecustomize import PLACES\n"
        "for name, taps in PLACES.items():\n"
        "    for path, *_ in taps:\n"
        "        module = importlib.import_module(name)\n"
        "        assert not path or operator.attrgetter(path)(module), (name, path)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_told_by_part_and_shared_pages_are_counted_once() -> None:
    code = (
        "import os, sys\n"
        "block = bytearray(b'x') * 2**26\n"
        "if os.fork() == 0: open('/proc/self/comm', 'w').write('flwr-clientapp')\n"
        "os.write(1, b'.'); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    assert [process.stdout.read(1) for _ in range(2)] == [b".", b"."]
    found = memory.usage({process.pid: "warm"})
    seconds = memory.processor({process.pid: "warm"})
    process.stdin.close()
    process.wait()
    assert {name: of.processes for name, of in found.items()} == {"warm": 1, "ClientApps": 1}
    assert min(of.rss for of in found.values()) > 2**26
    assert 2**26 < sum(of.pss for of in found.values()) < 1.6 * 2**26
    assert seconds["warm"] > 0
    assert all(of.own <= of.pss <= of.rss for of in found.values())


def test_the_estimate_multiplies_what_was_measured() -> None:
    crowd = {
        "2": {"idle": {"superlink": {"rss": 100}}, "idle cpu": {"superlink": 0.02}},
        "12": {"idle": {"superlink": {"rss": 400}}, "idle cpu": {"superlink": 0.03}},
    }
    assert page.slopes(crowd) == pytest.approx((30.0, 0.001))
    load = page.load(down=250_000.0, up=125_000.0)
    assert load == {"bytes": 375e6, "line": 2.0, "held": 125.25e6}
    with pytest.raises(ValueError, match="measure two at least"):
        page.slopes({"2": crowd["2"]})


def test_the_tables_of_a_page_are_filled_and_an_unknown_one_is_refused() -> None:
    scale = {"traffic": {"fedavg": {"fleet": "lenet5", "down": 250_000, "up": 125_000}}}
    text = "a\n<!-- methods -->\nold\n<!-- end -->\nb\n"
    filled = page.fill(text, {}, scale)
    assert "| fedavg | lenet5 | 250.0 | 125.0 | 0.38 | 2.0 | 125 |" in filled
    assert "old" not in filled and filled.startswith("a\n<!-- methods -->\n")
    assert page.fill(filled, {}, scale) == filled
    with pytest.raises(ValueError, match="no table is called 'typo'; there are starts, message"):
        page.fill("<!-- typo -->\n<!-- end -->", {}, scale)


def test_the_pictures_show_every_phase_and_come_out_the_same_twice(tmp_path: Path) -> None:
    drawn = [phase for phases in picture.STRETCHES.values() for phase in phases]
    assert sorted(drawn) == sorted(timeline.PHASES)
    phases = dict.fromkeys(timeline.PHASES, 0.25) | {"wait": 2.0}
    grpc = {"starts": {"cold": {"phases": phases}, "warm": {"phases": phases | {"wait": 1.0}}}}
    part = {"pss": 10**9}
    busy = {name: part for names in picture.PARTS.values() for name in names}
    scale: dict[str, Any] = {"crowd": {"2": {"in a round": 1, "round": 7.25, "busy": busy}}}
    scale["held"] = {"averaging": {"10": {"model": 10**8, "most": 2 * 10**9}}}
    picture.save(tmp_path, grpc, scale)
    first = [(tmp_path / name).read_text() for name in ("round.svg", "clients.svg", "held.svg")]
    assert all("<text " in text for text in first)
    assert ">3.8<" in first[0] and ">2.8<" in first[0]  # 2.0 + 7 * 0.25 seconds, and one less
    assert ">6.0<" in first[1] and ">7.2<" in first[1]  # gigabytes, seconds
    picture.save(tmp_path, grpc, scale)
    names = ("round.svg", "clients.svg", "held.svg")
    assert first == [(tmp_path / name).read_text() for name in names]
