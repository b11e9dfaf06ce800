"""Pin every package of the image and of a node by version and hash.

``python deploy/docker/pins.py`` writes four files to ``requirements/``: ``base.txt``,
``report.txt`` (packages of the extra), ``torch.txt`` (torch, torchvision and their packages for
Linux) and ``sbom.txt`` (packages that write the images' bill of materials). They are valid for
Python 3.11 and newer on any platform. uv resolves them from the ranges in ``pyproject.toml``.
Existing pins stay if the ranges allow it; ``--upgrade`` selects the newest version of every
package.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINS = HERE / "requirements"
PROJECT = HERE.parents[1] / "pyproject.toml"
SBOM = "cyclonedx-python-lib>=11,<12"
TORCH = re.compile(r"(torch|torchvision|triton|nvidia-.*|cuda-.*)$")
HEAD = "# Made by deploy/docker/pins.py: pip install --require-hashes --no-deps -r FILE\n"

Pins = dict[str, str]
"""Lines of a requirements file by package name."""


def read(text: str) -> Pins:
    """Return the lines of a requirements file by package name."""
    blocks = re.finditer(r"^([A-Za-z0-9_.-]+)==(?:.*\\\n)*.*\n", text, flags=re.MULTILINE)
    return {block[1]: block[0] for block in blocks}


def resolved(ranges: Path, known: Path, *options: str) -> Pins:
    """Return uv's pins for a file of ``ranges``, which keep the versions in the file ``known``."""
    command = [sys.executable, "-m", "uv", "pip", "compile", str(ranges), "--quiet"]
    command += ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-config"]
    command += ["--no-header", "--no-annotate", "--output-file", str(known), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return read(known.read_text(encoding="utf-8"))


def main() -> None:
    """Write the four files."""
    with tempfile.TemporaryDirectory() as folder:
        known, tool, written = (Path(folder) / name for name in ("pins.txt", "in.txt", "sbom.txt"))
        known.write_text("".join(path.read_text() for path in sorted(PINS.glob("[!s]*.txt"))))
        both = resolved(PROJECT, known, "--extra", "report", *sys.argv[1:])
        base = resolved(PROJECT, known)
        tool.write_text(SBOM)
        if (PINS / "sbom.txt").exists():
            written.write_text((PINS / "sbom.txt").read_text())
        sbom = resolved(tool, written, *sys.argv[1:])
    torch = {name for name in both if TORCH.match(name)}
    PINS.mkdir(exist_ok=True)
    for file, pins, names in (
        ("base.txt", both, base.keys() - torch),
        ("report.txt", both, both.keys() - base.keys() - torch),
        ("torch.txt", both, torch),
        ("sbom.txt", sbom, sbom.keys()),
    ):
        lines = "".join(pins[name] for name in sorted(names))
        (PINS / file).write_text(HEAD + lines, encoding="utf-8")


if __name__ == "__main__":
    main()
