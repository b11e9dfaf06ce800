"""The marked commands, scripts and files of the pages are run as printed, each page in a folder.

A comment before a block of code marks it: ``<!-- run -->`` runs its lines as commands,
``<!-- run: python -->`` as a script, and ``<!-- run: NAME -->`` writes it to the file NAME.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings.version import ROOT

pytestmark = pytest.mark.docs

BLOCK = re.compile(r"^<!-- run(?:: (\S+))? -->\n+```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = {
    path.relative_to(ROOT).as_posix(): blocks
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (blocks := BLOCK.findall(path.read_text(encoding="utf-8")))
}
TUTORIALS = ("compare", "hospitals", "sensors", "write-a-method", "bring-a-model")
FIRST = ("README.md", "docs/start.md", *(f"docs/{name}.md" for name in TUTORIALS))
"""Pages that ``make test-docs`` runs; the guides take minutes more (``make exhaustive``)."""


def test_the_front_page_the_first_run_and_the_tutorials_are_marked() -> None:
    assert {*FIRST} <= {*PAGES}


def test_every_mark_is_before_a_block() -> None:
    for page, blocks in PAGES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert text.count("<!-- run") == len(blocks), page


@pytest.mark.parametrize(
    "page",
    [pytest.param(one, marks=() if one in FIRST else pytest.mark.exhaustive) for one in PAGES],
)
def test_the_marked_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": places, "HOME": str(tmp_path / "home")}
    for kind, text in PAGES[page]:
        if kind and kind != "python":
            (tmp_path / kind).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / kind).write_text(text, encoding="utf-8")
            continue
        shell = [sys.executable, "-"] if kind else ["bash", "-euo", "pipefail"]
        ran = subprocess.run(
            shell,
            input=text,
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=3600,
            check=False,
        )
        assert ran.returncode == 0, f"{page}:\n{text}\n{ran.stdout[-4000:]}"
