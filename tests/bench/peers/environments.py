"""The peers' environments: a virtual environment for each in ``.bench``, made once."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from deploy.run.settings import app_folder

BOTH = ("torch", "torchvision")
HOME = app_folder() / ".bench"
PACKAGES = {"fluke": ["fluke-fl==0.8.1"], "flower": ["flwr[simulation]==1.31.0"]}


def python(name: str) -> Path:
    """The interpreter of an environment, which is installed if it is not there yet.

    Each has this environment's own torch and torchvision.
    """
    folder = HOME / name
    interpreter, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        same = [f"{package}=={version(package).partition('+')[0]}" for package in BOTH]
        folder.mkdir(parents=True, exist_ok=True)
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(same) + "\n", encoding="utf-8")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet"]
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run([*pip, same[0]], check=True, env=env)
        subprocess.run([*pip, "-c", str(constraints), *PACKAGES[name]], check=True, env=env)
        done.touch()
    return interpreter
