"""The pages in docs/: their links, paths and names exist, and their lists agree with the code;
marked commands run, and so do the steps for a method of CONTRIBUTING.md and write-a-method.md."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.methods import facts, names, options
from common.settings.version import ROOT, VERSION
from tests.support.battery import PLUGIN

pytestmark = pytest.mark.docs

DOCS = ROOT / "docs"
OURS = ("common", "server_app", "client_app", "deploy")
PAGES = [*DOCS.glob("*.md"), *ROOT.glob("*.md")]
PATH = re.compile(rf"`((?:{'|'.join(OURS)}|docs|tests)/[\w./-]*)`")
NAME = re.compile(r"`(\w+)` \(`([\w/.]+\.py)`\)")
REFERENCES = (
    *("attacks", "checks", "code-map", "faults-recorded", "glossary", "hooks", "leaves"),
    *("methods", "methods-shared", "plugins", "scale-measured", "soak", "troubleshooting"),
)
"""Pages to look things up in. Only they may have more than ``WORDS`` words."""
WORDS = 1500
BLOCK = re.compile(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = ("architecture", "code-map", "glossary", "hooks", "write-a-method")
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


def test_every_relative_link_has_a_target_and_no_line_is_left_of_a_merge() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)
        missing = [to for to in targets if "://" not in to and not (page.parent / to).exists()]
        assert missing == [], page
        assert re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", text, re.MULTILINE) == [], page


def test_the_readme_is_short_and_its_numbers_are_those_of_the_comparison_and_the_code() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (number,) = re.findall(r"(\d+) methods on", readme)
    (different,) = re.findall(r"methods for clients with different networks \| (\d+) \|", readme)
    comparison = (DOCS / "comparison.md").read_text(encoding="utf-8")
    assert f"with different networks | {different} of {number} |" in comparison
    networks = {name: facts(name).networks for name in names() if name != "local"}
    assert int(number) == len(names()) and len(readme.splitlines()) <= 130
    assert int(different) == sum(kind != "equal" for kind in networks.values())
    assert re.findall(r"^make (?:test|check)\S*", readme, re.MULTILINE)[0] == "make test"


def test_the_first_sentence_of_a_page_says_its_purpose_and_only_references_are_long() -> None:
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        title, blank, sentence = text.split("\n")[:3]
        assert title.startswith("# ") and not blank, page
        assert sentence.startswith(("This page ", "In this tutorial ")), page
        assert (page.stem in REFERENCES) == ("the reference of" in sentence), page
        assert len(text.split()) <= WORDS or page.stem in REFERENCES, page


def test_the_citation_has_the_version_and_the_licence_of_the_project() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {VERSION}\n" in citation and "\nlicense: Apache-2.0\n" in citation


def test_every_path_and_name_of_the_code_exists() -> None:
    for name in CODE:
        text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        paths = [path for path in PATH.findall(text) if not re.search("NAME|my_method", path)]
        assert paths and [path for path in paths if not (ROOT / path).exists()] == [], name
        for word, path in NAME.findall(text):
            code = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"\b{word}\b", code), (word, path)


def test_the_glossary_is_in_alphabetical_order() -> None:
    rows = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [row.split(" | ")[0].removeprefix("| ").lower() for row in rows if row.startswith("|")]
    assert terms[2:] == sorted(terms[2:])


def test_the_folder_map_repeats_the_sentence_of_each_folder() -> None:
    page = (DOCS / "code-map.md").read_text(encoding="utf-8")
    for path in (path for top in OURS for path in (ROOT / top).rglob("__init__.py")):
        folder = path.parent.relative_to(ROOT).as_posix()
        if folder != "deploy/fedmosaic":  # its docstring is that of the installed package
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sentence = " ".join(text.split("\n\n")[0].split()).replace("``", "`")
            assert f"| `{folder}` | {sentence} |" in page


def test_every_file_of_the_example_is_printed_as_it_is() -> None:
    names = ("write-a-method", "bring-a-model")
    tutorials = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in names)
    printed = {name: text for name, text in BLOCK.findall(tutorials) if (PLUGIN / name).exists()}
    files = [*PLUGIN.rglob("*.py"), *PLUGIN.glob("*.toml")]
    ours = [file.relative_to(PLUGIN).as_posix() for file in files if file.name != "__init__.py"]
    assert printed.keys() == {*ours}
    for name, text in printed.items():
        assert text == (PLUGIN / name).read_text(), name


def test_the_table_of_shared_parts_has_each_method_once() -> None:
    page = (DOCS / "methods-shared.md").read_text(encoding="utf-8")
    section = page.split("## What is shared, kept and scored\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(names())


def test_the_table_of_kinds_of_input_agrees_with_the_contracts() -> None:
    page = (DOCS / "methods-shared.md").read_text(encoding="utf-8")
    section = page.split("## Kinds of input\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (yes|no) \| (yes|no) \| (.*) \|$", section, re.MULTILINE)
    listed = {n: row for row in rows for n in re.findall(r"`([\w-]+)`", row[0])}
    assert {*listed} <= {*names()} and len(listed) == sum(row[0].count("`") for row in rows) // 2
    for name in names():
        reason = options(name).images
        assert listed.get(name, ("", "yes"))[1] == ("no" if reason else "yes")
        assert not reason or listed[name][3] == reason


def test_the_page_about_htfllib_has_each_of_its_methods_by_our_name() -> None:
    page = (DOCS / "htfllib.md").read_text(encoding="utf-8")
    ours = re.findall(r"^\| [^|]+ \| `([\w-]+)` \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert len(ours) == len(set(ours)) == 12 and set(ours) <= {*names()}


def public_names() -> dict[str, list[str]]:
    """Return the names of docs/plugins.md that a plug-in may import, by module."""
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    section = page.split("## Public names\n")[1].split("\n##")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def test_every_public_name_exists() -> None:
    for module, listed in public_names().items():
        where = importlib.import_module(module)
        for name in listed:
            if not hasattr(where, name):  # a module of a package
                importlib.import_module(f"{module}.{name}")


def test_the_names_that_the_example_imports_are_public() -> None:
    public = public_names()
    imports = [
        (node.module, alias.name)
        for path in PLUGIN.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS
        for alias in node.names
    ]
    assert imports and [one for one in imports if one[1] not in public.get(one[0] or "", [])] == []


# Marked commands, scripts and files are run as printed, each page in its own folder. A comment
# before a block of code marks it: ``<!-- run -->`` runs its lines as commands,
# ``<!-- run: python -->`` as a script, and ``<!-- run: NAME -->`` writes it to the file NAME.

MARKED = re.compile(r"^<!-- run(?:: (\S+))? -->\n+```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUN = {
    path.relative_to(ROOT).as_posix(): blocks
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if (blocks := MARKED.findall(path.read_text(encoding="utf-8")))
}
TUTORIALS = ("compare", "hospitals", "sensors", "write-a-method", "bring-a-model")
TUTORIALS += ("text-models", "adapters")
FIRST = ("README.md", "docs/start.md", *(f"docs/{name}.md" for name in TUTORIALS))
"""Pages that ``make test-docs`` runs; the guides take minutes more (``make exhaustive``)."""


def test_the_front_page_the_first_run_and_the_tutorials_are_marked() -> None:
    assert {*FIRST} <= {*RUN}


def test_every_mark_is_before_a_block() -> None:
    for page, blocks in RUN.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert text.count("<!-- run") == len(blocks), page


@pytest.mark.parametrize(
    "page", [pytest.param(one, marks=() if one in FIRST else pytest.mark.exhaustive) for one in RUN]
)
def test_the_marked_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": places, "HOME": str(tmp_path / "home")}
    for kind, text in RUN[page]:
        if kind and kind != "python":
            (tmp_path / kind).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / kind).write_text(text, encoding="utf-8")
            continue
        shell = [sys.executable, "-"] if kind else ["bash", "-euo", "pipefail"]
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ran = subprocess.run(shell, input=text, cwd=tmp_path, env=environment, text=True, **output)
        assert ran.returncode == 0, f"{page}:\n{text}\n{ran.stdout[-4000:]}"


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
