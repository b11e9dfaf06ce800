"""Where settings come from: the knobs' defaults, then an experiment file, then ``-s key=value``.

Flower takes the defaults from ``[tool.flwr.app.config]`` in ``pyproject.toml``;
``python -m deploy.run.settings`` writes them there.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from common import methods
from common.errors import refusal
from common.files import write_atomically
from common.settings.old_defaults import OLD_DEFAULTS
from common.settings.parse import NODE, defaults, kind_of, reads, tables
from common.settings.plugins import nearest, table_of
from common.settings.section import Value, kebab
from deploy.run import user_modules
from server_app.storage.relative_paths import to_absolute

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
DEFAULT = EXPERIMENTS / "default.toml"
RUNTIMES = ("loopback", "ray", "grpc")
M = TypeVar("M", bound=BaseModel)


def app_folder() -> Path:
    """The folder of the Flower app: the one with ``pyproject.toml`` and the three packages.

    Raises ``ValueError`` if this installation has none.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / "pyproject.toml").exists():
        raise ValueError(f"{folder} has no pyproject.toml; install with `pip install -e .`")
    return folder


def check_runtime(runtime: str, workers: int | None) -> None:
    """Raise ``ValueError`` for a runtime that does not exist (empty: the config's), or a number of
    workers that nobody means.
    """
    if runtime and runtime not in RUNTIMES:
        known = ", ".join(RUNTIMES)
        raise ValueError(f"--runtime {runtime} is unknown; allowed: {known}")
    check_workers(workers)


def check_workers(workers: int | None) -> None:
    """Raise ``ValueError`` for a number of workers that nobody means (None: the default)."""
    if workers is not None and not 0 <= workers <= 1024:
        raise ValueError(f"--workers {workers} is not allowed; it should be 0 to 1024")


@final
@dataclass(frozen=True)
class Experiment:
    """The keys of an experiment file, read once, and the overrides ``key=value`` that win."""

    file: Path
    own: Mapping[str, Value]
    overrides: Sequence[str]

    @property
    def chosen(self) -> dict[str, Value]:
        """The file's own keys with the overrides, whose values stay texts."""
        words = (text.partition("=") for text in self.overrides)
        return {**self.own, **{key.strip(): value.strip(" \"'") for key, _, value in words}}

    @property
    def runtime(self) -> str:
        """What ``resolve`` will find for the key ``runtime``, without importing any method."""
        return str(self.chosen.get("runtime") or RUNTIMES[0])

    def resolve(self) -> dict[str, Value]:
        """Return the whole flat run config; raises ``ValueError``, one line, for a wrong key."""
        own, chosen = self.own, self.chosen
        folder, method = self._plugins(chosen), str(chosen.get("method", ""))
        if "method" in own and method != own["method"]:  # the file's own plug-in is not wanted
            table = table_of(str(own["method"]))
            if table not in tables():
                own = {k: v for k, v in own.items() if k.rpartition(".")[0] != table}
        flat = defaults(method) | numbers(own, method)
        flat |= dict(parse_override(text, method) for text in self.overrides)
        return flat | {"plugins": folder}

    def shipped(self) -> dict[str, Value]:
        """Return the settings that decide the code of a run: names, ``[node.K]`` tables, plug-ins.

        It imports no method unless the method is a plug-in or a key is unknown.
        """
        app = read_toml(app_folder() / "pyproject.toml")["tool"]["flwr"]["app"]
        known, chosen = flatten(app["config"]), self.chosen
        nodes = {key for key in chosen if NODE.fullmatch(key.rpartition(".")[0])}
        built_in = chosen.get("method", known["method"]) in methods.names()
        if not built_in or chosen.keys() - nodes - known.keys():
            return self.resolve()
        flat = chosen | numbers({key: self.own[key] for key in nodes & self.own.keys()})
        overrides = (text for text in self.overrides if text.partition("=")[0].strip() in nodes)
        flat |= dict(parse_override(text) for text in overrides)
        return flat | {"plugins": self._plugins(chosen)}

    def _plugins(self, chosen: Mapping[str, Value]) -> str:
        """Return the folder with modules of the user's own that ``chosen`` names, or nothing.

        It is that of the key ``plugins``, of the experiment file, or of the copies of the run whose
        ``config.toml`` the file is.

        Raises ``ValueError`` if the key names no folder, and the file's has no copies either.
        """
        said = Path(str(chosen.get("plugins", ""))).expanduser()
        beside_it = Path() if self.file.parent == EXPERIMENTS else self.file.parent
        asked = said if chosen.get("plugins") else beside_it
        for folder in (asked, beside_it / user_modules.COPIES):
            if folder.is_dir() and user_modules.look_in(folder, chosen):
                return str(folder.resolve())
        if not said.is_dir():
            raise ValueError(f"plugins = {chosen['plugins']!r} is not a folder")
        return ""


def read(experiment: Path | None, overrides: Iterable[str] = ()) -> Experiment:
    """Read an experiment file (None: only the defaults).

    A finished run's ``config.toml`` is an experiment file too: the same run again, elsewhere.

    Raises ``ValueError``, one line: no such file, not TOML.
    """
    file = find(experiment or DEFAULT)
    own = {} if experiment is None else _anew(load(file), file)
    return Experiment(file, own, list(overrides))


def resolve(experiment: Path | None, overrides: Iterable[str] = ()) -> dict[str, Value]:
    """Return the whole flat run config of an experiment file (None: only the defaults)."""
    return read(experiment, overrides).resolve()


def _anew(own: dict[str, Value], path: Path) -> dict[str, Value]:
    """Return the settings of a run's ``config.toml`` without its folders and its name.

    A key that the file lacks has its old default. Other experiment files are returned unchanged.
    """
    folder = path.resolve().parent
    if own.get("out") not in (".", str(folder)) or "resume" not in own:
        return own
    gone, placed = {"out", "experiment", "runtime"}, to_absolute(own, folder)
    if placed.get("state-dir") == str(folder / "state"):
        gone.add("state-dir")
    return {**OLD_DEFAULTS, **{key: v for key, v in placed.items() if key not in gone}}


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
    table = read_toml(path)
    if "row" in table:
        raise ValueError(f"{path} is a table; run it with: fedmosaic table {experiment}")
    return flatten(table)


def load_run(folder: Path) -> dict[str, Value]:
    """Return the run config of the run in ``folder``, and make its plug-ins importable.

    A key that ``config.toml`` lacks has its old default.
    """
    flat = to_absolute(load(folder / "config.toml"), folder)
    copies = folder / user_modules.COPIES
    if user_modules.look_in(copies, flat):
        flat["plugins"] = str(copies)
    return {**defaults(), **OLD_DEFAULTS, **flat}


def chosen(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that differ from the old defaults, which identify a configuration.

    Neither a new key nor a new default changes what identifies a configuration of before.
    """
    usual = {**defaults(), **OLD_DEFAULTS}
    return {key: value for key, value in sorted(flat.items()) if value != usual.get(key)}


def unread(method: str) -> dict[str, Value]:
    """Return the old defaults in the tables that ``method`` does not read.

    In a configuration with these values, new defaults of other methods are not among the settings
    that ``chosen`` returns.
    """
    return {key: old for key, old in OLD_DEFAULTS.items() if not reads(method, key)}


def numbers(flat: Mapping[str, Value], method: str = "") -> dict[str, Value]:
    """The same with integers made floats where the key takes any number; keys are checked.

    ``method``: whose table is known too. What else a value may be is left to ``parse``.
    """
    return {
        key: float(value) if kind_of(key, method) is float and type(value) is int else value
        for key, value in flat.items()
    }


def parse_override(text: str, method: str = "") -> tuple[str, Value]:
    """``key=value`` to the key and its value, of the type that the key has.

    ``method``: whose table is known too.
    """
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        raise ValueError(f"-s {text!r}: expected key=value")
    kind = kind_of(key, method)
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


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds. Raises ``ValueError``, one line, if it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def checked(kind: type[M], content: Mapping[str, object], path: Path) -> M:
    """``content`` as a ``kind``.

    Raises ``ValueError``, one line: the file, the key, its value, and what is allowed there.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = error.errors()
        # a misspelt key is unknown, and often missing too
        first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
        raise ValueError(f"{path}: {_explain(kind, first)}") from error


def _explain(kind: type[BaseModel], error: ErrorDetails) -> str:
    *outer, last = error["loc"] or ("",)
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        fields = _inner(kind, outer).model_fields
        known = [field.alias or name for name, field in fields.items()]
        return f"key {where!r} is unknown{nearest(str(last), known)}; allowed: {', '.join(known)}"
    return refusal(error, where)


def _inner(kind: type[BaseModel], place: list[str | int]) -> type[BaseModel]:
    """The model at ``place``, a path of keys and numbers, of which each key is a list of models."""
    for key in place:
        if isinstance(key, str):
            (kind,) = get_args(kind.model_fields[key].annotation)
    return kind


APP_CONFIG = "tool.flwr.app.config"


def app_config(flat: Mapping[str, Value]) -> str:
    """Our tables with the values of ``flat``, as the TOML that Flower reads."""
    lines = []
    for table, kind in tables().items():
        lines += ["", f"[{APP_CONFIG}{'.' if table else ''}{table}]"]
        for name in map(kebab, kind.model_fields):
            value = flat[f"{table}.{name}".lstrip(".")]
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        if not kind.model_fields:
            del lines[-2:]
    return "\n".join(lines[1:]) + "\n"


def with_app_config(pyproject: str, flat: Mapping[str, Value]) -> str:
    """The text of a ``pyproject.toml`` with the values of ``flat`` in it."""
    before, _, rest = pyproject.partition(f"[{APP_CONFIG}]")
    after = re.search(rf"^\[(?!{re.escape(APP_CONFIG)})", rest, re.MULTILINE)
    return before + app_config(flat) + "\n" + (rest[after.start() :] if after else "")


if __name__ == "__main__":
    from deploy.report import listing

    path = app_folder() / "pyproject.toml"
    write_atomically(path, with_app_config(path.read_text(encoding="utf-8"), defaults()).encode())
    write_atomically(listing.FILE, listing.built_text().encode())
