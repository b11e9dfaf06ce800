"""Where settings come from: pyproject's values, then an experiment file, then ``-s key=value``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.config import Value, kind_of, known_keys

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
DEFAULT = EXPERIMENTS / "default.toml"


def app_folder() -> Path:
    """The folder of the Flower app: the one with ``pyproject.toml`` and the three packages.

    Raises ``ValueError`` if this installation has none.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "pyproject.toml").exists():
        raise ValueError(f"{folder} has no pyproject.toml; install with `pip install -e .`")
    return folder


def defaults() -> dict[str, Value]:
    """The value of every knob, flat, from ``[tool.flwr.app.config]``."""
    return flatten(_read(app_folder() / "pyproject.toml")["tool"]["flwr"]["app"]["config"])


def resolve(experiment: Path | None, overrides: Iterable[str] = ()) -> dict[str, Value]:
    """The whole flat run config of an experiment file (None: only the defaults) and overrides.

    A finished run's ``config.toml`` is an experiment file too: the same run again, elsewhere.

    Raises ``ValueError``, one line: no such file, not TOML, an unknown key, a bad override.
    """
    flat = defaults()
    if experiment is not None:
        flat |= numbers(_anew(load(experiment), find(experiment)))
    for override in overrides:
        key, value = parse_override(override)
        flat[key] = value
    return flat


def _anew(own: dict[str, Value], path: Path) -> dict[str, Value]:
    """Without what only the run has whose ``config.toml`` this is: its places and its name."""
    out = path.resolve().parent
    if own.get("out") != str(out):
        return own
    gone = {"out", "experiment", "runtime"}
    if own.get("state-dir") == str(out / "state"):
        gone.add("state-dir")
    return {key: value for key, value in own.items() if key not in gone}


def find(experiment: Path) -> Path:
    """An experiment file. A bare name is looked up among ours; ``.toml`` may be left out."""
    ours = EXPERIMENTS / experiment.name
    for path in (experiment, ours) if experiment.name else ():
        for candidate in (path, path.with_name(f"{path.name}.toml")):
            if candidate.is_file():
                return candidate
    names = ", ".join(sorted(path.stem for path in EXPERIMENTS.glob("*.toml")))
    raise ValueError(f"experiment file {experiment} does not exist; ours are: {names}")


def load(experiment: Path) -> dict[str, Value]:
    """An experiment file's own keys, flat."""
    path = find(experiment)
    table = _read(path)
    if "row" in table:
        raise ValueError(f"{path} is a table; run it with: fedmosaic table {experiment}")
    return flatten(table)


def numbers(flat: Mapping[str, Value]) -> dict[str, Value]:
    """The same with integers made floats where the key takes any number; keys are checked.

    What else a value may be is left to ``parse``.
    """
    return {
        key: float(value) if kind_of(key) is float and type(value) is int else value
        for key, value in flat.items()
    }


def parse_override(text: str) -> tuple[str, Value]:
    """``key=value`` to the key and its value, of the type that the key has."""
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        raise ValueError(f"-s {text!r}: expected key=value")
    kind = kind_of(key)
    try:
        if kind is bool:
            return key, {"true": True, "false": False}[raw.lower()]
        if kind is str:
            return key, raw.strip("\"'")
        return key, kind(raw)
    except (KeyError, ValueError):
        article = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise ValueError(f"{key} = {raw!r} is not allowed; it should be {article}") from None


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, Value]:
    """Nested TOML tables to dotted keys. Raises ``ValueError`` for a date, a time or a list."""
    flat: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{key}"] = value
        else:
            raise ValueError(
                f"{prefix}{key} = {value} is not allowed; it should be text in quotes, a number, "
                "true or false"
            )
    return flat


def to_toml(flat: Mapping[str, Value]) -> str:
    """The flat config as nested TOML in the order of the known keys, as ``config.toml`` has it."""
    lines: list[str] = []
    current = ""
    for key in known_keys():
        table, _, leaf = key.rpartition(".")
        if table != current:
            lines += ["", f"[{table}]"]
            current = table
        lines.append(f"{leaf} = {json.dumps(flat[key], ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
