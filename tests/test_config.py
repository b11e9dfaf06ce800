"""Configuration: every wrong key, type or bound is one line before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import Value
from common.parse import known_keys, parse
from deploy.run import settings


def values(**changes: Value) -> dict[str, Value]:
    return settings.defaults() | {
        k.replace("__", ".").replace("_", "-"): v for k, v in changes.items()
    }


def test_every_knob_has_its_value_in_pyproject_and_no_other_is_there() -> None:
    assert sorted(settings.defaults()) == sorted(known_keys())


def test_the_defaults_parse() -> None:
    config = parse(settings.defaults())
    assert config.run.method == "fedorion" and len(config.fleet) >= 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"train__epochs": -1},
            "train.epochs = -1 is not allowed; it should be greater than or equal to 1",
        ),
        ({"data__alpha": 0.0}, "data.alpha = 0.0 is not allowed; it should be greater than 0"),
        ({"seed": True}, "seed = true is not allowed; it should be integer"),
        ({"train__lr": "fast"}, 'train.lr = "fast" is not allowed; it should be number'),
        ({"precision": "fp8"}, "precision = \"fp8\" is not allowed; it should be 'fp32' or 'bf16'"),
        (
            {"device": "gpu"},
            'device = "gpu" is not allowed; it should be auto, cpu, cuda or cuda:N',
        ),
        ({"method": "fedavgg"}, 'method = "fedavgg" is unknown; allowed: '),
        ({"clients": 5, "per_round": 6}, "per-round = 6 is more than clients = 5"),
        ({"roundz": 3}, "key 'roundz' is unknown; did you mean 'rounds'?"),
        ({"fedorion__dmll": True}, "key 'fedorion.dmll' is unknown; did you mean 'fedorion.dml'?"),
        ({"nosuch__key": 1}, "key 'nosuch.key' is unknown"),
        ({"experiment": "../x"}, 'experiment = "../x" is not allowed; it should be letters'),
    ],
)
def test_a_mistake_is_one_line_with_key_value_and_what_is_allowed(
    changes: dict[str, Value], line: str
) -> None:
    with pytest.raises(ValueError) as caught:
        parse(values(**changes))
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    incomplete = settings.defaults()
    del incomplete["train.lr"]
    with pytest.raises(ValueError, match="key 'train.lr' is missing"):
        parse(incomplete)


def test_an_override_has_the_type_of_its_key() -> None:
    assert settings.parse_override("train.lr=1") == ("train.lr", 1.0)
    assert settings.parse_override("fedorion.dml = False") == ("fedorion.dml", False)
    assert settings.parse_override("data.name='toy'") == ("data.name", "toy")
    for text in ("train.lr", "train.lr=abc", "fedorion.dml=maybe", "rounds=1.5", "=3"):
        with pytest.raises(ValueError):
            settings.parse_override(text)


def test_a_resolved_config_survives_its_file(tmp_path: Path) -> None:
    flat = values(data__dir='C:\\some "odd" dir', train__lr=1e-7)
    path = tmp_path / "config.toml"
    path.write_text(settings.to_toml(flat))
    assert settings.load(path) == flat


def test_a_value_of_a_kind_that_no_key_has_is_refused_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "dated.toml"
    for text, said in (
        ("out = 2020-01-01", "out = 2020-01-01 is not allowed"),
        ("[data]\nname = ['a', 'b']", "data.name = ['a', 'b'] is not allowed; it should be text"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError) as refused:
            settings.resolve(path)
        assert said in str(refused.value)
