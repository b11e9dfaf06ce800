"""A participant: its data and seeds, its limits, and what is done once in a process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from client_app.participant import Participant
from common import models
from common.parse import defaults, parse
from common.settings.config import Value
from common.training import task
from common.training.task import evaluate
from deploy.run.loopback import Loopback
from tests.support import halves, own_modules
from tests.support.own_modules import importing_from, module
from tests.support.tiny import Run, flat, play, under


def participant(tmp_path: Path, node: dict[str, Value], **changes: Any) -> Participant:
    config = parse(flat(tmp_path, **changes))
    return Participant(config, {"partition-id": 1, "num-partitions": 4, **node}, "e")


def test_fleet_and_disjoint_shares_follow_the_partition_id(tmp_path: Path) -> None:
    specs = [participant(tmp_path, {"partition-id": k}).spec for k in range(4)]
    assert specs == ["mlp@0.25", "cnn2@0.5", "mlp@0.25", "cnn2@0.5"]
    p = participant(tmp_path, {"model": "lenet5", "state-dir": str(tmp_path / "mine")})
    assert p.spec == "lenet5" and p.folder == tmp_path / "mine" / "e" / "1"
    assert participant(tmp_path, {}, fleet="l-het").spec == "shufflenetv2", "a preset"
    p = participant(tmp_path, {}, data__test_fraction=0.2)
    train, test = (set(rows.tolist()) for rows in (p._share.train, p._share.test))
    assert not train & test and (len(train), len(test)) == (24, 6)
    assert sum(p.counts) == p.n == 24
    whole = participant(tmp_path, {}, data__partition="own", data__test_fraction=0.25)
    assert (whole.n, whole.n_test) == (90, 30), "a node's own data need no partition"


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ({"partition-id": -1}, "node config partition-id = -1"),
        ({"partition-id": "0"}, 'node config partition-id = "0"'),
        ({"partition-id": 4}, "partition-id = 4, but the federation has 4"),
        ({"device": "cuda:9"}, 'device = "cuda:9" is not here'),
    ],
)
def test_a_node_that_cannot_be_a_client_is_refused(node, line, tmp_path) -> None:
    with pytest.raises(ValueError, match=line):
        participant(tmp_path, node)


def test_without_a_shuffle_every_epoch_of_every_round_has_one_random_order(tmp_path: Path) -> None:
    settings = under("train", shuffle=False, drop_last=True, batch_size=7, epochs=2)
    fixed = participant(tmp_path, {}, **settings)
    weight, seen = torch.zeros(1, requires_grad=True), list[list[int]]()

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(y.tolist())
        return weight.sum() * 0

    metrics = [fixed.train(t, [weight], loss) for t in (1, 2)]
    full, rest = divmod(fixed.n, 7)
    assert rest and metrics[0]["steps"] == fixed.task.steps(fixed.n) == 2 * full
    assert len(seen) == 4 * full and all(len(batch) == 7 for batch in seen)
    assert seen == 4 * seen[:full]
    order = [label for batch in seen[:full] for label in batch]
    assert order != fixed.train_set[1].tolist()[: 7 * full]


def test_bf16_learns_and_repeats_bit_for_bit(run: Run) -> None:
    settings = {"method": "fedavg", "precision": "bf16", "rounds": 3}
    first, second = run(**settings), run(**settings)
    assert first.weights == second.weights and first.summary["accuracy"]["final"] > 0.5
    assert first.weights != run(**settings | {"precision": "fp32"}).weights


def test_only_models_with_published_weights_are_pretrained(tmp_path, monkeypatch) -> None:
    asked: dict[str, bool] = {}
    build = models.build

    def noting(spec: str, *args: Any, pretrained: bool = False, **kwargs: Any) -> Any:
        asked[spec] = pretrained
        return build(spec, *args, **kwargs)

    monkeypatch.setattr(models, "build", noting)
    p = participant(tmp_path, {}, pretrained=True)
    for spec in ("mlp", "resnet18", "resnet18@0.25"):
        p.model(spec)
    assert asked == {"mlp": False, "resnet18": True, "resnet18@0.25": False}
    p.model("resnet18", dict(build("resnet18", (1, 8, 8), 3, seed=1).state_dict()))
    assert asked["resnet18"] is False


HUNGRY = """
import resource, torch
from client_app.node import limit_memory

def fits(megabytes):
    try:
        torch.zeros(megabytes * 250_000)
        return True
    except (RuntimeError, MemoryError):
        return False

used = sum(
    int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")
) // 1000
limit_memory(used + 300)
print(fits(100), fits(600))
limit_memory(0)
print(fits(600))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_memory_beyond_the_limit_fails_and_the_process_lives_on() -> None:
    done = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the limit")
def test_a_limit_of_one_client_does_not_stay_for_the_next_in_the_same_process(tmp_path) -> None:
    import resource

    config = parse(flat(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        Participant(config, {"partition-id": 0, "memory-mb": 64_000}, "test")
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 64_000 * 10**6
        Participant(config, {"partition-id": 1}, "test")
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_cpu_client_and_a_gpu_client_learn_together(tmp_path: Path) -> None:
    config = flat(tmp_path, method="fedorion", clients=2, fleet="cnn2@0.5,mlp@0.25")
    devices = {0: {"device": "cpu"}, 1: {"device": "cuda"}}
    with Loopback(2, config, workers=0, node_configs=devices) as grid:
        run = play(config, grid)
    assert all(entry["replied"] == [0, 1] for entry in run.journal[1:])


def test_a_message_cannot_name_a_module_that_the_run_config_does_not_name(tmp_path, monkeypatch):
    name = module(tmp_path, "raise SystemExit('imported')\n")
    own_modules.distribution(tmp_path, name, f"[fedmosaic.models]\nby-{name} = {name}:Net\n")
    importing_from(tmp_path, monkeypatch)
    participant = Participant(parse(flat(tmp_path)), {"partition-id": 0}, "test")
    for model in (f"{name}:Net", f"{name}:Net@0.5", f"by-{name}"):
        with pytest.raises(ValueError, match="is a plug-in that the run's settings do not name"):
            participant.model(model)
    assert name not in sys.modules
    named = Participant(parse(flat(tmp_path, fleet=f"mlp,{name}:Net")), {"partition-id": 0}, "test")
    with pytest.raises(ValueError, match="cannot be imported"):
        named.model(f"{name}:Net")


def test_settings_are_parsed_once_and_parameters_counted_once(monkeypatch) -> None:
    one = {**defaults(), "score.target": 1.0, "rounds": 3}
    assert parse(dict(one)) is parse(dict(one))
    other = parse({**one, "rounds": 4})
    assert other.run.rounds == 4 and parse(one).run.rounds == 3
    with pytest.raises(ValueError, match="rounds = true"):
        parse({**one, "rounds": True})
    counts = [models.parameters("cnn2@0.37", (1, 8, 8), 7)]
    monkeypatch.setattr(models, "build", None)
    counts.append(models.parameters("cnn2@0.37", (1, 8, 8), 7))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("layout", ["auto", "contiguous"])
def test_a_network_to_score_is_built_once_and_holds_the_weights_at_hand(layout: str) -> None:
    learnt = halves.task(train__memory_format=layout)
    x = torch.randint(256, (9, *learnt.shape), dtype=torch.uint8)
    y = torch.arange(9) % learnt.num_classes
    nets = [learnt.build("cnn2@0.5", name=(str(i),)) for i in range(2)]
    for net in nets:  # running statistics too
        net(torch.rand(4, *learnt.shape))
    task._cached_network.cache_clear()
    for net in (*nets, *nets):
        shown = learnt.cached_network("cnn2@0.5", net.state_dict())
        found, expected = evaluate(shown, x, y, learnt), evaluate(net, x, y, learnt)
        assert torch.equal(found.outputs, expected.outputs) and found.loss == expected.loss
        assert all(torch.equal(v, shown.state_dict()[k]) for k, v in net.state_dict().items())
    assert task._cached_network.cache_info().misses == 1


@pytest.mark.full
def test_a_sample_of_the_clients_scores_and_the_weights_are_the_same(tmp_path: Path) -> None:
    given = {"clients": 4, "rounds": 2, "score__clients_every": 1}
    every = play(flat(tmp_path / "every", **given))
    few = play(flat(tmp_path / "few", **given, score__clients=2))
    assert few.weights == every.weights
    ks = [[score["k"] for score in entry["scores"]] for entry in few.journal[1:]]
    assert len(ks[0]) == 2 and ks[0] == ks[1] == sorted(ks[0])
    told = {score["k"]: score for score in every.journal[1]["scores"]}
    assert few.journal[1]["scores"] == [told[k] for k in ks[0]]


def test_a_client_without_a_public_set_names_the_settings_that_make_one(tmp_path: Path) -> None:
    client = Participant(parse(flat(tmp_path, method="fedavg")), {"partition-id": 0}, "test")
    with pytest.raises(ValueError, match=r"set data\.public, public-name or public-dir"):
        client.check_public()
