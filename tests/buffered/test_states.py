"""States of clients and server in asynchronous rounds: what is repeated, counted and kept."""

from pathlib import Path
from typing import Any

import pytest
import torch

from client_app.methods import depthfl, scaffold
from common.exchange.records import Records
from server_app.buffered.rounds import Buffered
from server_app.stopped import Stopped
from server_app.storage import checkpoint
from tests.support import battery
from tests.support.asynchronous import PROFILES, SMALL, Killed, buffered, same, steps
from tests.support.tiny import listed, play


def test_a_job_that_is_older_than_keep_is_repeated_from_the_state_before_it(
    tmp_path: Path,
) -> None:
    """The fast clients train several times while the slow one has its first job."""
    more = {"method": "fedper", "score__clients_every": 1, "rounds": 21}
    more |= {"buffer__size": 1, "buffer__concurrency": 4}
    whole, part = (buffered(tmp_path / name, **more) for name in ("whole", "part"))
    assert max(age for step in steps(whole) for age in step["staleness"]) > 5 and same(part, whole)
    again = buffered(tmp_path / "part", **more, resume=True, from_round=17)
    assert same(again, whole)


@pytest.mark.parametrize("hook", ["state", "release"])
def test_a_run_that_is_killed_around_its_checkpoint_goes_on(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one checkpoint, and a client that trains again before it because it was refused."""
    more = {"method": "fedper", "score__clients_every": 1, "rounds": 12, "keep": 1}
    more |= {"buffer__concurrency": 4, "buffer__max_staleness": 2}
    whole, real = buffered(tmp_path / "whole", **more), getattr(Buffered, hook)
    assert any(f["kind"] == "stale" for entry in whole.journal[1:] for f in entry["failures"])

    def killed(self: Buffered) -> Any:
        if self.run.entry.round == 7:
            raise Killed
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Buffered, hook, killed)
        with pytest.raises(Killed):
            buffered(tmp_path / "part", **more)
    assert same(buffered(tmp_path / "part", **more, resume=True), whole)


OF_CLIENTS: dict[str, tuple[type[Records], str, str]] = {
    "scaffold": (scaffold.ClientState, "c", "c"),
    "depthfl": (depthfl.ClientState, "g", "h"),
}


@pytest.mark.parametrize("more", [{}, {"buffer__size": 1, "buffer__mixing": 0.6}, {"lost": 4}])
@pytest.mark.parametrize("method", OF_CLIENTS)
def test_the_servers_variate_is_the_mean_of_the_clients(
    method: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever an update weighs, and after a client has lost its state while others train."""
    given = {**PROFILES, **SMALL, "rounds": 8, "keep": 20, **more}
    if lost := given.pop("lost", 0):
        event = f'[[event]]\nround = {lost}\nclient = 2\nkind = "replaced"\n'
        given["membership"] = listed(tmp_path / "events", event)
    settings = battery.config(method, tmp_path / "run", **given)
    play(settings)
    saved, (kind, own, name) = checkpoint.load(tmp_path / "run"), OF_CLIENTS[method]
    server: Any = saved.state[name]
    mean = {key: torch.zeros_like(value).double() for key, value in server.items()}
    folder = Path(str(settings["state-dir"])) / saved.experiment
    accepted: Any = saved.state["accepted"]
    for k, t in accepted.items():
        state = kind.load(folder / str(k) / str(t) / f"{kind.kind}.safetensors") if t else None
        for key, value in getattr(state, own).items() if state is not None else ():
            mean[key] += value.double() / int(str(settings["clients"]))
    largest = max(float(value.abs().max()) for value in server.values())
    assert largest > 1e-3
    for key, value in server.items():
        assert float((value.double() - mean[key]).abs().max()) <= 1e-5 * largest, key


def test_oort_explores_also_where_it_draws_one_client_at_a_time(tmp_path: Path) -> None:
    run = buffered(tmp_path, clients=8, rounds=16, buffer__concurrency=2, select__by="oort")
    assert {k for step in steps(run) for k, _ in step["sent"]} == set(range(8))


def test_a_rule_that_selects_several_clients_for_one_place_is_refused(tmp_path: Path) -> None:
    line = "selected \\[0, 1\\] of the clients"
    with pytest.raises(Stopped, match=line):
        buffered(tmp_path, select__by="tests.buffered.rules:two")


def test_every_due_round_has_scores_while_the_clients_that_score_are_busy(tmp_path: Path) -> None:
    run = buffered(tmp_path, method="fedper", score__clients=1, score__clients_every=1, rounds=9)
    known = False
    for entry in run.journal[1:]:
        known = known or bool(entry["scores"])
        assert not known or len(entry["scores"]) == 1
    assert any(score.get("age") for entry in run.journal[1:] for score in entry["scores"])


def test_a_run_ends_if_no_device_is_available_for_as_long_as_a_job_takes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [f'{{"k": {k}, "on": [[0, 0.001]], "period": 1}}' for k in range(4)]
    trace.write_text("\n".join(lines) + "\n")
    names = str(PROFILES["profiles"]).split(",")
    more = {f"profile__{name}__available": str(trace) for name in names}
    with pytest.raises(Stopped, match="81 jobs failed, and 0 updates have arrived; client"):
        buffered(tmp_path / "run", **more, clock__notice=0.01)


def test_requests_on_the_disk_have_no_real_time(tmp_path: Path) -> None:
    run = buffered(tmp_path, rounds=3)
    for path in (run.folder / "jobs").iterdir():
        assert path.stat().st_mtime == int(path.name.split("-")[0])
