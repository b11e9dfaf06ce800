"""Inputs of Flower's command line for a run: app folder, bundle, and quoted configs.

Flower reads overrides from a TOML file (run configs), or from ``key=value`` text that it splits
with a regular expression (node and federation configs). In that text, a string can contain one of
the two kinds of quotes but not both. This module writes values so that Flower reads the same value,
or raises an error. A bundle is built to determine which files of user modules it contains.
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

import tomli_w

from common.errors import first_line
from common.settings.section import Value, nested
from deploy.flower.owner import pinned
from deploy.settings import APP_CONFIG, app_folder, flatten, read_toml, with_app_config
from deploy.user_modules import UserModules

SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
"""File suffixes that Flower includes in a bundle."""


def run_config_toml(run_config: Mapping[str, Value]) -> str:
    """Return ``run_config`` as TOML for ``flwr run --run-config FILE.toml``.

    Raises ``ValueError`` for a key that is not a (dotted) bare key, or an unsupported value.
    """
    return tomli_w.dumps(nested({_key(key): _plain(key, v) for key, v in run_config.items()}))


def config_arguments(config: Mapping[str, Value]) -> str:
    """Return ``config`` as the argument of ``--node-config`` or ``--federation-config``.

    Raises ``ValueError`` as ``run_config_toml`` does, and for a string with both kinds of quotes or
    a control character.
    """
    return " ".join(f"{_key(key)}={_argument(key, value)}" for key, value in config.items())


def check_app(app: Path, run_config: Mapping[str, Value]) -> Path:
    """Return the absolute folder of a Flower app after checking every key of ``run_config``.

    Flower detects an unknown key only after the start of the run, in the ServerApp's process. A
    table that the app does not have is allowed, because ``stage_app`` adds it.

    Raises ``ValueError`` if there is no Flower app, or if a table of its config lacks a key.
    """
    folder = app.expanduser().resolve()
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise ValueError(f"{folder} is not a Flower app: it has no pyproject.toml")
    match read_toml(file):
        case {"tool": {"flwr": {"app": {"config": dict(config)}}}}:
            allowed = list(flatten(config))
        case {"tool": {"flwr": {"app": {}}}}:
            allowed = []
        case _:
            raise ValueError(f"{file} has no [tool.flwr.app] section")
    tables = {_table(key) for key in allowed} | {""}
    unknown = [key for key in run_config if key not in allowed and _table(key) in tables]
    if unknown:
        raise ValueError(
            f"unknown run config key {unknown[0]!r}: [tool.flwr.app.config] of {folder} has "
            f"{', '.join(allowed) or 'no keys'}"
        )
    return folder


def stage_app(app: Path, to: Path, run_config: Mapping[str, Value]) -> Path:
    """Copy only the bundled files of ``app`` to ``to``; return the copy, or ``app`` without one.

    Flower walks the complete folder of an app, including virtual environments and results of
    earlier runs, and rejects the app if a file is nested too deeply. Therefore the files in
    ``fab-include`` are copied, if it names folders and files at the top level. Flower also rejects
    an override whose key is not in the app's config. Therefore tables of ``run_config`` that are
    missing there (settings of single nodes, options of a plug-in) are added to the copy, and the
    user's modules too.
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
    modules = UserModules.of(run_config)
    modules.copy(to, SUFFIXES)
    pyproject = to / "pyproject.toml"
    added = "".join(f", {json.dumps(pattern)}" for pattern in _module_patterns(to, modules))
    text = re.sub(
        r"^(fab-include\s*=\s*\[[^\]]*?),?\s*\]",
        lambda match: f"{match[1]}{added}]" if added else match[0],
        pyproject.read_text(encoding="utf-8"),
        count=1,
        flags=re.MULTILINE,
    )
    pyproject.write_text(text + _added_tables(text, run_config), encoding="utf-8")
    return to


def write_app(to: Path, run_config: Mapping[str, Value]) -> Path:
    """Write our Flower app to ``to`` with ``stage_app``, with ``run_config`` as its defaults.

    Raises ``ValueError`` if ``to`` exists and is not empty, or if Flower rejects its name.
    """
    folder = to.expanduser().resolve()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", folder.name):
        raise ValueError(
            f"app {to}: Flower needs a folder whose name is letters, digits and '-', at most 32, "
            "beginning with a letter"
        )
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ValueError(f"app {to}: it exists already and is not empty; name another folder")
    staged = stage_app(app_folder(), folder, run_config)
    assert staged == folder, "our own app names folders only"
    pyproject = folder / "pyproject.toml"
    text = with_app_config(pyproject.read_text(encoding="utf-8"), {**run_config, "plugins": ""})
    pyproject.write_text(text, encoding="utf-8")
    return folder


def plugin_notes(
    run_config: Mapping[str, Value], modules: UserModules, *, bundled: bool
) -> list[str]:
    """Return notes on a run's plug-ins to print before it.

    ``modules``: those that are shipped; ``bundled``: whether Flower's bundle has them.

    Raises ``ValueError``, one line, if the bundle cannot be built or would lack a module.
    """
    from common.names import shadowed  # it imports torch

    lines = shadowed(run_config)
    if bundled and modules and (left_out := _left_out(run_config, modules)):
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        lines.append(
            f"not in the bundle, so not at the clients: {', '.join(left_out[:5])}{more}; "
            f"Flower takes {' '.join(sorted(SUFFIXES))}, and no tests"
        )
    return lines


def digest(run_config: Mapping[str, Value]) -> str:
    """Return the digest of the bundle that this installation sends for a run, which a node can pin.

    It depends on the code, on the user's modules and on tables that the app lacks (settings of
    single nodes, options of a plug-in), but not on the values of other settings.
    """
    return pinned.digest(_for_run(run_config))


def built(app: Path) -> bytes:
    """Build the bundle of an app's folder; raise ``ValueError`` with Flower's own message."""
    from flwr.cli.build import build_fab_from_disk  # slow: it imports Flower's command line

    return build_fab_from_disk(app)


def _module_patterns(to: Path, modules: UserModules) -> list[str]:
    """Return patterns of the module files in ``to`` that Flower includes; others are an error."""
    patterns = []
    for name in sorted(path.name for path in modules.places.values()):
        if name.endswith(".py"):
            patterns.append(f"/{name}")
        else:
            suffixes = sorted({file.suffix for file in (to / name).rglob("*.*")} & SUFFIXES)
            patterns += [f"/{name}/**/*{suffix}" for suffix in suffixes]
    return patterns


def _added_tables(pyproject: str, run_config: Mapping[str, Value]) -> str:
    """Return the tables of ``run_config`` that an app's config lacks, as TOML."""
    config = tomllib.loads(pyproject)["tool"]["flwr"]["app"]
    existing = {_table(key) for key in flatten(config.get("config", {}))} | {""}
    added = {key: value for key, value in run_config.items() if _table(key) not in existing}
    return "\n" + run_config_toml({f"{APP_CONFIG}.{key}": value for key, value in added.items()})


def _table(key: str) -> str:
    return key.rpartition(".")[0]


def _key(key: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
        raise ValueError(f"config key {key!r}: allowed are letters, digits, '-', '_' and '.'")
    return key


def _plain(key: str, value: Value) -> Value:
    if not isinstance(value, Value):
        raise ValueError(f"config value {key}={value!r}: allowed are bool, int, float and str")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"config value {key}={value}: an integer has at most 64 bits")
    return value


def _argument(key: str, value: Value) -> str:
    if not isinstance(value, str):
        return json.dumps(_plain(key, value))
    if any(not character.isprintable() for character in value) or ("'" in value and '"' in value):
        raise ValueError(
            f"config value {key}={value!r}: printable characters and one kind of quote are allowed"
        )
    if "'" in value and "\\" in value:
        raise ValueError(f"config value {key}={value!r}: not both a single quote and a backslash")
    return f'"{value}"' if "'" in value else f"'{value}'"


def _for_run(run_config: Mapping[str, Value]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as folder:
        return built(stage_app(app_folder(), Path(folder) / "app", run_config))


def _left_out(run_config: Mapping[str, Value], modules: UserModules) -> list[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(_for_run(run_config))) as file:
            bundled = set(file.namelist())
    except ValueError as error:
        raise ValueError(f"the modules cannot be sent to clients: {first_line(error)}") from None
    left_out = []
    for name, original in modules.places.items():
        files = [p for p in (original, *original.rglob("*")) if p.is_file()]
        names = [file.relative_to(original.parent).as_posix() for file in sorted(files)]
        names = [file for file in names if "__pycache__" not in file and "/." not in file]
        if not any(file in bundled for file in names if file.endswith(".py")):
            raise ValueError(
                f"module {name!r} cannot be sent to clients: Flower's bundle takes nothing of "
                f"{original.name}; rename it"
            )
        left_out += [file for file in names if file not in bundled]
    return left_out
