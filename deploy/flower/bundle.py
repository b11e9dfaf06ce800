"""A run as Flower's command line takes it: the app's folder, its bundle, configs and their quoting.

Flower reads overrides either from a TOML file (run configs) or from ``key=value`` text that it
cuts up with a regular expression (node configs, federation configs), in which a string can hold
either kind of quote but not both. Here a value is written so that Flower reads the same value back,
or it is refused. What a bundle holds of a user's own modules is found out by making one.
"""

import io
import json
import re
import shutil
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from common.errors import first_line
from common.settings.section import Value
from deploy.flower import pinned
from deploy.run import user_modules
from deploy.run.settings import app_folder, flatten, with_app_config

TAKEN = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
"""The ends of files that Flower's bundle takes."""


def run_config_toml(run_config: Mapping[str, Value]) -> str:
    """``run_config`` as the TOML file that ``flwr run --run-config FILE.toml`` reads.

    Raises ``ValueError``: a key that is no (dotted) bare key, or a value that Flower cannot carry.
    """
    return "".join(f"{_key(key)} = {_toml(key, value)}\n" for key, value in run_config.items())


def config_arguments(config: Mapping[str, Value]) -> str:
    """``config`` as the one argument of ``--node-config`` or ``--federation-config``.

    Raises ``ValueError``: as above, and a string with both kinds of quote or with a control
    character.
    """
    return " ".join(f"{_key(key)}={_argument(key, value)}" for key, value in config.items())


def check_app(app: Path, run_config: Mapping[str, Value]) -> Path:
    """The absolute folder of a Flower app that takes every key of ``run_config``.

    Flower itself finds an unknown key only when the run has begun, in the ServerApp's process. A
    whole table that the app does not have is taken: ``stage_app`` adds it.

    Raises ``ValueError``: there is no Flower app, or a table of its config lacks a key.
    """
    folder = app.expanduser().resolve()
    try:
        with (folder / "pyproject.toml").open("rb") as file:
            section = tomllib.load(file)["tool"]["flwr"]["app"]
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} is not a Flower app: it has no pyproject.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{folder / 'pyproject.toml'} is not valid TOML: {error}") from None
    except KeyError:
        raise ValueError(f"{folder / 'pyproject.toml'} has no [tool.flwr.app] section") from None
    allowed = list(flatten(section.get("config", {})))
    tables = {_table(key) for key in allowed} | {""}
    unknown = [key for key in run_config if key not in allowed and _table(key) in tables]
    if unknown:
        raise ValueError(
            f"unknown run config key {unknown[0]!r}: [tool.flwr.app.config] of {folder} has "
            f"{', '.join(allowed) or 'no keys'}"
        )
    return folder


def stage_app(app: Path, to: Path, run_config: Mapping[str, Value]) -> Path:
    """A folder with nothing but the files that ``app`` bundles, made at ``to``; or ``app`` itself.

    Flower walks the whole folder of an app, virtual environments and results of former runs
    included, and refuses the app when any file lies too deep. So what ``fab-include`` names is
    copied, if it names folders and files at the top. Flower also refuses an override whose key is
    not in the app's own config, so tables of ``run_config`` that are not there (single nodes'
    settings, a plug-in's options) are added to the copy; so are the user's own modules.
    """
    with (app / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["flwr"]["app"].get("fab-include", [])
    names = {pattern.lstrip("/").split("/")[0] for pattern in patterns}
    if not names or not all((app / name).exists() for name in names):
        return app
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in sorted(names | {"pyproject.toml", "LICENSE", ".gitignore"}):
        if (app / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(app / name, to / name, ignore=skip)
        elif (app / name).exists():
            shutil.copy2(app / name, to / name)
    user_modules.copy(run_config, to, TAKEN)
    pyproject = to / "pyproject.toml"
    more = "".join(f", {json.dumps(pattern)}" for pattern in _of_modules(to, run_config))
    text = re.sub(
        r"^(fab-include\s*=\s*\[[^\]]*?),?\s*\]",
        lambda found: f"{found[1]}{more}]" if more else found[0],
        pyproject.read_text(encoding="utf-8"),
        count=1,
        flags=re.MULTILINE,
    )
    pyproject.write_text(text + _added_tables(text, run_config), encoding="utf-8")
    return to


def write_app(to: Path, run_config: Mapping[str, Value]) -> Path:
    """Our Flower app at ``to`` as ``stage_app`` makes it, with ``run_config`` as its defaults.

    Raises ``ValueError``: there is something at ``to``, or Flower does not take its name.
    """
    place = to.expanduser().resolve()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", place.name):
        raise ValueError(
            f"app {to}: Flower wants a folder whose name is letters, digits and '-', at most 32, "
            "beginning with a letter"
        )
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ValueError(f"app {to}: there is something already; name another folder")
    staged = stage_app(app_folder(), place, run_config)
    assert staged == place, "our own app names folders only"
    pyproject = place / "pyproject.toml"
    text = with_app_config(pyproject.read_text(encoding="utf-8"), {**run_config, "plugins": ""})
    pyproject.write_text(text, encoding="utf-8")
    return place


def told(run_config: Mapping[str, Value], *, bundled: bool) -> list[str]:
    """Lines to say before a run about its plug-ins; ``bundled``: they travel in Flower's bundle.

    Raises ``ValueError``, one line: the bundle cannot be made, or a module would not be in it.
    """
    from common.settings.names import shadowed  # it imports torch

    lines = shadowed(run_config)
    if bundled and user_modules.carried(run_config) and (left := _left_out(run_config)):
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        lines.append(
            f"not in the bundle, so not at the clients: {', '.join(left[:5])}{more}; Flower takes "
            f"{' '.join(sorted(TAKEN))}, and no tests"
        )
    return lines


def digest(run_config: Mapping[str, Value]) -> str:
    """The digest of the bundle that this installation sends for a run, as a node pins it.

    It depends on the code, on modules of the user's own and on tables that the app lacks (single
    nodes' settings, a plug-in's options), not on the values of other settings.
    """
    return pinned.digest(_for_run(run_config))


def built(app: Path) -> bytes:
    """What Flower makes of an app's folder. Raises ``ValueError`` with Flower's own message."""
    from flwr.cli.build import build_fab_from_disk  # a command line of its own

    return build_fab_from_disk(app)


def _of_modules(to: Path, run_config: Mapping[str, Value]) -> list[str]:
    """Patterns for what Flower can take of the modules in ``to``; others would be an error."""
    patterns = []
    for name in sorted(place.name for place in user_modules.carried(run_config).values()):
        files = [to / name] if name.endswith(".py") else [*(to / name).rglob("*.*")]
        ends = sorted({file.suffix for file in files} & TAKEN)
        patterns += [f"/{name}"] if name.endswith(".py") else [f"/{name}/**/*{end}" for end in ends]
    return patterns


def _added_tables(pyproject: str, run_config: Mapping[str, Value]) -> str:
    """The tables of ``run_config`` that an app's config lacks, as TOML."""
    config = tomllib.loads(pyproject)["tool"]["flwr"]["app"]
    there = {_table(key) for key in flatten(config.get("config", {}))} | {""}
    added: dict[str, str] = {}
    for key, value in run_config.items():
        if (table := _table(key)) not in there:
            line = f"{_key(key).rpartition('.')[2]} = {_toml(key, value)}\n"
            added[table] = added.get(table, "") + line
    return "".join(f"\n[tool.flwr.app.config.{table}]\n{lines}" for table, lines in added.items())


def _table(key: str) -> str:
    return key.rpartition(".")[0]


def _key(key: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
        raise ValueError(f"config key {key!r}: allowed are letters, digits, '-', '_' and '.'")
    return key


def _toml(key: str, value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"config value {key}={value}: an integer has at most 64 bits")
            return str(value)
        case float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise ValueError(f"config value {key}={value!r}: allowed are bool, int, float and str")


def _argument(key: str, value: Value) -> str:
    if not isinstance(value, str):
        return _toml(key, value)
    if any(not character.isprintable() for character in value) or ("'" in value and '"' in value):
        raise ValueError(
            f"config value {key}={value!r}: printable characters and one kind of quote are allowed"
        )
    if "'" in value and "\\" in value:
        raise ValueError(f"config value {key}={value!r}: not both a single quote and a backslash")
    return f'"{value}"' if "'" in value else f"'{value}'"


def _for_run(run_config: Mapping[str, Value]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as place:
        return built(stage_app(app_folder(), Path(place) / "app", run_config))


def _left_out(run_config: Mapping[str, Value]) -> list[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(_for_run(run_config))) as file:
            inside = set(file.namelist())
    except ValueError as error:
        why = first_line(error)
        raise ValueError(f"the modules cannot travel to the clients: {why}") from None
    left = []
    for name, original in user_modules.carried(run_config).items():
        files = [p for p in (original, *original.rglob("*")) if p.is_file()]
        named = [file.relative_to(original.parent).as_posix() for file in sorted(files)]
        named = [file for file in named if "__pycache__" not in file and "/." not in file]
        if not any(file in inside for file in named if file.endswith(".py")):
            raise ValueError(
                f"module {name!r} cannot travel to the clients: Flower's bundle takes nothing of "
                f"{original.name}; rename it"
            )
        left += [file for file in named if file not in inside]
    return left
