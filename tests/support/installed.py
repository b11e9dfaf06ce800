"""Install the wheel into an empty environment and run the commands there.

    python -m tests.support.installed [--sizes]

The environment also has packages with the names of the Flower app's packages, which raise when they
are imported, because a user's environment may have such packages. The script prints each command
and exits with 1 at the first failure. ``--sizes`` also installs without extras and prints the bytes
of each environment without torch and its dependencies.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.flower.processes import GRACE, free_ports
from deploy.flower.watchdog import end
from tests.support.faults import processes

HERE = Path(__file__).parents[2]
TORCH = "torch>=2.11,<2.14"
HOSTILE = 'raise RuntimeError("a foreign package was imported")\n'
SMALL = ("-s", "rounds=1", "-s", "fleet=mlp,cnn2", "-s", "clients=2", "-s", "train.epochs=1")
SMALL += ("-s", "noise.batches=3", "-s", "experiment=installed")
TABLE = """
title = "installed"
seeds = [1]
measure = "accuracy.final"
[base]
rounds = 1
fleet = "mlp,mlp"
global-model = "mlp"
[base.train]
epochs = 1
[[row]]
name = "FedAvg"
set = { method = "fedavg" }
[[column]]
name = "digits"
"""
SCRIPT = """
import fedmosaic
run = fedmosaic.run(method="fedavg", rounds=1, fleet=["mlp", "mlp"], global_model="mlp", workers=2,
                    train={"epochs": 1}, quiet=True)
print(len(run.journal), len(run.clients), type(run.model()).__name__, run.report().name)
"""


class Environment:
    """A virtual environment with the wheel."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self.folder, self.elsewhere = folder, folder / "elsewhere"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.elsewhere.mkdir()
        self.pip(TORCH)
        self.before = self.size()
        self.pip(requirement)

    def pip(self, requirement: str) -> None:
        command = [self.program("python"), "-m", "pip", "install", "--quiet", requirement]
        subprocess.run(command, check=True)

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def size(self) -> int:
        """Return the bytes of all packages."""
        return sum(p.stat().st_size for p in self.site.rglob("*") if p.is_file())

    @property
    def site(self) -> Path:
        (site,) = self.folder.glob("lib/python*/site-packages")
        return site

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return the standard output of a program of the environment; exit if it fails."""
        start, words = time.monotonic(), [self.program(command[0]), *command[1:]]
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        own = {**clean, "PATH": path, "OMP_NUM_THREADS": "1", **(env or {})}
        given: dict[str, Any] = {"cwd": self.elsewhere, "env": own, "stdin": subprocess.DEVNULL}
        done = subprocess.run(words, capture_output=True, text=True, **given)
        shown = " ".join(command)[:60].partition("\n")[0] + " … " + command[-1][-30:]
        print(f"{time.monotonic() - start:6.1f} s  {shown}", flush=True)
        if done.returncode:
            print(done.stdout, done.stderr, sep="\n")
            sys.exit(f"ended with {done.returncode}: {shown}")
        return done.stdout


def check(env: Environment) -> None:
    """Run the commands, and print a line for each."""
    for name in ("common", "server_app", "client_app", "deploy"):
        (env.site / name).mkdir()
        (env.site / name / "__init__.py").write_text(HOSTILE)
    runtimes = json.loads(env.run("fedmosaic", "doctor", "--json"))["runtimes"]
    assert all(check["good"] for check in runtimes), runtimes
    weights = set()
    for runtime in ("loopback", "ray", "grpc"):
        output = env.run("fedmosaic", "run", *SMALL, "--runtime", runtime, "--json")
        weights.add(json.loads(output)["weights_sha256"])
    assert len(weights) == 1, f"three runtimes, {len(weights)} results"
    assert "fedavg" in env.run("fedmosaic", "list", "methods"), "its list is a packaged file"
    (env.elsewhere / "small.toml").write_text(TABLE)
    assert "FedAvg" in env.run("fedmosaic", "table", "small.toml")
    (env.elsewhere / "script.py").write_text(SCRIPT)
    output = env.run("python", "script.py")
    assert output.split() == ["1", "2", "MLP", "report.html"], output
    folder = env.run("python", "-c", "import fedmosaic; print(fedmosaic.app_folder())").strip()
    out = env.elsewhere / "by-flower"
    overrides = f'method="fedavg" rounds=1 fleet="mlp,mlp" global-model="mlp" out="{out}"'
    home = env.elsewhere / "flwr"
    flower = {"FLWR_HOME": str(home), "GRPC_ENABLE_FORK_SUPPORT": "0"}
    flower["FLWR_LOCAL_CONTROL_API_PORT"] = str(free_ports(1)[0])  # not one that is up already
    command = ("flwr", "run", folder, "local", "--federation-config", "num-supernodes=2")
    try:
        env.run(*command, "--run-config", overrides, "--stream", env=flower)
    finally:  # flwr run leaves a SuperLink behind
        end(processes(home, "flower-super"), GRACE)
    assert (out / "summary.json").exists(), "flwr run left no summary"
    env.run("fedmosaic", "report", str(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="measure the environments too")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="installed-") as place:
        folder = Path(place)
        ours = folder / "source"  # a copy, because a build includes the files of earlier builds
        shutil.copytree(HERE, ours, ignore=shutil.ignore_patterns(".*", "build", "runs", "tests"))
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(ours)]
        subprocess.run([*build, "--wheel-dir", place], check=True, cwd=place)
        (wheel,) = folder.glob("*.whl")
        full = Environment(folder / "full", f"{wheel}[sim,report]")
        check(full)
        if wanted.sizes:
            lean = Environment(folder / "lean", str(wheel))
            for name, env in (("[sim,report]", full), ("no extras", lean)):
                print(f"{name}: {(env.size() - env.before) / 1e6:,.0f} MB beside torch")


if __name__ == "__main__":
    main()
