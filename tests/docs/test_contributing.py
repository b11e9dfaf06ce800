"""The steps of CONTRIBUTING.md and docs/write-a-method.md for a method in the project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings.version import ROOT

pytestmark = pytest.mark.docs

CONTRACT = '''"""Nearer: federated averaging with a proximal term of another weight.

Nobody, "A method of a test", 2026, Algorithm 1.

Client k minimises

    L(w_k) + ν ‖w_k − w‖²

Deviations: none.
"""

from typing import final

from common.methods.fedavg import Copying, Reply, Request
from common.settings.section import NonNegative

SERVER = "fedavg"
__all__ = ["Options", "Reply", "Request"]


@final
class Options(Copying):
    nu: NonNegative = 0.01
    """ν, the weight of the proximal term."""
    facts = Copying.facts.but(sends="a network that stays near")
'''


def test_a_new_method_has_settings_numbers_and_a_page_before_it_has_a_row(tmp_path: Path) -> None:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).exists() and not name.startswith("tests/papers/results"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    half = (ROOT / "client_app/methods/fedprox.py").read_text(encoding="utf-8")
    for old, new in (("FedProx", "Nearer"), ("methods.fedprox", "methods.nearer"), (".mu", ".nu")):
        half = half.replace(old, new)
    (tmp_path / "common/methods/nearer.py").write_text(CONTRACT, encoding="utf-8")
    (tmp_path / "client_app/methods/nearer.py").write_text(half, encoding="utf-8")

    def run(*arguments: str) -> str:
        paths = os.pathsep.join([str(tmp_path), str(tmp_path / "deploy")])
        environment = os.environ | {"PYTHONPATH": paths, "HOME": str(tmp_path / "home")}
        line = [sys.executable, *arguments]
        ran = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    run("-m", "docs.tools.generate")
    defaults = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert "nu = 0.01\n" in defaults.split("[tool.flwr.app.config.nearer]\n")[1].split("\n[")[0]
    methods = (tmp_path / "docs/methods.md").read_text(encoding="utf-8")
    assert "\n| a network that stays near | `nearer` |\n" in methods
    assert "\n| `nearer` | federated averaging with a proximal term of another weight |" in methods

    page = "from docs.tools import method_page as m; print(m.page(m.known('nearer')))"
    assert "not measured yet" in run("-c", page)
    assert run("-m", "docs.tools.measure", "nearer").startswith("nearer: A client receives ")
    text = run("-c", page)
    assert "not measured yet" not in text and "`python -m docs.tools.measure nearer`" in text

    command = "import fedmosaic; fedmosaic.main()"
    assert "nearer" in run("-c", command, "list", "methods")
    small = ["rounds=1", "fleet=mlp,mlp", "clients=2", "train.epochs=1", "nearer.nu=1"]
    words = [word for setting in ("method=nearer", *small) for word in ("-s", setting)]
    run("-c", command, "run", *words, "--workers", "0", "--out", str(tmp_path / "runs/one"))
    assert (tmp_path / "runs/one/summary.json").exists()
