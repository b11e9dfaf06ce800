"""Every experiment file and every cell of every table: settings that parse, networks that fit."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

from common.data import DATASETS
from common.data.partition import PARTITIONS
from common.models import count
from common.models.generator import Generator
from common.parse import parse
from common.settings.config import FLEETS, Config, Value, entries
from common.training.task import Task, check_fleet
from deploy.settings import EXPERIMENTS, resolve
from deploy.study import paper_table as table
from tests import papers

pytestmark = pytest.mark.docs

FILES = sorted([*EXPERIMENTS.glob("*.toml"), *papers.EXPERIMENTS.glob("*.toml")])


PARTS = 4


def check(flat: dict[str, Value]) -> None:
    """As a run's preflight, but without the data, which need not be on this machine."""
    config = parse(flat, every=True)
    source = DATASETS[config.data.name]
    assert config.data.partition in PARTITIONS
    if source.shape is None or source.classes is None:
        return
    shape, side = source.shape, config.data.image_size
    if side:
        shape = (shape[0], side, side)
    check_fleet(task(config, shape, source.classes))


def task(config: Config, shape: tuple[int, int, int], classes: int) -> Task:
    """The task of images of this shape; nothing is known of what is on them."""
    names = tuple(f"{c}" for c in range(classes))
    some = (0.5,) * shape[0]
    return Task(shape, names, some, some, config, torch.device("cpu"))


def check_file(path: Path) -> None:
    if "row" not in tomllib.loads(path.read_text(encoding="utf-8")):
        flat = resolve(path)
        check(flat | {"clients": flat["clients"] or len(str(flat["fleet"]).split(","))})
        return
    seen = set()
    for cell in table.cells(table.read(path)):
        settings = frozenset((cell.flat | {"seed": 1}).items())
        if settings not in seen:
            check(cell.flat)
        seen.add(settings)
    assert seen


@pytest.mark.parametrize("part", range(PARTS))  # so that several processes share the work
def test_every_experiment_could_run(part: int) -> None:
    for path in FILES[part::PARTS]:
        try:
            check_file(path)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{path.name}: {error}") from error


def test_rows_that_differ_in_what_they_measure_share_a_run() -> None:
    file = table.read(papers.place("dl_small"))
    cells = [cell for cell in table.cells(file) if cell.seed == file.seeds[0]]
    assert len({cell.fingerprint for cell in cells}) == 9 * 4 < len(cells)


def test_presets_are_fleets_of_architectures_that_exist() -> None:
    images = {"data.image-size": 32, "stem": "imagenet"}
    texts = {"data.name": "grammar", "data.objective": "classes", "method": "local"}
    for name in FLEETS:
        other = {"data.name": "waves"} if "sen" in name else texts if "txt" in name else images
        check(resolve(None) | {"fleet": name} | other)
        numbered = re.fullmatch(r"ht(?:fe|m)(?:-sen|-txt-)?(\d+)", name)
        assert not numbered or len(set(entries(name))) == int(numbered[1]), name


def test_fedkfs_tables_have_the_papers_generators() -> None:
    """1,049,985 parameters on EMNIST, 8,423,939 on CIFAR."""
    for stem, expected in (("fedkf_table5", 1_049_985), ("fedkf_table6", 8_423_939)):
        cell = next(c for c in table.cells(table.read(papers.place(stem))))
        config = parse(cell.flat | {"method": "fedkf"})
        channels, side, _ = DATASETS[config.data.name].shape or (0, 0, 0)
        side = config.data.image_size or side
        with torch.device("meta"):
            generator = Generator(
                config.generator.latent, (channels, side, side), mean=[0.0] * channels,
                std=[1.0] * channels, width=config.generator.width,
            )  # fmt: skip
        assert count(generator) == expected, stem
