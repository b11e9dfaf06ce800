"""The workflow file: what its schema allows, and the same checks as anywhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

pytestmark = pytest.mark.full

WORKFLOW = Path(__file__).parents[1] / ".github/workflows/ci.yml"


def test_the_workflow_runs_what_ci_runs() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    command += ["vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "- run: .ci/run\n" in WORKFLOW.read_text()
    assert (WORKFLOW.parents[2] / ".ci/run").stat().st_mode & 0o111
