"""Read settings: defaults, which an experiment file overrides, which ``-s key=value`` overrides.

Flower reads the defaults from ``[tool.flwr.app.config]`` in ``pyproject.toml``.
``python -m docs.tools.generate`` writes them there.
"""

import difflib
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from common import methods
from common.errors import refusal
from common.files import parse_toml, read_text
from common.keys import general_table
from common.parse import defaults, kind_of, reads, tables
from common.settings.config import SECTIONS
from common.settings.old_defaults import BEFORE, OLD_DEFAULTS, check_complete
from common.settings.plugins import nearest, table_of
from common.settings.section import Value, dotted, from_text, nested
from deploy import user_modules
from server_app.storage.relative_paths import to_absolute

EXPERIMENTS = Path(__file__).parent / "experiments"
DEFAULT = EXPERIMENTS / "default.toml"
RUNTIMES = ("loopback", "ray", "grpc")
M = TypeVar("M", bound=BaseModel)


def app_folder() -> Path:
    """Return the folder of the Flower app, with ``pyproject.toml`` and the packages.

    Raises ``ValueError`` if this installation has none.
    """
    folder = Path(__file__).resolve().parents[1]
    if not (folder / "pyproject.toml").exists():
        raise ValueError(f"{folder} has no pyproject.toml; install with `pip install -e .`")
    return folder


def check_runtime(runtime: str, workers: int | None) -> None:
    """Raise ``ValueError`` for an unknown runtime or a number of workers out of range.

    An empty ``runtime`` stands for that of the config, None for the default number of workers.
    """
    if runtime and runtime not in RUNTIMES:
        known = ", ".join(RUNTIMES)
        raise ValueError(f"--runtime {runtime} is unknown; allowed: {known}")
    if workers is not None and not 0 <= workers <= 1024:
        raise ValueError(f"--workers {workers} is not allowed; it should be 0 to 1024")


@final
@dataclass(frozen=True)
class Experiment:
    """Keys of an experiment file, and what takes precedence over them: overrides ``key=value`` of
    the command line, or ``given`` keys of Python."""

    file: Path
    keys: Mapping[str, Value]
    overrides: Sequence[str]
    given: Mapping[str, Value]

    @property
    def chosen(self) -> dict[str, Value]:
        """The file's keys with the overrides, whose values remain texts."""
        words = (text.partition("=") for text in self.overrides)
        texts = {key.strip(): value.strip(" \"'") for key, _, value in words}
        return {**self.keys, **texts, **self.given}

    @property
    def runtime(self) -> str:
        """Value of the key ``runtime`` after ``resolve``, without importing any method."""
        return str(self.chosen.get("runtime") or RUNTIMES[0])

    def resolve(self) -> dict[str, Value]:
        """Return the complete flat run config.

        Raises ``ValueError``, one line, for a wrong key, and for a setting that nothing reads.
        """
        keys, chosen = self.keys, self.chosen
        folder, method = self._plugins(chosen), str(chosen.get("method", ""))
        if "method" in keys and method != keys["method"]:  # the file's plug-in method is replaced
            table = table_of(str(keys["method"]))
            if table not in tables():
                keys = {k: v for k, v in keys.items() if k.rpartition(".")[0] != table}
        usual = defaults(method)
        given = typed(self.overrides, self.given, method)
        flat = usual | numbers(keys, method) | given
        self._check_read(flat, usual, given.keys())
        return flat | {"plugins": folder}

    def _check_read(
        self, flat: Mapping[str, Value], usual: Mapping[str, Value], given: Collection[str]
    ) -> None:
        """Raise ``ValueError`` for a setting that the method does not read, and that is not usual.

        A file may have settings for its own method, from which ``-s method=…`` turns, and one with
        tables of several methods is a protocol that each of them reads in part.
        """
        method, in_file = str(flat["method"]), str(self.keys.get("method", ""))
        others = {table for key in self.keys if (table := key.rpartition(".")[0]) not in SECTIONS}
        protocol = bool({*methods.names()} & others - {in_file})
        for key in (*given, *self.keys):
            table, from_file = key.rpartition(".")[0], key not in given
            of_file = in_file in methods.names() and reads(in_file, key)
            meant = from_file and (table not in SECTIONS or of_file or protocol)
            if meant or general_table(table) or reads(method, key):
                continue
            if flat[key] not in (usual.get(key), OLD_DEFAULTS.get(key)):
                readers = [name for name in methods.names() if reads(name, key)]
                raise ValueError(
                    f"{f'{self.file}: ' * from_file}{key} = {flat[key]!r} is not allowed with "
                    f"method = {method!r}, which does not read it; methods that do: "
                    f"{', '.join(readers[:8])}{', …' * (len(readers) > 8)}"
                )

    def shipped(self) -> dict[str, Value]:
        """Return the settings that decide the code of a run: names, ``[node.K]`` tables, plug-ins.

        It imports no method unless the method is a plug-in or a key is unknown.
        """
        app = read_toml(app_folder() / "pyproject.toml")["tool"]["flwr"]["app"]
        known, chosen = flatten(app["config"]), self.chosen
        nodes = {key for key in chosen if general_table(key.rpartition(".")[0])}
        built_in = chosen.get("method", known["method"]) in methods.names()
        if not built_in or chosen.keys() - nodes - known.keys():
            return self.resolve()
        flat = chosen | numbers({key: self.keys[key] for key in nodes & self.keys.keys()})
        overrides = [text for text in self.overrides if text.partition("=")[0].strip() in nodes]
        flat |= typed(overrides, {key: self.given[key] for key in nodes & self.given.keys()})
        return flat | {"plugins": self._plugins(chosen)}

    def _plugins(self, chosen: Mapping[str, Value]) -> str:
        """Return the folder with the user's modules that ``chosen`` names, or an empty text.

        It is the folder of the key ``plugins``, else the experiment file's. For the ``config.toml``
        of a run it may also be the run's folder of copied modules.

        Raises ``ValueError`` if ``plugins`` names no folder and there are no copied modules.
        """
        named = Path(str(chosen.get("plugins", ""))).expanduser()
        file_folder = Path() if self.file.parent == EXPERIMENTS else self.file.parent
        first = named if chosen.get("plugins") else file_folder
        for folder in (first, file_folder / user_modules.COPIES):
            if folder.is_dir() and user_modules.look_in(folder, chosen):
                return str(folder.resolve())
        if not named.is_dir():
            raise ValueError(f"plugins = {chosen['plugins']!r} is not a folder")
        return ""


def read(
    experiment: Path | None, overrides: Iterable[str] = (), given: Mapping[str, Value] | None = None
) -> Experiment:
    """Read an experiment file (None: only the defaults); for the others see ``Experiment``.

    The ``config.toml`` of a run is also an experiment file, which repeats the run in a new folder.

    Raises ``ValueError``, one line, if the file does not exist or is not TOML.
    """
    file = find(experiment or DEFAULT)
    keys = {} if experiment is None else _without_run(load(file), file)
    return Experiment(file, keys, list(overrides), given or {})


def resolve(experiment: Path | None, overrides: Iterable[str] = ()) -> dict[str, Value]:
    """Return the complete flat run config of an experiment file (None: only the defaults)."""
    return read(experiment, overrides).resolve()


def _without_run(keys: dict[str, Value], path: Path) -> dict[str, Value]:
    """Remove the folders and the name of the run if ``path`` is a run's ``config.toml``.

    Other files are returned unchanged.
    """
    folder = path.resolve().parent
    if keys.get("out") not in (".", str(folder)) or "resume" not in keys:
        return keys
    gone, placed = {"out", "experiment", "runtime"}, to_absolute(keys, folder)
    if placed.get("state-dir") == str(folder / "state"):
        gone.add("state-dir")
    check_complete(keys, OLD_DEFAULTS, path)
    return {**BEFORE, **{key: v for key, v in placed.items() if key not in gone}}


def find(experiment: Path, kind: str = "experiment") -> Path:
    """Return the path of an experiment file, or of the bundled one of this name.

    ``.toml`` may be omitted. ``kind`` names the file in errors: experiment, table or sweep. Raises
    ``ValueError`` if there is no such file.
    """
    bundled = EXPERIMENTS / experiment.name
    for path in (experiment, bundled) if experiment.name else ():
        for candidate in (path, path.with_name(f"{path.name}.toml")):
            if candidate.is_file():
                return candidate
    if experiment.is_dir():
        raise ValueError(f"{experiment} is a folder; name a file in it")
    names = sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))
    similar = difflib.get_close_matches(experiment.stem, names, n=4, cutoff=0.5) or ["default"]
    known = f"bundled are {', '.join(similar)} and all others in {EXPERIMENTS}"
    raise ValueError(f"{kind} file {experiment} does not exist; {known}")


def load(experiment: Path) -> dict[str, Value]:
    """Return the keys of an experiment file, flat."""
    path = find(experiment)
    table = read_toml(path)
    if "row" in table:
        raise ValueError(f"{path} is a table; run it with: fedmosaic table {experiment}")
    if "space" in table:
        raise ValueError(f"{path} is a sweep; run it with: fedmosaic sweep {experiment}")
    return flatten(table)


def load_run(folder: Path, *, private: bool = False) -> dict[str, Value]:
    """Return the run config of the run in ``folder``, and make its plug-ins importable.

    ``private``: where Python imports other modules of their names, such as newer ones beside a
    script, the run config returned has other names for the run's own copies.

    Raises ``ValueError`` if ``config.toml`` lacks a key whose default has changed.
    """
    flat, copies = load(folder / "config.toml"), folder / user_modules.COPIES
    if private and user_modules.hidden(copies, flat):
        flat |= user_modules.private(copies, flat)
    elif user_modules.look_in(copies, flat):
        flat["plugins"] = str(copies)
    flat = to_absolute(flat, folder)
    check_complete(flat, OLD_DEFAULTS, folder / "config.toml")
    return {**defaults(), **BEFORE, **flat}


def chosen(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that differ from the old defaults, which identify a configuration.

    Neither a new key nor a new default changes what identifies a configuration of before. A folder
    with a ``data.digest`` may be anywhere, so its path is left out, and so are name and labels.
    """
    usual = {**defaults(), **OLD_DEFAULTS}
    usual |= {key: flat[key] for key in ("name", "labels") if key in flat}
    if flat.get("data.digest"):
        usual["data.dir"] = flat["data.dir"]
    return {key: value for key, value in sorted(flat.items()) if value != usual.get(key)}


def unread(method: str) -> dict[str, Value]:
    """Return the old defaults in the tables that ``method`` does not read.

    In a configuration with these values, new defaults of other methods are not among the settings
    that ``chosen`` returns.
    """
    return {key: old for key, old in OLD_DEFAULTS.items() if not reads(method, key)}


def numbers(flat: Mapping[str, Value], method: str = "") -> dict[str, Value]:
    """Return ``flat`` with integers converted to floats where the key takes any number.

    Unknown keys are an error; ``parse`` checks the values. ``method``: a plug-in whose table is
    known too.
    """
    try:
        return {
            key: float(value) if kind_of(key, method) is float and type(value) is int else value
            for key, value in flat.items()
        }
    except OverflowError:
        most = sys.float_info.max
        key = next(key for key, value in flat.items() if type(value) is int and abs(value) > most)
        raise ValueError(f"{key} is not allowed; it should be at most {most:.1e}") from None


def typed(
    overrides: Iterable[str], given: Mapping[str, Value], method: str = ""
) -> dict[str, Value]:
    """Return the values of overrides ``key=value`` and of ``given`` keys in the keys' types.

    ``method``: as for ``numbers``. Raises ``ValueError``, one line, for an unknown key or a text
    that is no value of the key.
    """
    return dict(parse_override(text, method) for text in overrides) | numbers(given, method)


def parse_override(text: str, method: str = "") -> tuple[str, Value]:
    """Return the key of ``key=value``, and the value in the key's type.

    ``method``: a plug-in whose table is known too.
    """
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        raise ValueError(f"-s {text!r}: expected key=value")
    kind = kind_of(key, method)
    try:
        return key, from_text(raw, kind)
    except (KeyError, ValueError):
        article = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise ValueError(f"{key} = {raw!r} is not allowed; it should be {article}") from None


def flatten(table: Mapping[str, object]) -> dict[str, Value]:
    """Flatten TOML tables to dotted keys. Raises ``ValueError`` for a date, a time or a list."""
    flat = dotted(table)
    for key, value in flat.items():
        if not isinstance(value, Value):
            raise ValueError(
                f"{key} = {value} is not allowed; it should be text in quotes, a number, true or "
                "false"
            )
    return flat


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises ``ValueError``, one line, if it is not TOML."""
    try:
        text = read_text(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def checked(kind: type[M], content: Mapping[str, object], source: object) -> M:
    """Validate ``content`` as a ``kind``.

    Raises ``ValueError``, one line with the source, the key, its value and the allowed values.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        details = error.errors()
        # a misspelt key is unknown, and often missing too
        first = next((one for one in details if one["type"] == "extra_forbidden"), details[0])
        raise ValueError(f"{source}: {_explain(kind, first)}") from error


def _explain(kind: type[BaseModel], error: ErrorDetails) -> str:
    *outer, last = error["loc"] or ("",)
    where = ".".join(str(name) for name in error["loc"])
    if error["type"] == "extra_forbidden":
        fields = _inner(kind, outer).model_fields
        known = [field.alias or name for name, field in fields.items()]
        return f"key {where!r} is unknown{nearest(str(last), known)}; allowed: {', '.join(known)}"
    return refusal(error, where)


def _inner(kind: type[BaseModel], place: list[str | int]) -> type[BaseModel]:
    """Return the model at ``place``, a path of keys and numbers; a key holds a list of models."""
    for key in place:
        if isinstance(key, str) and key in kind.model_fields:
            (kind,) = _models(kind.model_fields[key].annotation)
    return kind


def _models(annotation: object) -> list[type[BaseModel]]:
    """Return the models that an annotation names at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for kind in get_args(annotation) for model in _models(kind)]


APP_CONFIG = "tool.flwr.app.config"


def app_config(flat: Mapping[str, Value]) -> str:
    """Return all tables with the values of ``flat``, as TOML for Flower."""
    return tomli_w.dumps(nested({f"{APP_CONFIG}.{key}": flat[key] for key in defaults()}))


def with_app_config(pyproject: str, flat: Mapping[str, Value]) -> str:
    """Return the text of a ``pyproject.toml`` with the values of ``flat``."""
    before, _, rest = pyproject.partition(f"[{APP_CONFIG}]")
    after = re.search(rf"^\[(?!{re.escape(APP_CONFIG)})", rest, re.MULTILINE)
    return before + app_config(flat) + "\n" + (rest[after.start() :] if after else "")
