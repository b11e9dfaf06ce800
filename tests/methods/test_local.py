"""Local training: the row of every table in which nothing is exchanged."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from client_app.participant import Participant
from common.task import Task
from deploy.report.pages import write_report
from deploy.report.read import read
from deploy.run.progress import show_summary
from tests.support.tiny import Run


def test_alone_a_client_of_fedavg_does_the_same_bit_for_bit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Task.build

    def as_the_server_draws(self: Task, *given: Any, **named: Any) -> Any:
        return build(self, *given, **{**named, "name": ("init", "global")})

    settings = {"clients": 1, "rounds": 3, "fleet": "cnn2@0.5", "score__clients_every": 1}
    fedavg = run(method="fedavg", **settings)
    monkeypatch.setattr(Task, "build", as_the_server_draws)
    local = run(method="local", **settings)
    for ours, theirs in zip(local.journal[1:], fedavg.journal[1:], strict=True):
        assert ours["metrics"] == theirs["metrics"]
        assert ours["scores"][0]["accuracy"] == theirs["scores"][0]["accuracy_global"]


def test_hardly_a_byte_travels_and_every_architecture_takes_part(run: Run) -> None:
    local = run(method="local")
    for entry in local.journal[1:]:
        assert entry["bytes"]["arrays_down"] == entry["bytes"]["arrays_up"] == 0
        assert entry["bytes"]["down"] + entry["bytes"]["up"] < 4 * 1000  # of four clients
    assert {client["model"] for client in local.journal[0]["clients"]} == {"mlp@0.25", "cnn2@0.5"}


def test_what_is_scored_are_the_clients_models_on_their_own_test_shares(run: Run) -> None:
    local = run(method="local")
    summary = local.summary
    own = [client["accuracy"] for client in summary["clients"]]
    assert None not in own and [c["accuracy_global"] for c in summary["clients"]] == [None] * 4
    assert summary["accuracy"] is None and summary["weights_sha256"] is None
    assert summary["fairness"]["wlp"] == min(own)
    assert min(own) < summary["fairness"]["amp"] <= max(own)
    console = Console(record=True, width=120)
    show_summary(read(local.folder), console)
    assert "own model" in console.export_text()
    write_report([local.folder], page := local.folder / "report.html")
    assert "own models" in page.read_text()
    assert ">Learning<" not in page.read_text(), "the server has no model to draw"
    untested = run(method="local", data__test_fraction=0.0)
    write_report([untested.folder], page)
    assert ">Clients<" not in page.read_text() and ">Cost<" in page.read_text()


def test_on_request_they_are_measured_on_the_whole_test_set(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    measure = Participant.test_accuracy

    def watching(self: Participant, net: Any) -> float:
        seen.append(measure(self, net))
        return seen[-1]

    monkeypatch.setattr(Participant, "test_accuracy", watching)
    local = run(method="local", rounds=1, local__whole_test=True)
    assert local.summary["metrics"]["client_test_accuracy"] == pytest.approx(sum(seen) / 4)
    assert len(seen) == 4
