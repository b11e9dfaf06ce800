"""Time and memory of reading a large CSV file, in a process of its own.

Two hundred and ninety thousand rows of twenty numbers are 44 MB, as an export of a hospital's
measurements is. The copy that later processes map is not written.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from common.settings.version import ROOT

ROWS, COLUMNS = 290_000, 20
AIMS = {"seconds": 10.0, "times": 4.0}  #: on one idle core; memory as a multiple of the file

SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from common.data import load
from common.settings.config import Data

def memory(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))

data = Data(name="csv", dir=sys.argv[2], partition="iid")
before, began = memory("VmRSS"), time.time()
load(data)
print(time.time() - began, memory("VmHWM") - before)
"""


def measure() -> dict[str, float]:
    """Return the seconds, and the most memory as a multiple of the file's size."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="fedmosaic-") as place:
        path = Path(place) / "train.csv"
        with open(path, "w", encoding="utf-8") as file:
            file.write(",".join(f"f{i}" for i in range(COLUMNS)) + ",label\n")
            for row in draw.normal(size=(ROWS, COLUMNS)):
                file.write(",".join(f"{v:.4f}" for v in row) + f",c{int(row[0] > 0)}\n")
        size = path.stat().st_size
        line = [sys.executable, "-c", SCRIPT, str(ROOT), place]
        env = {"XDG_CACHE_HOME": "/dev/null", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(line, capture_output=True, text=True, check=True, env=env)
    seconds, peak = map(float, done.stdout.split())
    return {"megabytes": size / 1e6, "seconds": seconds, "times": peak / size}
