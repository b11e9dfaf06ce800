"""Pin every package of the image and of a node by version and hash.

``python deploy/docker/pins.py`` writes four files to ``requirements/``: ``base.txt``,
``report.txt`` (packages of the server's extras), ``torch.txt`` (torch, torchvision and their
packages for Linux) and ``sbom.txt`` (packages that write the images' bill of materials). They are
valid for Python 3.11 and newer on any platform. uv resolves them from the ranges in
``pyproject.toml``.
Existing pins stay if the ranges allow it; ``--upgrade`` selects the newest version of every
package.

``python deploy/docker/pins.py --wheels aarch64`` names the wheel of each pin that the image takes
on a processor without CUDA, from the package index, and fails if a pin has none with its hash.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINS = HERE / "requirements"
PROJECT = HERE.parents[1] / "pyproject.toml"
SERVER = ("report", "metrics")  #: extras of the server's image
SBOM = "cyclonedx-python-lib>=11,<12"
TORCH = re.compile(r"(torch|torchvision|triton|nvidia-.*|cuda-.*)$")
CPU = {"torch", "torchvision"}  #: packages of ``TORCH`` without CUDA
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


def wheels(machine: str) -> list[str]:
    """Return the wheels of the pins for Linux on ``machine``, such as aarch64.

    Raises ``CalledProcessError`` if pip finds no wheel with one of a pin's hashes.
    """
    pins = {
        name: line for file in PINS.glob("*.txt") for name, line in read(file.read_text()).items()
    }
    needed = [line for name, line in pins.items() if name in CPU or not TORCH.match(name)]
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "pins.txt"
        listed.write_text("".join(needed))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--only-binary", ":all:", "--python-version", "3.11"]
        command += ["--target", folder, "--report", "-", "--requirement", str(listed)]
        for glibc in ("2014", "_2_17", "_2_26", "_2_27", "_2_28"):
            command += ["--platform", f"manylinux{glibc}_{machine}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    places = [package["download_info"]["url"] for package in json.loads(done.stdout)["install"]]
    return sorted(place.rpartition("/")[2] for place in places)


def main() -> None:
    """Write the four files, or list wheels."""
    if sys.argv[1:2] == ["--wheels"]:
        print(*wheels(*sys.argv[2:]), sep="\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        known, tool, written = (Path(folder) / name for name in ("pins.txt", "in.txt", "sbom.txt"))
        known.write_text("".join(path.read_text() for path in sorted(PINS.glob("[!s]*.txt"))))
        extras = [word for name in SERVER for word in ("--extra", name)]
        both = resolved(PROJECT, known, *extras, *sys.argv[1:])
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
