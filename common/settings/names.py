"""Every name of a run config: which of them are plug-ins, and which code a run is made of."""

from collections.abc import Collection, Mapping
from functools import lru_cache

from common import methods
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
"""By kind. Trackers are not among them: they are the server's own matter."""


def outside(flat: Mapping[str, object]) -> list[tuple[str, str]]:
    """(kind, name) of what server and clients need and is not ours, each once."""
    return [each for each in _named(flat) if each[1] not in OURS[each[0]]]


def shadowed(flat: Mapping[str, object]) -> list[str]:
    """A line for each name of ours that an installed package offers too."""
    lines = []
    for kind, name in _named(flat):
        if name in OURS[kind] and (points := plugins.installed(kind).get(name)):
            lines.append(
                f"{plugins.WORDS[kind]} {name!r} is fedmosaic's own; for the plug-in of this name "
                f"write {points[0].value}"
            )
    return lines


def version_of(config: Config) -> str:
    """The release, a fingerprint of the code that both halves share, and one of every plug-in's
    sources: server and clients of a run must agree.

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
    """Raise ``ValueError``, one line, for an architecture that a client may not bring.

    A name in a message makes the server import nothing but what the run config or its own
    machine's administrator has named.
    """
    name = model.partition("@")[0]
    if plugins.is_reference(name) and ("models", name) not in outside(config.flat):
        raise ValueError(
            f"its model {model!r} is a module that the run does not name; name it in fleet"
        )


def _named(flat: Mapping[str, object]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((kind, n) for kind, n in plugins.named(flat) if kind in OURS))
