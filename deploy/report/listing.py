"""What there is: methods, models, data sets, partitions, trackers; every setting."""

from collections.abc import Callable
from typing import Literal, NamedTuple, final, get_args, get_origin

from pydantic.fields import FieldInfo

from common import methods as methods_
from common.settings import plugins
from common.settings.names import OURS
from common.settings.section import Value, value_kind
from deploy.report.table import Table


def methods() -> Table:
    """Name, what it is, its paper: the first two paragraphs of its contract."""
    rows = []
    for name in methods_.names():
        module = methods_.contract(name)
        parts = [" ".join(part.split()) for part in (module.__doc__ or "").split("\n\n")]
        title, source = (part.strip().rstrip(".") for part in (*parts, "")[:2])
        title = title.partition(":")[2].strip() or title
        rows.append((name, title, source, module.__name__.replace(".", "/") + ".py"))
    rows += [(name, about, "", place) for name, about, place in _plugged("methods")]
    return Table(("method", "what it is", "source", "contract"), rows, "l")


def models() -> Table:
    from common.models import MODELS

    rows = [
        (name, f"{row.params:,}", "×".join(map(str, row.input)), str(row.smallest), row.source)
        for name, row in MODELS.items()
    ]
    for family, about in (("torchvision", "its classifiers"), ("timm", "PyTorch Image Models")):
        rows.append((f"{family}:NAME", "", "any", "", f"{about} with a linear head"))
    rows += [(name, "", "any", "", f"{about}: {at}") for name, about, at in _plugged("models")]
    return Table(("model", "parameters", "input", "smallest side", "source"), rows, "l")


def datasets() -> Table:
    from common.data import DATASETS

    rows = []
    for name, row in DATASETS.items():
        shape = "×".join(map(str, row.shape or ())) or "any"
        rows.append((name, shape, str(row.classes or "any"), row.description))
    rows += [(name, "any", "any", f"{about}: {at}") for name, about, at in _plugged("datasets")]
    return Table(("data set", "shape", "classes", "what it is"), rows, "l")


def partitions() -> Table:
    from common.data.partition import PARTITIONS

    rows = []
    for name, row in PARTITIONS.items():
        keys = [f"data.{key.replace('_', '-')}" for key in row.options if key != "num_classes"]
        rows.append((name, row.description, row.source, ", ".join(keys)))
    rows += [(name, about, place, "") for name, about, place in _plugged("partitions")]
    return Table(("partition", "what it does", "source", "keys"), rows, "l")


def trackers() -> Table:
    from server_app.tracking.tracker import TRACKERS

    rows = [(name, f"{at}, with the package {needs}") for name, (at, needs) in TRACKERS.items()]
    rows += [(name, f"{about}: {at}") for name, about, at in _plugged("trackers")]
    return Table(("tracker", "what it is"), rows, "l")


def _plugged(kind: str) -> list[tuple[str, str, str]]:
    """Name, package and place of the installed plug-ins of a kind; nothing is imported."""
    found = []
    for name, points in plugins.installed(kind).items():
        for point in points:
            package = point.dist.name if point.dist else "?"
            ours = f"; {name} is ours, so write the place" if name in OURS.get(kind, ()) else ""
            found.append((name, f"plug-in of {package}{ours}", point.value))
    return found


@final
class Setting(NamedTuple):
    """A knob of the run config."""

    key: str  #: such as ``data.alpha``
    default: Value | None  #: None: the run's
    allowed: str  #: its words, or its bounds
    meaning: str  #: one line


def described(method: str = "") -> list[Setting]:
    """Every knob; with a method those that it reads, their defaults resolved for it.

    Raises ``ValueError`` for a method that does not exist, and for an installed one that is none.
    """
    from common.settings.config import Node
    from common.settings.parse import tables, usual
    from common.settings.section import Section, kebab, meaning

    known: dict[str, type[Section]] = {**tables(method), "node.K": Node}
    for name in () if method else plugins.installed("methods"):
        known = known | tables(name)
    own = methods_.options(method) if method else None
    if own:
        table = plugins.table_of(method)
        shared = (table, *own.uses, "", "data", "train", "score", "wire", "node.K")
        known = {table: known[table] for table in shared}
    found = []
    for table, kind in known.items():
        for name, field in kind.model_fields.items():
            key = f"{table}.{kebab(name)}".lstrip(".")
            default = usual(key, field, own.auto) if own else field.default
            default = method if own and key == "method" else default
            line = meaning(kind, name).replace("``", "")
            found.append(Setting(key, default, _allowed(field), line))
    return found


def settings(method: str = "") -> Table:
    """The same as a table."""
    rows = []
    for key, value, allowed, meaning in described(method):
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
        rows.append((key, "the run's" if value is None else shown, allowed, meaning))
    return Table(("key", "default", "allowed", "meaning"), rows, "l")


def _allowed(field: FieldInfo) -> str:
    """What a knob may be: its words, or its bounds."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(word) or '""' for word in get_args(field.annotation))
    if (kind := value_kind(field)) is not int and kind is not float:
        return "true, false" if kind is bool else "text"
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    told = ((mark, name, sign) for mark in field.metadata for name, sign in signs)
    bounds = [f"{sign} {getattr(m, name):,}" for m, name, sign in told if hasattr(m, name)]
    return ", ".join(bounds) or "any number"


KINDS = (methods, models, datasets, partitions, trackers, settings)
LISTINGS: dict[str, Callable[[], Table]] = {kind.__name__: kind for kind in KINDS}
