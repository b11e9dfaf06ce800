"""Who may import whom."""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("common", "server_app", "client_app", "deploy", "tests")
MAY_IMPORT = {
    "common": {"common"},
    "server_app": {"server_app", "common"},
    "client_app": {"client_app", "common"},
    "deploy": {"deploy", "common", "server_app", "client_app"},
}
COMPARES = re.compile(
    r"\b(is|is not|==|!=|in) (kinds\.)?(IMAGE|SIGNAL|TABLE)\b|\.(ndim|dim\(\)) [=!<>]=? [45]"
    r"|len\((task|dataset|data|pool|self)\.shape\) [=!<>]|kind\.name [=!]="
)
AT_HOME = ("common/data/", "common/models/", "common/data/noise.py")
DANGEROUS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__"}
RESTRICTED = "common/data/unpickle.py"  #: opens pickles itself, for arrays and nothing else
FLOWER = {"app", "serverapp", "clientapp"}  #: what Flower promises to keep
ROOMS = ("common/flower", "deploy/flower")  #: where another Flower series changes something


def imports(path: Path) -> set[str]:
    """Return what a file imports, also inside functions and under TYPE_CHECKING."""
    return set(imports_of(path.read_text()))


@cache
def imports_of(source: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_it_may(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        ours = {name.split(".")[0] for name in imports(path)} & set(OURS)
        assert ours <= MAY_IMPORT[package], f"{path} imports {ours - MAY_IMPORT[package]}"


def graph() -> dict[str, set[str]]:
    """Which of our modules each imports; a name from a module counts as that module."""
    files = {}
    for path in (path for package in OURS for path in (ROOT / package).rglob("*.py")):
        *folders, name = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(folders if name == "__init__" else [*folders, name])] = path
    found: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        for name in imports(path):
            while name and name not in files:
                name = name.rpartition(".")[0]
            found[module] |= {name} - {"", module}
    return found


LAYERS = {
    "common": "files progress metrics measures vision extras errors seeds settings journal "
    "exchange flower losses objectives data models training techniques methods keys names parse",
    "deploy": "log_lines user_modules report settings console flower run machines study "
    "leaderboard api docker cli fedmosaic",
}
"""Packages and modules of a room, each of which imports those before it and no others."""


@pytest.mark.parametrize("room", LAYERS)
def test_a_layer_imports_no_layer_above_it(room: str) -> None:
    heights = {f"{room}.{name}": i for i, name in enumerate(LAYERS[room].split())}
    for module, imported in graph().items():
        if not module.startswith(f"{room}."):
            continue
        layer = ".".join(module.split(".")[:2])
        below = {".".join(name.split(".")[:2]) for name in imported if name.startswith(f"{room}.")}
        above = {name for name in below if heights[name] > heights[layer]}
        assert not above, f"{module} imports {above}"


def test_few_files_compare_the_kind_of_input() -> None:
    """Everywhere else ``common/data/kinds.py`` answers, so that a new kind is one row there."""
    paths = [path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")]
    files = [path for path in paths if COMPARES.search(path.read_text(encoding="utf-8"))]
    comparing = [path.relative_to(ROOT).as_posix() for path in files]
    outside = sorted(path for path in comparing if not path.startswith(AT_HOME))
    dense, task, pictures = "methods/dense.py", "training/task.py", "deploy/study/pictures.py"
    assert outside == [f"common/{dense}", f"common/{task}", pictures]


def circle(modules: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the one before, or none."""
    try:
        graphlib.TopologicalSorter(modules).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", OURS)
def test_no_module_imports_itself_in_a_circle(package: str) -> None:
    modules = {name: of for name, of in graph().items() if name.split(".")[0] == package}
    assert circle(modules) == []


def test_circles_in_functions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "OURS", ("a",))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text("from a.b import f")
    (tmp_path / "a" / "b.py").write_text("import os.path")
    (tmp_path / "a" / "c.py").write_text("import a.b")
    assert graph() == {"a": {"a.b"}, "a.b": set(), "a.c": {"a.b"}} and not circle(graph())
    for block in ("def f():", "if TYPE_CHECKING:"):
        (tmp_path / "a" / "b.py").write_text(f"{block}\n    from a import c")
        assert sorted(circle(graph())[1:]) == ["a.b", "a.c"]


def test_no_test_imports_from_another_or_from_conftest() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for name in imports(path):
            words = name.split(".")[1:] if name.startswith("tests.") else []
            assert not any(w.startswith(("test_", "conftest")) for w in words), f"{path}: {name}"


@pytest.mark.parametrize("half", ["server_app", "client_app"])
def test_a_half_of_a_method_imports_no_half_of_another(half: str) -> None:
    for path in (ROOT / half / "methods").glob("[!_]*.py"):
        others = {name for name in imports(path) if name.startswith((f"{half}.methods.",))}
        assert not others, f"{path} imports {others}"


def test_a_half_is_named_as_its_contract() -> None:
    contracts = {path.name for path in (ROOT / "common/methods").glob("*.py")}
    for half in ("server_app", "client_app"):
        assert {path.name for path in (ROOT / half / "methods").glob("*.py")} <= contracts


def test_there_is_one_training_loop() -> None:
    for package in ("common", "server_app", "client_app"):
        for path in (ROOT / package).rglob("*.py"):
            calls = ".backward(" in path.read_text()
            assert not calls or path == ROOT / "common/training/fit.py", path


def test_the_client_app_imports_nothing_heavy_before_a_message_comes() -> None:
    top = {
        name.split(".")[0]
        for node in ast.parse((ROOT / "client_app/app.py").read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [a.name for a in node.names]
        )
    }
    assert top <= {"__future__", "logging", "collections", "typing", "flwr"}


def dangers(source: str) -> list[str]:
    """Ways in a module to run what a file or a message says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [name for name in names if name.split(".")[0] in DANGEROUS]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        allowed = given.get("allow_pickle", "False")
        if (
            name in CALLS
            or name in ("yaml.load", "yaml.unsafe_load")
            or (name == "torch.load" and given.get("weights_only") != "True")
            or (name.endswith("read_pickle"))
            or (allowed != "False")
        ):
            found.append(name)
    return found


def test_nothing_that_is_read_can_run_code() -> None:
    for package in ("common", "server_app", "client_app", "deploy"):
        for path in (ROOT / package).rglob("*.py"):
            allowed = ["pickle"] if path == ROOT / RESTRICTED else []
            assert dangers(path.read_text()) == allowed, path
    text = (ROOT / RESTRICTED).read_text()
    assert "def find_class(" in text and "pickle.load" not in text


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "eval('1')",
        "import pandas\npandas.read_pickle('x')",
        "__import__('os')",
    ],
)
def test_the_search_for_what_could_run_code_finds_it(source: str) -> None:
    assert dangers(source) != []
    assert dangers("net.eval(); np.load('x'); model.compile") == []


def internals(path: Path) -> set[str]:
    """Modules of Flower that are no part of its public interface."""
    flowers = {name.split(".")[1] for name in imports(path) if name.startswith("flwr.")}
    return flowers - FLOWER


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_flowers_internals_are_imported_in_two_folders(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        assert name.startswith(ROOMS) or not internals(path), f"{name} imports {internals(path)}"
