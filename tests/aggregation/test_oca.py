"""Overall clients aggregated: every averaging method's mean, over everybody's latest upload."""

from pathlib import Path
from typing import Any

import pytest

from common.exchange import tree
from common.exchange.model_file import digest
from common.exchange.records import StateDict
from common.exchange.tree import cut
from common.methods import names, options
from server_app.aggregation.cached import Upload
from server_app.aggregation.mean import average_layers as aggregate
from server_app.global_model import Averaged
from server_app.methods import half
from server_app.storage import checkpoint
from server_app.storage.checkpoint import Checkpoint, path_in
from tests.support.battery import OVERRIDES, Crash, Crashing, config, tiers
from tests.support.halves import server
from tests.support.recorded_calls import record_calls
from tests.support.tiny import TinyRun, play
from tests.support.weights import same

METHODS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("fedavg", "fedprox", "fedin", "fedgkd", "fedgen", "scaffold")},
    **{name: {} for name in ("fednova", "fedntd", "moon", "fedrolex", "qffl", "inclusivefl")},
    "heterofl": {"heterofl__rates": "redrawn"},
    "depthfl": {},
    "qffl with q = 1": {"qffl__q": 1.0},
}
BY_ARCHITECTURE = ("fedin", "feddf", "heterofl", "fedrolex", "inclusivefl")  #: so they are scored
UNEVEN = {"data__partition": "quantity_dirichlet", "data__alpha": 1.0}
SOME = {"per_round": 2, "rounds": 3}
OCA = "oca.aggregate"
ON = {"oca__aggregate": "on"}

QUICK = ("fedavg", "fedin")  #: for `make test`
every_method = pytest.mark.parametrize("named", tiers(METHODS, QUICK))
"""FedKF is none of them, because it never runs without OCA."""


def settings(named: str, folder: Path, **changes: Any) -> dict[str, Any]:
    return config(named.partition(" ")[0], folder, **{**METHODS.get(named, {}), **changes})


def course(run: TinyRun, name: str = "") -> list[float]:
    """Accuracy of the run's model, or of the one of this name, round by round."""
    return [e["accuracies"][name] if name else e["accuracy"] for e in run.journal]


@pytest.mark.parametrize("named", tiers([*METHODS, "fedkf", "feddf"], ()))
def test_with_everybody_active_it_is_the_active_clients_mean_bit_for_bit(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = record_calls(
        monkeypatch, Averaged, "step", lambda _, half, *__: (half.overall, half.models)
    )
    run = play(settings(named, tmp_path, rounds=3, **UNEVEN, **ON))
    assert len({client["n"] for client in run.journal[0]["clients"]}) > 1
    assert len(pairs) == 3
    for overall, active in pairs:
        assert overall.keys() == active.keys()
        assert all(same(overall[spec], active[spec]) for spec in active)
    assert course(run) == course(run, "aca")
    if named not in BY_ARCHITECTURE:
        assert course(run) == course(run, "oca")


@every_method
@pytest.mark.parametrize("who", [{}, SOME], ids=["all", "some"])
def test_the_active_clients_mean_takes_the_course_that_it_takes_alone(named, who, tmp_path) -> None:
    both = play(settings(named, tmp_path / "both", **who, **UNEVEN, **ON))
    alone = play(settings(named, tmp_path / "alone", **who, **UNEVEN))
    assert course(both, "aca") == course(alone)
    told = ("clients", "selected", "replied", "client_metrics", "metrics")
    for ours, theirs in zip(both.journal, alone.journal, strict=True):
        assert [ours.get(key) for key in told] == [theirs.get(key) for key in told]
    assert (both.weights == alone.weights) == (not who)


def died(part: dict[str, Any]) -> None:
    """Play a run that dies in round 2, when the clients have trained."""
    play(part, Crashing)


def died_before_its_checkpoint(part: dict[str, Any]) -> None:
    """Play a run that dies in round 3, before its checkpoint is written."""
    keep = checkpoint.write

    def dying(config: Any, entry: Any, *given: Any, **more: Any) -> None:
        if entry.round == 3:
            raise Crash
        keep(config, entry, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write", dying)
        play(part)


KEPT = ("fedavg", "fedin", "inclusivefl", "depthfl", "qffl", "scaffold", "fedrolex")
RESUMED = [(name, died) for name in KEPT]
RESUMED += [(name, died_before_its_checkpoint) for name in ("fedavg", "fedin")]


@pytest.mark.parametrize("case", tiers(RESUMED, [(n, d) for n, d in RESUMED if n in QUICK]))
def test_a_resumed_run_equals_an_uninterrupted_one(case: Any, tmp_path: Path) -> None:
    named, dies = case
    given = {**SOME, "rounds": 4, "oca__in_memory": 1, **ON}
    whole = play(settings(named, tmp_path / "whole", **given))
    part = settings(named, tmp_path / "part", **given)
    with pytest.raises(Crash):
        dies(part)
    resumed = play({**part, "resume": True})
    assert resumed.timeless == whole.timeless and resumed.weights == whole.weights
    assert kept(resumed) == kept(whole) and len(kept(whole)) > 0


def kept(run: TinyRun) -> dict[tuple[int, int], str]:
    """The weights of the uploads that lie in files, by client and round."""
    found: list[Any] = [Upload.load(path) for path in (run.folder / "uploads").iterdir()]
    return {(upload.k, upload.t): digest(upload.up["w"]) for upload in found}


def test_w0_stands_in_for_whoever_never_uploaded_across_depths(tmp_path: Path) -> None:
    given = {"rounds": 1, "per_round": 2, "oca__init": "w0", "oca__in_memory": 0, **UNEVEN, **ON}
    run = play(settings("fedin", tmp_path / "w0", **given))
    uploads = {reply.k: reply for reply in map(Upload.load, (run.folder / "uploads").iterdir())}
    assert sorted(uploads) == run.journal[1]["selected"] and len(uploads) == 2

    half = server(method="fedin", fleet="cnn2@0.5,cnn3@0.5")
    largest = half.build("cnn3@0.5")
    first, members = tree.snapshot(largest), run.journal[0]["clients"]
    states: list[StateDict] = []
    for member in members:
        sent: Any = uploads[member["k"]].up["w"] if member["k"] in uploads else first
        states.append(cut(sent, half.task.expected(member["model"])))
    sizes = [member["n"] for member in members]
    expected = aggregate(states, sizes, first, half.config.average, tree.parameters_only(largest))
    saved: Any = Checkpoint.load(path_in(run.folder)).state
    assert same(saved["overall"]["cnn3@0.5"], expected)
    assert digest(expected) == run.weights and same(run.model, expected)
    left_out = play(settings("fedin", tmp_path / "out", **{**given, "oca__init": "uploaded"}))
    assert left_out.weights != run.weights and course(left_out, "aca") == course(run, "aca")


def test_within_equal_architectures_every_one_has_its_overall_mean(tmp_path: Path) -> None:
    fleet = {"fleet": "mlp@0.25,cnn2@0.5,lenet5@0.5", "clients": 6}
    given = {**fleet, "average__across": "same", **SOME, **UNEVEN}
    both = play(settings("fedavg", tmp_path / "both", **given, **ON))
    alone = play(settings("fedavg", tmp_path / "alone", **given))
    for entry in both.journal:
        *own, last = entry["accuracies"]
        assert sorted(own) == ["cnn2@0.5", "lenet5@0.5", "mlp@0.25"] and last == "aca"
        mean = sum(entry["accuracies"][spec] for spec in own) / 3
        assert entry["accuracy"] == pytest.approx(mean)
    assert course(both, "aca") == course(alone)
    saved: Any = Checkpoint.load(path_in(both.folder)).state
    assert sorted(saved["overall"]) == sorted(own)
    for score in both.journal[-1]["scores"]:
        assert score["accuracies"].keys() == {"aca"} and score["accuracy_global"] is not None
    assert both.journal[-1]["fairness"]["models"].keys() == {"oca", "aca"}
    assert {name.partition("/")[0] for name in both.model} == {*own}


@pytest.mark.full
def test_what_a_method_itself_would_score_keeps_its_name(tmp_path: Path) -> None:
    run = play(settings("dafl", tmp_path / "both", **SOME, **ON))
    alone = play(settings("dafl", tmp_path / "alone", **SOME))
    assert list(run.journal[-1]["accuracies"]) == ["oca", "aca", "student", "teacher"]
    assert course(run, "teacher") == course(run, "aca") == course(alone, "teacher")
    assert course(run, "student") == course(alone)


@pytest.mark.parametrize("method", names())
def test_every_method_that_averages_is_wrapped_and_every_other_refuses(method: str) -> None:
    given = {**OVERRIDES.get(method, {}), "method": method, "lwn__init": "average", **ON}
    required = (vars(base).get("requires", {}) for base in options(method).__mro__)
    refuses = any("on" not in one[OCA].allowed for one in required if OCA in one)
    if issubclass(half(method), Averaged) and not refuses:
        assert server(**given).uploads is not None
    else:
        line = '^oca.aggregate = "on" is not allowed with .*(averag|no whole model)'
        with pytest.raises(ValueError, match=line):
            server(**given)
