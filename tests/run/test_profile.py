"""``fedmosaic profile``: the printed section is a profile that the settings read."""

import json
import tomllib

import pytest

from common.parse import parse
from common.settings.profiles import PRESETS, device
from deploy.run import profile
from deploy.settings import flatten
from tests.support.commandline import error_of, typed
from tests.support.tiny import flat as tiny

FLEET = "mlp@0.25,cnn2@0.25"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat no measurement."""
    monkeypatch.setattr(profile, "SECONDS", 0.0)
    monkeypatch.setattr(profile, "REPEATS", 1)
    monkeypatch.setattr(profile, "COPIED", 1 << 12)


def test_the_printed_section_is_a_profile_of_a_run(tmp_path: object) -> None:
    printed = typed("profile", "--fleet", FLEET, "--name", "my-board", "-s", "threads=1").stdout
    keys = flatten(tomllib.loads(printed))
    assert {key.rpartition(".")[0] for key in keys} == {"profile.my-board"}
    config = parse({**tiny(tmp_path), **keys, "profiles": "my-board"})  # type: ignore[arg-type]
    measured = device("my-board", config.profiles)
    assert measured.memory is not None and measured.memory > 1e8
    assert measured.memory_bandwidth is not None and measured.memory_bandwidth > 0
    assert (measured.down, measured.up) == (100e6, 100e6)
    assert measured.shares is not None and list(measured.shares) == FLEET.split(",")
    for architecture in FLEET.split(","):
        assert 0 < measured.rate(architecture) <= measured.flops
    assert "# cpu, 1 torch thread\n" in printed
    for architecture in FLEET.split(","):
        assert f"\n# {architecture}: batch 4: " in printed


def test_operations_are_counted_and_the_answer_has_every_number() -> None:
    found = json.loads(typed("profile", "--fleet", "mlp@0.25,mlp@0.25", "--json").stdout)
    assert found["name"] == "here" and found["device"] == "cpu"
    (step,) = found["steps"]
    first, hidden, last = 64 * 32, 32 * 32, 32 * 10
    assert step["operations"] == [2 * n * (3 * (first + hidden + last) - first) for n in (4, 64)]
    assert 0 < step["efficiency"] <= 1 and step["overhead"] >= 0


def test_the_line_through_two_step_times_gives_share_and_overhead() -> None:
    share, overhead = profile.line(1e9, (10**6, 16 * 10**6), (0.007, 0.037))
    assert share == pytest.approx(0.5) and overhead == pytest.approx(0.005)
    assert profile.line(1e9, (10**6, 16 * 10**6), (0.04, 0.032)) == (0.5, pytest.approx(0.038))
    assert profile.line(1e9, (10**6, 16 * 10**6), (0.001, 0.0011)) == (1.0, 0.0), "at most 1"


def test_networks_for_texts_train_on_tokens() -> None:
    fleet = "text-fast@0.25,gpt-1@0.25,text-lstm2@0.25"
    found = json.loads(typed("profile", "--fleet", fleet, "--json").stdout)
    assert [step["architecture"] for step in found["steps"]] == fleet.split(",")
    assert found["steps"][0]["operations"] == [2 * n * 3 * (16 * 16 + 16 * 10) for n in (4, 64)]
    assert all(few < many for few, many in (step["operations"] for step in found["steps"]))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--fleet", "lenet55"), "model 'lenet55': no architecture 'lenet55'"),
        (("--fleet", " , "), 'fleet = " , " names no architecture'),
        (("--name", "a b"), "--name 'a b' is not allowed; it should be at most 40 letters"),
        (("-s", "threads=0"), "threads = 0 is not allowed"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, str], line: str) -> None:
    assert line in error_of("profile", *words)


def test_the_list_of_profiles_has_the_figures_and_sources_of_the_presets() -> None:
    rows = json.loads(typed("list", "profiles", "--json").stdout)
    assert [row["profile"] for row in rows] == list(PRESETS)
    nano = next(row for row in rows if row["profile"] == "jetson-nano")
    assert nano == {
        **{"profile": "jetson-nano", "FLOP/s": "236e9", "e": "0.3", "memory": "4 GB"},
        **{"memory bandwidth": "25.6 GB/s", "network": "lan", "watts": "10"},
        "source": PRESETS["jetson-nano"][1],
    }
    assert rows[-1]["watts"] == "" and all(row["source"] for row in rows)
    shown = " ".join(typed("list", "profiles").stdout.split())
    assert "memory 4 GB; memory bandwidth 25.6 GB/s; network lan; watts 10" in shown
