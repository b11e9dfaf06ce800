"""The kinds of noise: their appearance, their time, and the information in predictions on them.

``python -m tests.papers figures noise`` draws and times them. ``… figures information`` measures
whether the mutual information of noise and a teacher's predictions predicts a student's accuracy.

A network f was trained on images and receives a batch of noise z. The mutual information of z and
the predictions σ(f(z)) is, in nats between 0 and log C:

    I(z; ŷ) = H(mean_z σ(f(z))) − mean_z H(σ(f(z)))

Raikwar and Mishra 2022 ("Discovering and overcoming limitations of noise-engineered data-free
knowledge distillation") find that predictions on noise are useful only if BatchNorm normalises by
the noise batch; FedORION builds on it (section 3.3).
"""

import json
import timeit
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, final

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import Tensor

from common import seeds
from common.data import load, noise
from common.data.noise import NOISES
from common.exchange import tree
from common.files import write_atomically
from common.losses.distillation import kl
from common.models.batchnorm import batch_statistics, norms
from common.models.classifier import Classifier
from common.parse import parse
from common.settings.section import Value
from common.training import device
from common.training.task import Task, epochs, evaluate, global_spec
from deploy.report.groups import mean_with_interval
from deploy.report.style import frame, frames, save, series, style
from deploy.report.table import Table, markdown
from deploy.settings import chosen, unread
from server_app.distillation.noise import distil, weighted
from server_app.methods.fedorion import FedORION

BatchNorm = Literal["batch", "running"]
BOTH: tuple[BatchNorm, ...] = ("batch", "running")
FILE = "information.json"
BATCHES = 8  #: batches of noise.batch-size images for the information
SAMPLES = 8  #: samples of each kind in the picture
SHAPE = (3, 32, 32)  #: shape of a sample in the picture


@style(ticks=False)
def draw_kinds() -> Figure:
    """Draw a row of ``SAMPLES`` samples for each kind; −2.5 is dark and 2.5 is light."""
    size = (SAMPLES * 1.05 + 1.1, len(NOISES) * 1.1)
    figure, grid = frames(size, len(NOISES), SAMPLES)
    for row, (kind, sampler) in zip(grid, NOISES.items(), strict=True):
        z = next(sampler(64, SHAPE, seeds.stream(1, "noise")))[:SAMPLES]
        images = (z / 5 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
        for axes, image in zip(row, images.numpy(), strict=True):
            axes.imshow(image)
        row[0].set_ylabel(kind)
    return figure


@final
@dataclass(frozen=True)
class Time:
    """Seconds for one batch of a kind of noise, and for one whole distillation step on it."""

    kind: str
    noise: float
    step: float

    @property
    def share(self) -> float:
        """The noise's share of the step, in [0, 1]."""
        return min(self.noise / self.step, 1.0)


def times(flat: Mapping[str, Value], batches: int = 3) -> list[Time]:
    """Time each kind of noise in FedORION's server step with the settings ``flat``.

    The teachers are the untrained models of one round's clients. Each kind is timed three times
    over ``batches`` batches. The minimum counts, because it is the least disturbed by other work on
    the machine. The time of a step includes its part of the networks' set-up.
    """
    return [_time(kind, flat, batches) for kind in NOISES]


def _time(kind: str, flat: Mapping[str, Value], batches: int) -> Time:
    settings: dict[str, Value] = {"noise.kind": kind, "noise.epochs": 1, "noise.batches": batches}
    task = _task({**flat, **settings})
    config, method = task.config, FedORION(task, global_spec(task))
    size = config.run.per_round or config.run.clients or len(config.fleet)
    specs = [config.fleet[k % len(config.fleet)] for k in range(size)]
    teachers = [(name, dict(method.build(name).state_dict())) for name in specs]
    transfer = weighted(kl, [1 / size] * size, 1.0)

    def noise_alone() -> None:
        stream = seeds.stream(task.seed, "noise", device=task.device)
        for _ in noise.batches(kind, batches, config.noise.batch_size, task.shape, stream):
            pass

    def clocked(work: Callable[[], object]) -> None:
        work()
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)

    works = (noise_alone, partial(distil, method, 1, teachers, transfer))
    alone, total = (
        min(timeit.repeat(partial(clocked, work), number=1, repeat=3)) for work in works
    )
    return Time(kind, alone / batches, total / batches)


def times_table(times: Sequence[Time]) -> Table:
    """Return a table of milliseconds of a batch and a step, and the noise's share of the step."""
    rows = [
        (t.kind, f"{t.noise * 1e3:.1f}", f"{t.step * 1e3:.1f}", f"{t.share:.1%}") for t in times
    ]
    return Table(("noise", "ms a batch", "ms a step", "share of the step"), rows)


def _task(flat: Mapping[str, Value]) -> Task:
    """Return FedORION's task without a partition, on the device of ``flat``."""
    config = parse({**flat, "method": "fedorion"})
    device.settle(config.run.threads)
    return Task.of(config, load(config.data), device.choose(config.run.device))


@final
@dataclass(frozen=True)
class Measurement:
    """Result of one seed, teacher, kind of noise and BatchNorm statistics."""

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
    known: Sequence[Measurement] = (),
    on_measured: Callable[[Measurement], object] = lambda measurement: None,
) -> list[Measurement]:
    """Return the measurements for each seed, teacher architecture, kind of noise and BatchNorm.

    For each seed, train each architecture of the fleet as a teacher on all the data, and distil it
    into the global architecture on every kind of noise, with the settings ``flat``. A teacher
    trains for ``train.epochs`` epochs, a student for ``noise.epochs`` · ``noise.batches`` steps.
    ``known`` measurements are not repeated; ``on_measured`` is called with each new one.
    """
    before = {(one.seed, one.model, one.kind, one.bn): one for one in known}
    measurements: list[Measurement] = []
    for seed in repeats:
        task = _task({**flat, "seed": seed})
        for spec in dict.fromkeys(task.config.fleet):
            teacher = None
            has_norms = bool(norms(task.build(spec, name=("init", "teacher", spec))))
            for kind, bn in product(NOISES, BOTH if has_norms else BOTH[1:]):
                one = before.get((seed, spec, kind, bn))
                if one is None:
                    net, accuracy = teacher = teacher or _teacher(task, spec)
                    noisy = _task({**task.config.flat, "noise.kind": kind, "noise.teacher-bn": bn})
                    nats = mutual_information(_logits(net, noisy))
                    one = Measurement(seed, spec, kind, bn, accuracy, nats, _student(net, noisy))
                    on_measured(one)
                measurements.append(one)
    return measurements


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
def _logits(net: Classifier, task: Task) -> list[Tensor]:
    """Return the teacher's logits on batches of noise, [n, C] each."""
    o, draw = task.config.noise, seeds.stream(task.seed, "information", device=task.device)
    zs = noise.batches(o.kind, BATCHES, o.batch_size, task.shape, draw)
    if o.teacher_bn == "running":
        return [net(z) for (z,) in zs]
    with batch_statistics(net):
        return [net(z) for (z,) in zs]


def mutual_information(logits: Sequence[Tensor]) -> float:
    """Return I(z; ŷ) in nats over all rows of ``logits``, batches [n, C]."""
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


def correlations(measurements: Sequence[Measurement]) -> list[float]:
    """Return Spearman's rank correlation of information and student accuracy for each seed."""
    result = []
    for seed in dict.fromkeys(one.seed for one in measurements):
        of_seed = [one for one in measurements if one.seed == seed]
        pairs = [[one.information for one in of_seed], [one.student for one in of_seed]]
        result.append(float(spearmanr(*pairs).statistic))
    return result


def table(measurements: Sequence[Measurement]) -> Table:
    """Return a table of means over the seeds ± half of the 95 % interval."""
    groups: dict[tuple[str, str, str], list[Measurement]] = defaultdict(list)
    for one in measurements:
        groups[one.model, one.kind, one.bn].append(one)
    rows = []
    for (model, kind, bn), group in groups.items():
        teacher, student = ([100 * getattr(m, n) for m in group] for n in ("teacher", "student"))
        information = [m.information for m in group]
        columns = ((teacher, ".1f"), (information, ".3f"), (student, ".1f"))
        rows.append((model, kind, bn, *(mean_with_interval(*column) for column in columns)))
    header = ("teacher", "noise", "BatchNorm", "teacher, %", "I(z; ŷ), nats", "student, %")
    parts = {"all": measurements}
    parts |= {f"{bn} alone": [one for one in measurements if one.bn == bn] for bn in BOTH}
    texts = [
        f"{name}: {mean_with_interval(correlations(part), '.2f')}"
        for name, part in parts.items()
        if part
    ]
    number = len({one.seed for one in measurements})
    note = "Spearman's correlation of information and student, "
    note += f"{'; '.join(texts)}. {number} seeds, ± half of the 95 % interval."
    return Table(header, rows, notes=(note,))


@style()
def draw(measurements: Sequence[Measurement]) -> Figure:
    """Plot the student's accuracy over the information, a colour for each architecture.

    A mark is hollow if BatchNorm normalises by running statistics.
    """
    figure, axes = frame((5.2, 3.6))
    for i, model in enumerate(dict.fromkeys(one.model for one in measurements)):
        for bn in BOTH:
            part = [one for one in measurements if one.model == model and one.bn == bn]
            x, y = [one.information for one in part], [100 * one.student for one in part]
            face, label = series(i) if bn == "batch" else "none", f"{model}, {bn}"
            axes.plot(x, y, "o", color=series(i), ms=5, markerfacecolor=face, label=label)
    axes.set_xlabel("I(z; ŷ) of the teacher on noise, nats")
    axes.set_ylabel("student's accuracy, %")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def _identity(flat: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that identify this study's experiment."""
    return chosen({**flat, **unread(str(flat["method"]))})


def load_measurements(flat: Mapping[str, Value], folder: Path) -> list[Measurement]:
    """Return the earlier measurements of this experiment in ``folder``, if any.

    Raises ``ValueError`` if they are of another experiment, or damaged.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        experiment = content["experiment"]
        measurements = [Measurement(**one) for one in content["found"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no record of this study: {error}") from error
    now = _identity(flat)
    if other := [key for key in now | experiment if now.get(key) != experiment.get(key)]:
        keys = ", ".join(sorted(other))
        raise ValueError(f"{path} is of an experiment with another {keys}: give another --out")
    return measurements


def save_measurements(done: Sequence[Measurement], flat: Mapping[str, Value], folder: Path) -> None:
    """Write ``information.json``: the experiment and its measurements so far."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"experiment": _identity(flat), "found": [asdict(one) for one in done]}
    write_atomically(folder / FILE, f"{json.dumps(content, indent=1)}\n".encode())


def write(measurements: Sequence[Measurement], folder: Path) -> list[Path]:
    """Write the table as Markdown and the picture in ``folder``; return the paths of all files."""
    text = folder / "information.md"
    write_atomically(text, f"{markdown(table(measurements))}\n".encode())
    return [folder / FILE, text, save(draw(measurements), folder / "information.png")]
