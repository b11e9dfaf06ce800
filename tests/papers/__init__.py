"""What the repeated papers claim: their tables, our records, the rule that judges both, figures.

``python -m tests.papers --help`` lists the commands. They need a checkout, because nothing here
belongs to the installed package.
"""

from pathlib import Path

from common.settings.plugins import nearest
from deploy import settings

HERE, BUNDLED = Path(__file__).parent, settings.EXPERIMENTS
EXPERIMENTS, CLAIMS, RESULTS = HERE / "experiments", HERE / "claims", HERE / "results"


def record(name: str) -> Path:
    """Return the folder of a record: of a paper's table, or of a bundled board."""
    ours = RESULTS / name
    return ours if ours.is_dir() else BUNDLED / "results" / name


def place(name: str | Path) -> Path:
    """Return the path of an experiment file: the papers' or bundled one of this name, if any."""
    named = Path(name)
    for folder in () if named.is_file() else (EXPERIMENTS, BUNDLED):
        if (path := folder / f"{named.stem}.toml").is_file():
            return path
    return named


def found(name: Path) -> Path:
    """Return the path of an existing experiment file, as ``place`` does.

    Raises ``ValueError``, one line with the nearest name, if there is none.
    """
    if (path := place(name)).exists() or name.parent != Path():
        return path
    known = (path.stem for folder in (EXPERIMENTS, BUNDLED) for path in folder.glob("*.toml"))
    near = nearest(name.stem, known)
    raise ValueError(f"there is no file {str(name)!r} and no table of this name{near}")
