"""Pin every package of the image and of a node by version and hash.

``python deploy/docker/pins.py`` writes three files to ``requirements/``: ``base.txt``,
``report.txt`` (packages of the extra) and ``torch.txt`` (torch, torchvision and their packages for
Linux). They are valid for Python 3.11 and newer on any platform. uv resolves them from the ranges
in ``pyproject.toml``. Existing pins stay if the ranges allow it; ``--upgrade`` selects the newest
version of every package.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINS = HERE / "requirements"
PROJECT = HERE.parents[1] / "pyproject.toml"
TORCH = re.compile(r"(torch|torchvision|triton|nvidia-.*|cuda-.*)$")
HEAD = "# Made by deploy/docker/pins.py: pip install --require-hashes --no-deps -r FILE\n"

Pins = dict[str, str]
"""Lines of a requirements file by package name."""


def read(text: str) -> Pins:
    """Return the lines of a requirements file by package name."""
    blocks = re.finditer(r"^([A-Za-z0-9_.-]+)==(?:.*\\\n)*.*\n", text, flags=re.MULTILINE)
    return {block[1]: block[0] for block in blocks}


def resolved(known: Path, *options: str) -> Pins:
    """Return uv's pins for ``pyproject.toml``, which keep the versions in the file ``known``."""
    command = [sys.executable, "-m", "uv", "pip", "compile", str(PROJECT), "--quiet"]
    command += ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-config"]
    command += ["--no-header", "--no-annotate", "--output-file", str(known), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read(known.read_text(encoding="utf-8"))


def main() -> None:
    """Write the three files."""
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "pins.txt"
        known.write_text("".join(path.read_text() for path in sorted(PINS.glob("*.txt"))))
        both = resolved(known, "--extra", "report", *sys.argv[1:])
        base = resolved(known)
    torch = {name for name in both if TORCH.match(name)}
    PINS.mkdir(exist_ok=True)
    for file, names in (
        ("base.txt", base.keys() - torch),
        ("report.txt", both.keys() - base.keys() - torch),
        ("torch.txt", torch),
    ):
        lines = "".join(both[name] for name in sorted(names))
        (PINS / file).write_text(HEAD + lines, encoding="utf-8")


if __name__ == "__main__":
    main()
