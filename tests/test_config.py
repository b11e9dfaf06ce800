"""Configuration: every wrong key, type or bound is one line before anything starts."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common import methods
from common.parse import auto_of, defaults, parse, tables, to_toml
from common.settings.config import SECTIONS, Config, Run, Value
from common.settings.section import Section, kebab, meaning
from deploy import settings
from tests.support.recorded_calls import refusal

AUTO: dict[str, dict[str, tuple[Value, Value]]] = {
    "average.weights": {"fedavg": ("samples", "uniform"), "fedin": ("uniform", "samples")},
    "average.across": {"fedavg": ("none", "same"), "fedin": ("layerwise", "same")},
    "oca.aggregate": {"fedavg": ("off", "on"), "fedkf": ("on", "on")},
    "generator.lr": {"fedkf": (0.001, 0.5), "fedgen": (0.0001, 0.5)},
    "generator.adversarial": {"fedftg": ("off", "on"), "fedkf": ("cifar", "off")},
    "projection": {"moon": ("on", "off"), "fedavg": ("off", "on")},
}
"""By key and method: the resolved value, and another one that may be given."""


def values(**changes: Value) -> dict[str, Value]:
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return settings.defaults() | named


def test_every_knob_has_its_value_in_pyproject_and_no_other_is_there() -> None:
    assert sorted(settings.defaults()) == sorted(defaults())


def test_the_defaults_parse() -> None:
    config = parse(settings.defaults())
    assert config.run.method == "fedorion" and len(config.fleet) >= 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train__epochs": -1}, "train.epochs = -1 is not allowed; it should be greater"),
        ({"data__alpha": 0.0}, "data.alpha = 0.0 is not allowed; it should be greater than 0"),
        ({"seed": True}, "seed = true is not allowed; it should be integer"),
        ({"train__lr": "fast"}, 'train.lr = "fast" is not allowed; it should be number'),
        ({"precision": "fp8"}, "precision = \"fp8\" is not allowed; it should be 'fp32' or 'bf16'"),
        ({"labels": "abc"}, 'labels = "abc" is not allowed; it should be key=value'),
        ({"select__tags": "a b"}, 'select.tags = "a b" is not allowed; it should be at most 20'),
        ({"node__1__name": ""}, 'node.1.name = "" is not allowed; it should be 1 to 60 characters'),
        ({"device": "gpu"}, 'device = "gpu" is not allowed; it should be auto, cpu, cuda'),
        ({"method": "fedavgg"}, 'method = "fedavgg" is unknown; allowed: '),
        ({"fleet": "mlp\n"}, r'fleet = "mlp\n" is not allowed; it should be a text of one line'),
        ({"clients": 5, "per_round": 6}, "per-round = 6 is more than clients = 5"),
        ({"roundz": 3}, "key 'roundz' is unknown; did you mean 'rounds'?"),
        ({"steps": 3}, "key 'steps' is unknown; did you mean 'train.steps'?"),
        ({"lr": 0.1}, "key 'lr' is unknown; did you mean 'train.lr', 'noise.lr', 'generator.lr'"),
        ({"fedorion__dmll": True}, "key 'fedorion.dmll' is unknown; did you mean 'fedorion.dml'?"),
        ({"nosuch__key": 1}, "key 'nosuch.key' is unknown"),
        ({"experiment": "../x"}, 'experiment = "../x" is not allowed; it should be letters'),
        ({"node__3__modell": "mlp"}, "key 'node.3.modell' is unknown; did you mean 'node.3.model'"),
        ({"node__3__partition_id": 1}, "key 'node.3.partition-id' is unknown"),
        ({"node__x__model": "mlp"}, "key 'node.x.model' is unknown; did you mean 'node.K.model'?"),
        ({"node__03__model": "mlp"}, "key 'node.03.model' is unknown"),
        ({"node__3__device": "gpu"}, 'node.3.device = "gpu" is not allowed; it should be auto,'),
        ({"node__3__threads": 0}, "node.3.threads = 0 is not allowed; it should be greater than"),
        ({"node__3__memory_mb": 9}, "node.3.memory-mb = 9 is not allowed; it should be greater"),
        ({"node__3__incentive": "no"}, 'node.3.incentive = "no" is not allowed; it should be bool'),
        ({"node__3__model": "mlp", "clients": 3}, "[node.3] is not allowed with clients = 3"),
        ({"score__stop": True}, "score.stop = true needs a score.target, which is not 0"),
        ({"data__dir": "h/{k}"}, "data.dir = 'h/{k}' is not allowed with data.partition"),
        ({"data__test": "merge", "data__test_fraction": 0.0}, 'data.test = "merge" needs a data'),
    ],
)
def test_a_mistake_is_one_line_with_what_is_allowed(changes: dict[str, Value], line: str) -> None:
    assert refusal(parse, values(**changes)).startswith(line)


def test_single_nodes_have_settings_of_their_own() -> None:
    own = {"node.11.model": "mlp", "node.2.threads": 2, "node.2.incentive": False}
    config = parse({**values(clients=12), **own})
    assert config.node(2) == {"threads": 2, "incentive": False} and config.node(3) == {}
    assert config.node(11) == {"model": "mlp"}
    assert config.brought == (*config.fleet, "mlp")[: len(config.fleet)], "mlp is in the fleet"
    assert settings.parse_override("node.4.memory-mb=500") == ("node.4.memory-mb", 500)
    assert settings.parse_override("node.4.incentive=false") == ("node.4.incentive", False)
    assert config.data_of(5, {"data-dir": "/x", "threads": 1}).dir == "/x"


def test_a_resolved_config_survives_its_file(tmp_path: Path) -> None:
    flat = values(node__10__model="mlp", node__2__data_dir="/data/2", node__2__threads=2)
    flat |= {"data.dir": 'C:\\some "odd" dir', "train.lr": 1e-7}
    path = tmp_path / "config.toml"
    path.write_text(to_toml(flat))
    assert settings.load(path) == flat
    text = path.read_text()
    assert text.index("[node.2]") < text.index("[node.10]")


def test_an_override_has_the_type_of_its_key() -> None:
    assert settings.parse_override("train.lr=1") == ("train.lr", 1.0)
    assert settings.parse_override("fedorion.dml = False") == ("fedorion.dml", False)
    assert settings.parse_override("data.name='toy'") == ("data.name", "toy")
    for text in ("train.lr", "train.lr=abc", "fedorion.dml=maybe", "rounds=1.5", "=3"):
        with pytest.raises(ValueError):
            settings.parse_override(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("out = 2020-01-01", "out = 2020-01-01 is not allowed"),
        ("[data]\nname = ['a', 'b']", "data.name = ['a', 'b'] is not allowed; it should be text"),
    ],
)
def test_a_value_that_no_key_has_is_refused_with_key(text: str, said: str, tmp_path: Path) -> None:
    (path := tmp_path / "dated.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        settings.resolve(path)


def knob(config: Config, key: str) -> Any:
    """The value of one of the shared knobs."""
    table, leaf = key.split(".") if "." in key else ("run", key)
    return getattr(getattr(config, table), leaf.replace("-", "_"))


@pytest.mark.parametrize("key", AUTO)
def test_auto_is_what_the_methods_contract_says_unless_a_value_is_given(key: str) -> None:
    for method, (resolved, chosen) in AUTO[key].items():
        flat = values(method=method)
        assert flat[key] in ("auto", 0.0)
        assert knob(parse(flat), key) == resolved
        assert knob(parse({**flat, key: chosen}), key) == chosen


@pytest.mark.parametrize("method", methods.names())
def test_no_auto_is_left_once_the_config_is_parsed(method: str) -> None:
    config = parse(values(method=method, data__public=0.5, rounds=100))
    auto, found = methods.options(method).auto, 0
    for table, kind in {"run": Run, **SECTIONS}.items():
        for name, field in kind.model_fields.items():
            key = f"{table}.{kebab(name)}".removeprefix("run.")
            assert auto_of(field) or key not in auto, f"{key} has no auto"
            if mark := auto_of(field):
                found += key in auto
                assert knob(config, key) == auto.get(key, mark.usual)
                assert knob(config, key) not in ("auto", 0.0) or mark.usual == 0.0
    assert found == len(auto), "a contract speaks of a knob that does not exist"


@pytest.mark.parametrize("table", sorted(tables()))
def test_a_knob_has_a_default_within_its_bounds_and_one_line_of_meaning(table: str) -> None:
    kind = tables()[table]
    for name, field in kind.model_fields.items():
        assert meaning(kind, name) and "\n" not in meaning(kind, name), name
        assert not field.is_required(), name
    whole = {kebab(name): field.default for name, field in kind.model_fields.items()}
    assert kind.model_validate(whole).model_dump() == kind().model_dump()


def test_a_knob_means_what_the_docstring_below_it_says() -> None:
    class Base(Section):
        a: int = 1
        """Of the
        base."""

    class Derived(Base):
        a: int = 4
        b: int = 2
        """Own."""
        c: int = 3

    assert [meaning(Derived, name) for name in "abc"] == ["Of the base.", "Own.", ""]


def test_pyproject_hands_flower_todays_defaults() -> None:
    pyproject = (settings.app_folder() / "pyproject.toml").read_text(encoding="utf-8")
    assert settings.with_app_config(pyproject, settings.defaults()) == pyproject
    stale = pyproject.replace("rounds = 6\n", "rounds = 7\ngone = true\n")
    assert stale != pyproject and settings.with_app_config(stale, settings.defaults()) == pyproject


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("fedprox.mu", -1.0, "fedprox.mu = -1.0 is not allowed"),
        ("fedprox.nu", 1.0, "key 'fedprox.nu' is unknown; did you mean 'fedprox.mu'?"),
        ("fedgkd.buffer", "many", 'fedgkd.buffer = "many" is not allowed'),
    ],
)
def test_an_app_reads_its_own_methods_table_alone(key: str, value: Value, line: str) -> None:
    flat = {**values(method="fedavg"), key: value}
    assert parse(flat) == parse(values(method="fedavg"))
    for method, every in (("fedavg", True), (key.partition(".")[0], False)):
        assert refusal(parse, {**flat, "method": method}, every=every).startswith(line)


def test_an_app_imports_one_method() -> None:
    code = (
        "import sys; from common.parse import parse\n"
        "import json; parse(json.loads(sys.argv[1]))\n"
        "print(*sorted(m for m in sys.modules if m.startswith('common.methods.')))"
    )
    line = [sys.executable, "-c", code, json.dumps(values(method="fedavg"))]
    done = subprocess.run(line, capture_output=True, text=True, cwd=settings.app_folder())
    assert done.stdout.split() == ["common.methods.fedavg"], done.stderr


def test_a_missing_key_is_named_and_that_of_another_method_by_the_launcher() -> None:
    for key, every in (("train.lr", False), ("fedprox.mu", True)):
        flat = values(method="fedavg")
        del flat[key]
        if every:
            parse(flat)
        with pytest.raises(ValueError, match=f"key '{key}' is missing"):
            parse(flat, every=every)
