"""How much noise tells of a teacher, and whether that predicts what a student learns on it.

A batch of noise z reaches a network that was trained on images. What its predictions σ(f(z)) tell
of z is their mutual information, in nats between 0 and log C:

    I(z; ŷ) = H(mean_z σ(f(z))) − mean_z H(σ(f(z)))

It is 0 if the network says the same about every z, and log C if it calls every z one class for
sure, and all classes equally often. Raikwar and Mishra 2022 ("Discovering and overcoming
limitations of noise-engineered data-free knowledge distillation") see that networks answer noise
usefully only if BatchNorm normalises by the noise batch; FedORION builds on it (section 3.3).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Literal, final

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor

from common import device, noise, seeds, tree
from common.data import load
from common.files import write_atomically
from common.losses.distillation import kl
from common.models.batchnorm import batch_statistics, norms
from common.models.classifier import Classifier
from common.noise import NOISES
from common.parse import parse
from common.section import Value
from common.task import Task, epochs, evaluate, global_spec
from deploy.report.interval import mean_with_interval
from deploy.report.style import frame, save, series, style
from deploy.report.table import Table, markdown
from deploy.run.settings import chosen
from server_app.distil.noise import distil, weighted
from server_app.methods.fedorion import FedORION

BatchNorm = Literal["batch", "running"]
BOTH: tuple[BatchNorm, ...] = ("batch", "running")
FILE = "information.json"
BATCHES = 8  #: of noise.batch-size images, over which the information is a mean


@final
@dataclass(frozen=True)
class Found:
    """One teacher, one kind of noise, one way of normalising it, one seed."""

    seed: int
    model: str
    kind: str
    bn: BatchNorm
    teacher: float
    """Test accuracy of the teacher on its running statistics, in [0, 1]."""
    information: float
    """I(z; ŷ) in nats."""
    student: float
    """Test accuracy of the student on the statistics of the test batch, in [0, 1]."""


def study(
    flat: Mapping[str, Value],
    repeats: Sequence[int],
    known: Sequence[Found] = (),
    on_found: Callable[[Found], object] = lambda found: None,
) -> list[Found]:
    """Train the fleet's architectures on all the data, each as a teacher, and distil each into the
    global architecture on every kind of noise, ``flat`` saying how; once for each seed.

    A teacher has ``train.epochs`` epochs; a student ``noise.epochs`` · ``noise.batches`` steps.
    What is ``known`` is not measured again; ``on_found`` hears of everything else.
    """
    before = {(one.seed, one.model, one.kind, one.bn): one for one in known}
    found: list[Found] = []
    for seed in repeats:
        config = parse({**flat, "method": "fedorion", "seed": seed})
        device.settle(config.run.threads)
        task = Task.of(config, load(config.data), device.choose(config.run.device))
        for spec in dict.fromkeys(config.fleet):
            teacher = None
            has_norms = bool(norms(task.build(spec, name=("init", "teacher", spec))))
            for kind, bn in product(NOISES, BOTH if has_norms else BOTH[1:]):
                one = before.get((seed, spec, kind, bn))
                if one is None:
                    net, accuracy = teacher = teacher or _teacher(task, spec)
                    settings = {**config.flat, "noise.kind": kind, "noise.teacher-bn": bn}
                    there = Task.of(parse(settings), load(config.data), task.device)
                    one = Found(
                        seed=seed,
                        model=spec,
                        kind=kind,
                        bn=bn,
                        teacher=accuracy,
                        information=mutual_information(_answers(net, there)),
                        student=_student(net, there),
                    )
                    on_found(one)
                found.append(one)
    return found


def _teacher(task: Task, spec: str) -> tuple[Classifier, float]:
    data, config = load(task.config.data), task.config
    net = task.build(spec, name=("init", "teacher", spec)).train()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y)

    batches = task.batches(data.x.to(task.device), data.y.to(task.device), "teacher", spec)
    with seeds.scope(task.seed, "train", "teacher", spec):
        task.fit(1, net.parameters(), epochs(batches, config.train.epochs), loss)
    scored = evaluate(net, data.x_test, data.y_test, task, bn="running")
    return net.eval(), scored.accuracy


@torch.no_grad()
def _answers(net: Classifier, task: Task) -> list[Tensor]:
    """The teacher's logits on batches of noise, [n, C] each."""
    o, draw = task.config.noise, seeds.stream(task.seed, "information", device=task.device)
    zs = noise.batches(o.kind, BATCHES, o.batch_size, task.shape, draw)
    if o.teacher_bn == "running":
        return [net(z) for (z,) in zs]
    with batch_statistics(net):
        return [net(z) for (z,) in zs]


def mutual_information(logits: Sequence[Tensor]) -> float:
    """I(z; ŷ) in nats over all rows of ``logits``, batches [n, C]."""
    p = torch.cat(list(logits)).double().softmax(1)

    def entropy(q: Tensor) -> Tensor:
        return -(q * q.clamp_min(1e-300).log()).sum(-1)

    return float((entropy(p.mean(0)) - entropy(p).mean()).clamp_min(0))


def _student(net: Classifier, task: Task) -> float:
    method = FedORION(task, global_spec(task))
    distil(method, 1, [(net.spec, tree.snapshot(net))], weighted(kl, [1.0], 1.0))
    data, student = load(task.config.data), method.model()
    assert student is not None
    return evaluate(student, data.x_test, data.y_test, task, bn="batch").accuracy


def correlations(found: Sequence[Found]) -> list[float]:
    """Spearman's rank correlation of information and the student's accuracy, seed by seed."""
    result = []
    for seed in dict.fromkeys(one.seed for one in found):
        mine = [one for one in found if one.seed == seed]
        pairs = [[one.information for one in mine], [one.student for one in mine]]
        result.append(float(spearmanr(*pairs).statistic))
    return result


def table(found: Sequence[Found]) -> Table:
    """Means over the seeds, ± half of the 95 % interval."""
    groups: dict[tuple[str, str, str], list[Found]] = defaultdict(list)
    for one in found:
        groups[one.model, one.kind, one.bn].append(one)
    rows = []
    for (model, kind, bn), mine in groups.items():
        teacher, student = ([100 * getattr(m, n) for m in mine] for n in ("teacher", "student"))
        information = [m.information for m in mine]
        columns = ((teacher, ".1f"), (information, ".3f"), (student, ".1f"))
        rows.append((model, kind, bn, *(mean_with_interval(*column) for column in columns)))
    header = ("teacher", "noise", "BatchNorm", "teacher, %", "I(z; ŷ), nats", "student, %")
    parts = {"all": found} | {f"{bn} alone": [f for f in found if f.bn == bn] for bn in BOTH}
    each = {what: correlations(part) for what, part in parts.items() if part}
    told = [f"{what}: {mean_with_interval(values, '.2f')}" for what, values in each.items()]
    number = len({one.seed for one in found})
    note = "Spearman's correlation of information and student, "
    note += f"{'; '.join(told)}. {number} seeds, ± half of the 95 % interval."
    return Table(header, rows, notes=(note,))


@style()
def draw(found: Sequence[Found]) -> Figure:
    """The student's accuracy over the information, a colour for each architecture; hollow where
    BatchNorm normalises by running statistics."""
    figure, axes = frame((5.2, 3.6))
    for i, model in enumerate(dict.fromkeys(one.model for one in found)):
        for bn in BOTH:
            mine = [one for one in found if one.model == model and one.bn == bn]
            axes.plot(
                [one.information for one in mine],
                [100 * one.student for one in mine],
                "o",
                color=series(i),
                markersize=5,
                markerfacecolor=series(i) if bn == "batch" else "none",
                label=f"{model}, {bn}",
            )
    axes.set_xlabel("I(z; ŷ) of the teacher on noise, nats")
    axes.set_ylabel("student's accuracy, %")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def load_found(flat: Mapping[str, Value], folder: Path) -> list[Found]:
    """What ``folder`` holds of this experiment from before, if anything.

    Raises ``ValueError`` if it is of another experiment, or damaged.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        experiment, found = told["experiment"], [Found(**one) for one in told["found"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of this study: {error}") from error
    now = chosen(flat)
    if other := [key for key in now | experiment if now.get(key) != experiment.get(key)]:
        keys = ", ".join(sorted(other))
        raise ValueError(f"{path} is of an experiment with another {keys}: give another --out")
    return found


def keep_found(found: Sequence[Found], flat: Mapping[str, Value], folder: Path) -> None:
    """Write ``information.json``: the experiment and all that was found."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"experiment": chosen(flat), "found": [asdict(one) for one in found]}
    write_atomically(folder / FILE, f"{json.dumps(told, indent=1)}\n".encode())


def write(found: Sequence[Found], folder: Path) -> list[Path]:
    """The table as Markdown and the picture, in ``folder``, beside what ``keep_found`` wrote."""
    text = folder / "information.md"
    write_atomically(text, f"{markdown(table(found))}\n".encode())
    return [folder / FILE, text, save(draw(found), folder / "information.png")]
