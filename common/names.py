"""The names in a run config: the plug-ins among them, and the version of the code of a run."""

from collections.abc import Collection, Mapping
from functools import lru_cache

from common import keys, methods
from common.data import DATASETS
from common.data.partition import PARTITIONS
from common.models import MODELS
from common.settings import plugins
from common.settings.config import FLEETS, Config
from common.settings.version import code_version

OURS: Mapping[str, Collection[str]] = {
    "datasets": DATASETS,
    "partitions": PARTITIONS,
    "models": {*MODELS, *FLEETS, "smallest"},
    "methods": methods.names(),
}
"""Built-in names by kind. Trackers are missing because only the server needs them."""


def outside(flat: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return (kind, name) of each plug-in that server and clients need, once."""
    return [(kind, name) for kind, name in _named(flat) if name not in OURS[kind]]


def shadowed(flat: Mapping[str, object]) -> list[str]:
    """Return a line for each built-in name that an installed package offers too."""
    lines = []
    for kind, name in _named(flat):
        if name in OURS[kind] and (points := plugins.installed(kind).get(name)):
            lines.append(
                f"{plugins.WORDS[kind]} {name!r} is fedmosaic's own; for the plug-in of this name "
                f"write {points[0].value}"
            )
    return lines


def version_of(config: Config) -> str:
    """Return the release and fingerprints of the shared code and of every plug-in's sources.

    It must be equal on the server and all clients of a run.

    Raises ``ValueError``, one line, for a plug-in that is not installed here.
    """
    return _version(tuple(outside(config.flat)))


@lru_cache(maxsize=2)
def _version(plugged: tuple[tuple[str, str], ...]) -> str:
    roots: dict[str, str] = {}
    for kind, name in plugged:
        if root := plugins.root_of(kind, name):
            try:
                roots[root] = f"{root}.{plugins.digest(root)}"
            except ModuleNotFoundError as error:
                raise ValueError(f"{plugins.WORDS[kind]} {name!r}: {error}") from None
    return "+".join([code_version(), *(roots[root] for root in sorted(roots))])


def check_brought(model: str, config: Config) -> None:
    """Raise ``ValueError``, one line, for an architecture that a client may not use.

    A name in a message must not make the server import a module. The run config or the
    administrator of the server's machine must name it.
    """
    name = plugins.network(model)
    if plugins.is_reference(name) and ("models", name) not in outside(config.flat):
        raise ValueError(
            f"its model {model!r} is a module that the run does not name; name it in fleet"
        )


def check_requested(model: str, config: Config) -> None:
    """Raise ``ValueError``, one line, for an architecture in a message that a client may not build.

    A name in a message must not make a client import a module: the run config must name it.
    """
    name = plugins.network(model)
    if name in OURS["models"] or ("models", name) in outside(config.flat):
        return
    if plugins.root_of("models", name):
        raise ValueError(
            f"the model {model!r} of the message is a plug-in that the run's settings do not name"
        )


def _named(flat: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return each (kind, name) in a run config once, without trackers."""
    return list(dict.fromkeys((kind, n) for kind, n in keys.named(flat) if kind in OURS))
