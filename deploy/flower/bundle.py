"""What of a user's own modules Flower's bundle holds, found out by making one."""

import io
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from common.errors import first_line
from common.names import shadowed
from common.section import Value
from deploy.flower import pinned
from deploy.flower.arguments import TAKEN, stage_app
from deploy.run import beside
from deploy.run.settings import app_folder


def told(run_config: Mapping[str, Value], *, bundled: bool) -> list[str]:
    """Lines to say before a run about its plug-ins; ``bundled``: they travel in Flower's bundle.

    Raises ``ValueError``, one line: the bundle cannot be made, or a module would not be in it.
    """
    lines = shadowed(run_config)
    if bundled and beside.carried(run_config) and (left := _left_out(run_config)):
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
    for name, original in beside.carried(run_config).items():
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
