"""Runs whose data belong to clients, and clients with settings of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from common.data import load
from common.data.partition import split
from common.parse import parse
from common.settings.config import Value
from deploy.machines.submit import prepared
from deploy.run.loopback import Loopback
from deploy.run.preflight import counted, fresh
from deploy.settings import resolve
from server_app.stopped import Stopped
from tests.support.commandline import Done, error_of, typed
from tests.support.data_files import paint, write_clients, write_npz
from tests.support.tiny import TinyRun, flat, play

QUICK = ("-s", "method=fedorion", "-s", "fleet=mlp@0.25,cnn2@0.5", "-s", "noise.epochs=1")
QUICK += ("-s", "noise.batches=2", "-s", "train.epochs=1", "-s", "rounds=1")
HOSPITALS = ("data.name=folder", "data.partition=own", "clients=2")


def run(out: Path, *settings: str) -> Done:
    sets = [part for setting in settings for part in ("-s", setting)]
    return typed("run", "--workers", 0, "--out", out, *QUICK, *sets)


def scores(out: Path) -> list[tuple[int, int]]:
    """Training and test samples of each client, as the journal has them."""
    journal = TinyRun(out).journal
    pairs = zip(journal[0]["clients"], journal[-1]["scores"], strict=True)
    return [(client["n"], score["n"]) for client, score in pairs]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("clients=4",), "belong to 3 owners, but clients = 4"),
        (("data.augment=flip",), "data.augment = 'flip' is for images of bytes"),
        (("data.image-size=4",), "data.image-size is for images of bytes"),
        (("data.partition=iid", "data.test=own"), "data.test = 'own' is not allowed with"),
        ((), "/test/1.npz: damaged or no .npz file"),
    ],
)
def test_a_mistake_about_owners_is_one_line_before_anything_starts(
    settings: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    folder = write_clients(tmp_path / "mine", 3)
    if not settings:
        path = folder / "test" / "1.npz"
        path.write_bytes(path.read_bytes()[:300])
    own = ("data.name=npz", f"data.dir={folder}", "data.partition=natural", "clients=3")
    done = run(tmp_path / "out", *own, *settings)
    assert done.returncode == 1 and line in done.stderr.replace("\n", " "), done.stderr
    assert not (tmp_path / "out").exists()


def test_the_same_shares_from_files_give_the_same_bits(tmp_path: Path) -> None:
    changes = {"method": "fedavg", "data__name": "digits", "data__samples": 0, "rounds": 1}
    cut = flat(tmp_path / "cut", data__partition="label_dirichlet", **changes)
    config = parse(cut)
    dataset = load(config.data)
    tests = torch.arange(len(dataset.y_test)).tensor_split(4)
    for k, rows in enumerate(split(config.data, dataset, 4, config.partition_seed)):
        for part, x, y in (
            ("train", dataset.x[rows], dataset.y[rows]),
            ("test", dataset.x_test[tests[k]], dataset.y_test[tests[k]]),
        ):
            write_npz(tmp_path / "npz" / part / f"{k}.npz", {"x": x.numpy(), "y": y.numpy()})
    changes |= {"data__name": "npz", "data__dir": str(tmp_path / "npz")}
    own = flat(tmp_path / "own", data__partition="natural", **changes)
    there, here = play(own), play(cut)
    assert there.weights == here.weights and there.timeless == here.timeless


def test_data_of_owners_stay_theirs_or_are_merged_and_cut_anew(tmp_path: Path) -> None:
    folder = str(write_clients(tmp_path / "mine", 3))
    own = ("data.name=npz", f"data.dir={folder}", "data.partition=natural", "clients=0")
    done = run(tmp_path / "own", *own, "data.test=own", "node.1.model=cnn3@0.25")
    assert done.returncode == 0, done.stderr
    # three owners are three clients, though the fleet has two entries
    assert scores(tmp_path / "own") == [(24, 9), (25, 10), (26, 11)]
    models = [client["model"] for client in TinyRun(tmp_path / "own").summary["clients"]]
    assert models == ["mlp@0.25", "cnn3@0.25", "mlp@0.25"]
    whole: dict[str, Any] = {"data__name": "npz", "data__dir": folder, "clients": 3}
    whole |= {"data__samples": 0, "data__test_samples": 0, "data__partition": "natural"}
    whole |= {"data__test": "merge", "data__test_fraction": 0.25, "method": "fedavg", "rounds": 1}
    result = play(flat(tmp_path / "merge", **whole))
    assert scores(tmp_path / "merge") == [(24, 9), (26, 9), (27, 10)]
    # the server's accuracy is over the clients' 28 test samples and no others
    hits = result.summary["accuracy"]["final"] * 28
    assert hits == pytest.approx(round(hits), abs=1e-9)
    told = [score["accuracy_global"] * score["n"] for score in result.journal[-1]["scores"]]
    assert sum(told) == pytest.approx(hits)


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for k, n in enumerate((5, 6)):
        paint(tmp_path / "hospitals" / str(k), k, ill=n, well=5)
    paint(tmp_path / "hospitals" / "server", 9, ill=2, well=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hospitals"


def test_each_client_has_a_folder_of_its_own(hospitals: Path, tmp_path: Path) -> None:
    done = run(tmp_path / "out", *HOSPITALS, "data.dir=hospitals/{k}")
    assert done.returncode == 0, done.stderr
    assert scores(tmp_path / "out") == [(8, 2), (8, 3)]  # a fifth of 10 and 11
    apart = {f"node__{k}__data_dir": str(hospitals / str(k)) for k in range(2)}
    apart |= {"data__dir": str(hospitals / "server"), "data__partition": "own", "data__test": "own"}
    whole = {"data__name": "folder", "clients": 2, "method": "fedavg", "rounds": 1}
    play(flat(tmp_path / "apart", data__samples=0, data__test_samples=0, **whole, **apart))
    assert scores(tmp_path / "apart") == [(10, 4), (11, 4)]


@pytest.mark.parametrize("method", ["scaffold", "kt-pfl"])
def test_a_roster_grows_when_a_run_resumes(method: str, hospitals: Path, tmp_path: Path) -> None:
    own = {"data__name": "folder", "data__samples": 0, "data__test_samples": 0}
    own |= {"data__dir": f"{hospitals}/{{k}}", "data__partition": "own", "method": method}
    if method == "kt-pfl":
        own |= {"data__public_dir": str(hospitals / "server"), "kt_pfl__first_epochs": 1}
    play(flat(tmp_path / "out", clients=2, rounds=1, **own))
    paint(hospitals / "2", 2, ill=8, well=5)
    grown = play(flat(tmp_path / "out", clients=3, rounds=3, resume=True, **own))
    assert [entry["replied"] for entry in grown.journal[1:]] == [[0, 1], [0, 1, 2], [0, 1, 2]]
    (event,) = grown.journal[2]["events"]
    assert (event["k"], event["kind"], event["member"]["n"]) == (2, "joined", 10)
    with pytest.raises(Stopped, match="was written with clients = 3, this run has 2"):
        play(flat(tmp_path / "out", clients=2, rounds=4, resume=True, **own))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("data.dir=hospitals/0",), "client 1 has the same data as client 0; give each its own"),
        (("data.name=digits",), "client 1 has the same data as client 0"),
        (
            ("data.dir=hospitals/{k}", "data.test=merge", "node.1.data-dir=hospitals/server"),
            "client 1 has the same data as the server",
        ),
        (("data.dir=hospitals/{k}", "clients=3"), "hospitals/2' is not a folder"),
        (("data.dir=nowhere/{k}",), "the server needs test data of its own in"),
        (("data.dir=hospitals/{k}", "node.1.data-dir=nowhere"), "node.1.data-dir = '"),
        (("data.dir=hospitals/{k}", "node.1.data-dir=other"), "client 1 has images 1×8×8 of 2"),
        (("data.dir=hospitals/{k}", "node.1.model=mpl"), "model 'mpl': no architecture"),
        (("data.dir=hospitals/{k}", "node.1.device=cuda:7"), 'device = "cuda:7" is not here'),
    ],
)
def test_what_cannot_be_a_clients_own_is_one_line_before_anything_starts(
    hospitals: Path, tmp_path: Path, settings: tuple[str, ...], line: str
) -> None:
    paint(tmp_path / "other", 3, sick=5, well=5)
    done = run(tmp_path / "out", *HOSPITALS, *settings)
    assert done.returncode == 1 and line in done.stderr.replace("\n", " "), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_node_is_the_same_by_the_experiment_and_by_its_machine(tmp_path: Path) -> None:
    state = tmp_path / "state of 1"
    own = {"rounds": 1, "method": "fedorion"}
    node = {"node__1__model": "lenet5", "node__1__state_dir": str(state)}
    told = flat(tmp_path / "told", **own, **node)
    by_file = play(told)
    assert any(state.iterdir())
    own = flat(tmp_path / "own", rounds=1, method="fedorion")
    here: dict[str, Value] = {"model": "lenet5", "state-dir": str(tmp_path / "other")}
    by_machine = play(own, Loopback(4, own, workers=0, node_configs={1: here}))
    assert by_file.timeless == by_machine.timeless and by_file.weights == by_machine.weights
    # what the machine says wins
    both = flat(tmp_path / "both", rounds=1, method="fedorion", node__1__model="resnet8")
    won = play(both, Loopback(4, both, workers=0, node_configs={1: here}))
    assert won.weights == by_machine.weights


def test_relative_folders_are_made_absolute_first(hospitals: Path, tmp_path: Path) -> None:
    given = ["node.1.data-dir=hospitals/1", "clients=2", "data.dir=hospitals/{k}"]
    whole = resolve(None, [*given, "data.partition=own"])
    resolved, _ = fresh(whole, "loopback", tmp_path / "out")
    assert resolved["node.1.data-dir"] == str(hospitals / "1")
    assert resolved["data.dir"] == str(hospitals / "{k}")
    with pytest.raises(ValueError, match=r"data.dir = .* is relative; other machines need"):
        prepared(whole, False, False)
    absolute = {**whole, "data.dir": "/h/{k}"}
    with pytest.raises(ValueError, match=r"node.1.data-dir = 'hospitals/1' is relative"):
        prepared(absolute, False, False)
    # a node's state folder outlives the run, so the experiment's name is the run's own
    for key, names in (("node.1.state-dir=kept", 2), ("node.1.model=mlp", 1)):
        whole = resolve(None, [key, "clients=2"])
        named = {fresh(whole, "loopback", tmp_path / o)[0]["experiment"] for o in "ab"}
        assert len(named) == names, key


def test_owners_are_counted_here_and_an_app_needs_a_number(tmp_path: Path) -> None:
    whole = resolve(None, ["data.name=npz", "data.dir=/elsewhere", "data.partition=natural"])
    with pytest.raises(ValueError, match=r"clients = 0 is not allowed .*: -s clients=N"):
        counted(whole, data_here=False)
    assert counted({**whole, "clients": 5}, data_here=False)["clients"] == 5
    assert prepared(whole, False, False)["clients"] == 0, "the nodes have the number"
    here = {**whole, "data.dir": str(write_clients(tmp_path / "mine", 4)), "data.samples": 30}
    assert fresh(here, "loopback", tmp_path / "out")[0]["clients"] == 4
    automatic = {**here, "data.partition": "auto"}
    assert counted(automatic)["clients"] == 4
    assert counted({**automatic, "data.name": "digits", "data.dir": ""})["clients"] == 6


def test_what_is_read_is_shown_without_training_at_the_start_and_in_the_report(
    tmp_path: Path,
) -> None:
    folder = write_clients(tmp_path / "clinics", 2)
    (folder / "train" / "notes.txt").write_text("")
    settings = ("method=local", "rounds=1", "fleet=mlp", "train.epochs=1", "clients=2")
    settings += ("data.name=npz", f"data.dir={folder}", "data.partition=natural", "data.test=own")
    words = [word for text in settings for word in ("-s", text)]
    done = typed("data", *words, "--json")
    shown = json.loads(done.stdout)
    rows = dict(shown["rows"])
    assert rows["not read"] == "1 of .txt (train/notes.txt)" and rows["owners"] == "2: 0 24, 1 25"
    assert shown["classes"][0][1] + shown["classes"][1][1] + shown["classes"][2][1] == 24 + 25
    assert {path.name for path in tmp_path.iterdir()} == {"clinics"}  # nothing was trained
    out = tmp_path / "run"
    done = typed("run", *words, "--out", out, "--runtime", "loopback")
    assert all(heading in done.stdout for heading in rows)
    assert json.loads((out / "data.json").read_text())["rows"] == shown["rows"]
    assert "train/notes.txt" in (out / "report.html").read_text()
    private = tmp_path / "private"
    secret = ("-s", "method=fedavg", "-s", "privacy.mode=central", "-s", "data.test=split")
    secret += ("-s", "privacy.noise-multiplier=0.01")
    run = typed("run", *words, *secret, "--out", private)
    assert run.returncode == 0, run.stderr
    assert "classes" in run.stdout and not (private / "data.json").exists()
    bad = write_clients(tmp_path / "bad", 1)
    (bad / "train" / "0.npz").write_bytes(b"")
    line = error_of("data", "-s", "data.name=npz", "-s", f"data.dir={bad}")
    assert f"{bad / 'train' / '0.npz'}" in line
