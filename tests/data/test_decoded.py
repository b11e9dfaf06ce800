"""Large IDX files are decoded once and kept as a memory-mapped copy, until they change."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.data import DATASETS, decoded, load, published
from tests.support.data_files import write_idx
from tests.support.recorded_calls import record_calls

IMAGES = 20
ROOT = Path(__file__).parents[2]


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each time that files were decoded; every file is large enough to be kept."""
    monkeypatch.setattr(decoded, "SMALL", 0)
    return record_calls(monkeypatch, published, "_decode", lambda _, family, files: family.name)


@pytest.fixture
def read(options: Callable[..., Any], tmp_path: Path) -> Callable[[], Any]:
    """Reads the data set below ``tmp_path`` as a new process would, past the cache in memory."""
    folder = tmp_path / "MNIST" / "raw"
    write_idx(folder, "train", "t10k", np.arange(IMAGES) % 10, packed=True)
    return lambda: DATASETS["mnist"].load(options(name="mnist", dir=str(tmp_path)))


def copies() -> list[Path]:
    return sorted((decoded.cache_dir() / "decoded").glob("*"))


def equal(a: Any, b: Any) -> bool:
    tensors = ("x", "y", "x_test", "y_test")
    same = [torch.equal(getattr(a, name), getattr(b, name)) for name in tensors]
    kinds = [getattr(a, name).dtype == getattr(b, name).dtype for name in tensors]
    return all(same) and all(kinds)


def test_the_kept_copy_holds_the_same_bits_until_the_files_change(read, decodings, tmp_path):
    first, second = read(), read()
    assert decodings == ["mnist"] and len(copies()) == 1
    copies()[0].unlink()
    third = read()
    assert decodings == ["mnist"] * 2
    assert equal(first, second) and equal(second, third)
    assert second.x[:, 0, 1, 2].tolist() == list(range(1, IMAGES + 1))
    images = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    status = images.stat()
    os.utime(images, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    read()
    read()
    assert decodings == ["mnist"] * 3 and len(copies()) == 1


def test_a_damaged_copy_is_made_anew(read: Any, decodings: list[str]) -> None:
    good = read()
    (path,) = copies()
    half = path.read_bytes()[:100]
    path.unlink()  # good is mapped from this file, which must not be cut short in place
    path.write_bytes(half)
    assert equal(read(), good) and equal(read(), good)
    assert decodings == ["mnist"] * 2


def no_place(patch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text("not a folder")
    patch.setenv("XDG_CACHE_HOME", str(file))


def full_disk(patch: pytest.MonkeyPatch, _: Path) -> None:
    def fails(tensors: Any, path: str, metadata: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    patch.setattr("safetensors.torch.save_file", fails)


def small_files(patch: pytest.MonkeyPatch, _: Path) -> None:
    patch.setattr(decoded, "SMALL", 2**20)


@pytest.mark.parametrize("change", [no_place, full_disk, small_files])
def test_without_a_copy_every_process_decodes_and_no_half_copy_is_left(
    change: Any, read: Any, decodings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, tmp_path / "file")
    assert equal(read(), read())
    assert decodings == ["mnist"] * 2 and copies() == []


@pytest.mark.full
def test_only_the_rows_that_are_taken_come_into_memory(tmp_path: Path) -> None:
    large = torch.zeros(64, 1, 1024, 1024, dtype=torch.uint8)
    source = tmp_path / "source"
    source.write_bytes(bytes(decoded.SMALL))
    decoded.cached_files("large", [source], lambda: {"x": large})
    script = (
        "import sys; from pathlib import Path; from common.data import decoded\n"
        "def anonymous():\n"
        "    rows = Path('/proc/self/status').read_text().splitlines()\n"
        "    return sum(int(r.split()[1]) for r in rows if r.startswith(('RssA', 'RssF')))\n"
        f"source = Path({str(source)!r})\n"
        "import torch, safetensors.torch\n"
        "before = anonymous()\n"
        "x = decoded.cached_files('large', [source], lambda: sys.exit('decoded again'))['x']\n"
        "assert x[torch.tensor([3, 5])].sum() == 0\n"
        "print(anonymous() - before)\n"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("reads /proc")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 * 1024, "kilobytes; the whole data set has 65,536"


@pytest.mark.full
def test_processes_that_decode_at_once_all_get_the_data(read: Any, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import torch; from common.data import decoded\n"
        "source = Path(sys.argv[1])\n"
        "made = lambda: {'x': torch.arange(2**18)}\n"
        "for _ in range(10):\n"
        "    x = decoded.cached_files('crowd', [source], made)['x']\n"
        "    assert torch.equal(x, made()['x'])\n"
        "    for path in (decoded.cache_dir() / 'decoded').glob('crowd*.safetensors'):\n"
        "        path.unlink(missing_ok=True)\n"
    )
    source = tmp_path / "source"
    source.write_bytes(bytes(decoded.SMALL))
    command = [sys.executable, "-c", script, str(source)]
    crowd = [subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
    errors = [process.communicate()[1] for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0], errors
    assert [path for path in copies() if path.suffix == ".tmp"] == []


def test_a_subset_is_cut_from_the_kept_copy_as_from_the_files(read, decodings, options, tmp_path):
    wanted = options(name="mnist", dir=str(tmp_path), samples=10, test_samples=10, image_size=14)
    cold = load(wanted)
    from common import data

    data._load.cache_clear()
    assert equal(cold, load(wanted)) and decodings == ["mnist"]
