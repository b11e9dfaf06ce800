"""Class tables: one row of numbers for each class, such as prototypes or mean logits.

Client k sends the table T_k [C, m] of the means of its outputs by class, and counts c_k [C]. A row
without samples has count 0 and is zero. The outputs are logits (m = C) or features (m = K, the
same for all clients). The server combines the tables to one table, whose row of a class exists
("is present") if a client has the class.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from common.exchange import protocol
from common.settings.config import Config, OwnModels, not_allowed
from common.settings.section import NonNegative
from common.techniques.features import check_heads, feature_width
from common.training.task import Task

Outputs = Literal["features", "logits"]


class ClassTable(NamedTuple):
    """Rows [C, m] float32 by class, and which of them exist, bool [C]; the others are zero."""

    rows: Tensor
    present: Tensor


class RowOptions(OwnModels):
    """Options of methods whose clients send rows of numbers by class and keep their models."""

    classes_only = "its messages have a row of numbers for each class"

    outputs: ClassVar[Outputs] = "features"
    """Outputs to which the rows belong."""

    @property
    def by_counts(self) -> bool:
        """Whether clients send sample counts; false: 1 for each class that they have."""
        return False

    def width(self, task: Task, specs: Iterable[str]) -> int:
        """Return m, the numbers in a row, for networks of these architectures.

        Raises ``ValueError``, one line, if they have different numbers of features.
        """
        if self.outputs == "logits":
            return task.num_classes
        return feature_width(task, specs)

    def check_fleet(self, task: Task, specs: tuple[str, ...]) -> None:
        super().check_fleet(task, specs)
        check_heads(task, specs)
        self.width(task, specs)


class TableOptions(RowOptions):
    """Options of methods whose clients send the means of their outputs by class."""

    leaks = "means of single clients' outputs by class"

    collect: Literal["running", "final"] = "running"
    """Outputs of the rows: those of every training step, in train mode, or those of the trained
    model for all training samples, in evaluation mode."""


class LearnerOptions(TableOptions):
    """Options of methods that pull a client's outputs to the rows of the server's table."""

    lambda_term: NonNegative = 1.0
    """λ, weight of the distance between a client's outputs and the server's rows."""


class PrototypeOptions(LearnerOptions):
    """Options of methods whose table has prototypes, which also classify."""

    facts = LearnerOptions.facts.but(
        asynchronous="tables",
        down="means of features by class (prototypes)",
        up="means of features by class (prototypes)",
        sends="mean features of its classes",
        leaves="class prototypes: mean features of each class that it has. With `fedproto.weights"
        ' = "counts"` also how many samples of each, whatever `share-counts` says',
        infers="which classes it has. Means over few samples are close to the features of single "
        "images, as in `fedgkt`; the server does not have the layers that compute them",
        own="θ_k, and the nearest prototype",
        paper="the nearest prototype",
    )

    predict: Literal["head", "prototype"] = "head"
    """Predictor behind a client's ``accuracy``: its head, or the nearest of the server's
    prototypes. Both are scored: the prototypes as ``accuracy_global``, and with ``prototype`` the
    head as ``head`` under ``accuracies``."""

    def check(self, config: Config) -> None:
        super().check(config)
        if self.predict == "prototype" and config.score.bn == "recalibrated":
            why = 'predict = "prototype": clients score networks of their own'
            raise not_allowed("score.bn", "recalibrated", why, "running", "batch")


@final
class TableRequest(protocol.Request, kind="class_table.Down"):
    """Request with the server's table; None before the first one."""

    rows: Float32[Tensor, "C m"] | None
    present: Bool[Tensor, " C"] | None


@final
class TableReply(protocol.Reply, kind="class_table.Up"):
    """Reply with a client's table."""

    table: Float32[Tensor, "C m"]  #: means by class; zero without samples
    counts: Int64[Tensor, " C"]  #: samples of each class, or 1 for a class with samples


class ClassSums:
    """Sums of outputs by class: ``add`` collects batches, ``table`` returns their means."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._sums: Tensor | None = None  #: [C, m] float64
        self._counts: Tensor | None = None  #: [C] float64

    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Add outputs [n, m] of samples with labels y [n]."""
        # a product, because a sum by index has no fixed order on a GPU
        members = F.one_hot(y, self.classes).double()  # [n, C]
        sums, counts = members.T @ outputs.detach().double(), members.sum(0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._counts = counts if self._counts is None else self._counts + counts

    def table(self) -> ClassTable:
        """Return the means, on the CPU."""
        assert self._sums is not None and self._counts is not None, "add comes first"
        rows = self._sums / self._counts.clamp_min(1)[:, None]
        return ClassTable(rows.float().cpu(), (self._counts > 0).cpu())


def check_table(
    reply: TableReply, classes: int, width: int, known: Sequence[int], most: int
) -> None:
    """Raise a one-line ``ValueError`` for a client's table that is not valid.

    ``width``: numbers in a row. ``known``: the client's classes in the census. ``most``: largest
    sum of the counts, the client's training samples; 0: the counts are 0 or 1. The messenger has
    already refused numbers that are not finite.
    """
    if (shape := tuple(reply.table.shape)) != (classes, width):
        raise ValueError(f"its table has the shape {shape}, expected {(classes, width)}")
    counts, rows = reply.counts.tolist(), reply.table.ne(0).any(1).tolist()
    for c, (count, row) in enumerate(zip(counts, rows, strict=True)):
        if not 0 <= count <= (most or 1):
            raise ValueError(f"its table counts {count} samples of class {c}, at most {most or 1}")
        if row and not count:
            raise ValueError(f"its table has a row of class {c}, of which it counts no sample")
        if count and c not in known:
            raise ValueError(f"its table claims class {c}, of which it has no sample in the census")
    if not any(counts):
        raise ValueError("its table has no class")
    if most and sum(counts) > most:
        raise ValueError(f"its table counts {sum(counts)} samples, in the census it has {most}")


def class_mean(tables: Sequence[Tensor], counts: Sequence[Tensor]) -> ClassTable:
    """Return Σ_k c_kc T_kc / Σ_k c_kc for each class c of tables [C, m] and counts [C].

    Sums are float64 in the order of the clients.
    """
    return _divided(*_sums(tables, counts))


def leave_one_out(tables: Sequence[Tensor], counts: Sequence[Tensor]) -> list[ClassTable]:
    """Return for each client the ``class_mean`` of the others; absent if no other has the class."""
    total, weights = _sums(tables, counts)
    own = [_sums([table], [count]) for table, count in zip(tables, counts, strict=True)]
    return [_divided(total - sums, weights - weight) for sums, weight in own]


def _sums(tables: Sequence[Tensor], counts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return Σ_k c_kc T_kc [C, m] and Σ_k c_kc [C], float64, of at least one table."""
    total, weights = tables[0].double() * 0, counts[0].double() * 0
    for table, count in zip(tables, counts, strict=True):
        total = total + count.double()[:, None] * table.double()
        weights = weights + count.double()
    return total, weights


def _divided(total: Tensor, weights: Tensor) -> ClassTable:
    present = weights > 0
    rows = torch.where(present[:, None], total / weights.clamp_min(1)[:, None], 0.0)
    return ClassTable(rows.float(), present)
