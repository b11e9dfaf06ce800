"""Who may import whom."""

from __future__ import annotations

import ast
import graphlib
import statistics
from collections.abc import Iterator
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


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs: all of ``tree``, also inside functions, but nothing under TYPE_CHECKING."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for branch in child.orelse:
                yield from nodes(branch)
        else:
            yield from nodes(child)


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


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


def circle(modules: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the one before, or none."""
    try:
        graphlib.TopologicalSorter(modules).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circle(graph()) == []


def test_the_search_for_circles_sees_functions_and_passes_over_type_checking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "OURS", ("a",))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text("from a.b import f")
    (tmp_path / "a" / "b.py").write_text("if TYPE_CHECKING:\n    from a import c\nimport os.path")
    (tmp_path / "a" / "c.py").write_text("import a.b")
    assert graph() == {"a": {"a.b"}, "a.b": set(), "a.c": {"a.b"}}
    (tmp_path / "a" / "b.py").write_text("def f():\n    from a import c")
    assert sorted(circle(graph())[1:]) == ["a.b", "a.c"]


def test_no_test_imports_from_another_or_from_conftest() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for name in imports(path):
            last = name.split(".")[1:2] if name.startswith("tests.") else []
            assert last in ([], ["support"], ["bench"]), f"{path} imports {name}"


@pytest.mark.parametrize("half", ["server_app", "client_app"])
def test_a_half_of_a_method_imports_no_half_of_another(half: str) -> None:
    for path in (ROOT / half / "methods").glob("[!_]*.py"):
        others = {name for name in imports(path) if name.startswith((f"{half}.methods.",))}
        assert not others, f"{path} imports {others}"


def test_a_half_is_named_as_its_contract() -> None:
    contracts = {path.name for path in (ROOT / "common/methods").glob("*.py")}
    for half in ("server_app", "client_app"):
        assert {path.name for path in (ROOT / half / "methods").glob("*.py")} <= contracts


def code_lines(path: Path) -> int:
    """Lines that are neither blank nor a comment, a docstring or an import."""
    if not path.exists():
        return 0
    text = path.read_text()
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or said:
            told |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(i not in told and bool(line.split("#")[0].strip()) for i, line in lines)


def test_a_method_is_short() -> None:
    halves = ("common", "server_app", "client_app")
    sizes = {
        path.stem: sum(code_lines(ROOT / half / "methods" / path.name) for half in halves)
        for path in (ROOT / "common/methods").glob("[!_]*.py")
    }
    assert sizes["fedavg"] <= 40
    assert statistics.median(sizes.values()) <= 65
    assert max(sizes.values()) <= 200, max(sizes, key=lambda name: sizes[name])


def test_there_is_one_training_loop() -> None:
    for package in ("common", "server_app", "client_app"):
        for path in (ROOT / package).rglob("*.py"):
            calls = ".backward(" in path.read_text()
            assert not calls or path == ROOT / "common/fit.py", path


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


DANGEROUS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "compile", "__import__"}


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


RESTRICTED = "common/data/unpickle.py"  #: opens pickles itself, for arrays and nothing else


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


FLOWER = {"app", "serverapp", "clientapp"}  #: what Flower promises to keep
ROOMS = ("common/flower", "deploy/flower")  #: where another Flower series changes something
IN_FLOWERS_PLACE = {
    "tests/bench/peers/flower_app.py": "runs Flower's own simulation",
    "tests/docker/test_docker.py": "answers a health check as Flower's programs do",
    "tests/machines/test_admission.py": "is a SuperLink's Fleet API",
    "tests/machines/test_machines.py": "is a SuperLink's Control API",
    "tests/machines/test_certificates.py": "is a ClientApp's process",
    "tests/records/test_records.py": "counts the bytes of Flower's own serialiser",
    "tests/run/test_grpc.py": "reads arguments as Flower reads them",
    "tests/run/test_supernode.py": "is the SuperNode's loop",
    "tests/run/test_warm.py": "is a SuperNode",
    "tests/support/relay.py": "is a SuperLink that lies",
    "tests/support/slow/sitecustomize.py": "is a SuperNode that sends slowly",
    "tests/support/usurper.py": "is a SuperNode in another's name",
    "tests/talk/test_halfway.py": "is a SuperLink that keeps a part back",
    "tests/talk/test_spool.py": "pulls and puts together as Flower's grid does",
    "tests/talk/test_hostile_runs.py": "answers as a SuperLink whose message has expired",
}


def internals(path: Path) -> set[str]:
    """Modules of Flower that are no part of its public interface."""
    flowers = {name.split(".")[1] for name in imports(path) if name.startswith("flwr.")}
    return flowers - FLOWER


@pytest.mark.parametrize("package", OURS)
def test_flowers_internals_are_imported_in_two_folders(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        allowed = name.startswith(ROOMS) or name in IN_FLOWERS_PLACE
        assert allowed or not internals(path), f"{name} imports {internals(path)} of flwr"


def test_who_is_excepted_from_it_imports_them() -> None:
    for name in IN_FLOWERS_PLACE:
        assert internals(ROOT / name), f"{name} needs no exception"
