"""``python -m tests.bench.mutants draw|run``: do the tests notice a small mistake in the code?

``draw`` chooses mutants over all folders of the code by a seed and writes ``mutants.json``. A
mutant is one change of one line: another sign, a skipped check, a swapped index, or an off-by-one.
``run CHECKOUT`` applies each to a checkout with an environment of its own, runs the tests until one
fails, first those of modules that name the changed module, then all others, and takes the change
back. A mutant that changes nothing a user can see is marked ``equivalent`` by hand and replaced by
the next draw (``draw --more``).
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("mutants.json")
SEED, NUMBER = 20261128, 30
ROOMS = ("common", "server_app", "client_app", "deploy")
SIGNS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
BOUNDS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
}
PATIENCE = 1800.0  #: seconds for the tests of one mutant, one of which may wait for ever
TIERS = ("not full and not docs", "full", "docs")


def changes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield each possible change of a file: its kind, its line, and the text before and after."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        for kind, part, after in _changed(node):
            before = ast.get_source_segment(text, part) or ""
            where = {"file": path.relative_to(ROOT).as_posix(), "line": part.lineno}
            yield {"kind": kind, **where, "before": before, "after": ast.unparse(after)}


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield kind, changed expression and what replaces it."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.BinOp) and type(new.op) in SIGNS and _numeric(new):
        new.op = SIGNS[type(new.op)]()
        yield "sign", node, new  # type: ignore[misc]
    elif isinstance(new, ast.Compare) and type(new.ops[0]) in BOUNDS and len(new.ops) == 1:
        new.ops = [BOUNDS[type(new.ops[0])]()]
        yield "bound", node, new  # type: ignore[misc]
    elif isinstance(node, ast.If) and any(isinstance(n, ast.Raise) for n in node.body):
        yield "skipped check", node.test, ast.Constant(False)
    elif isinstance(new, ast.Subscript) and isinstance(new.ctx, ast.Load):
        at = new.slice.value if isinstance(new.slice, ast.Constant) else None
        if at in (0, 1) and not isinstance(at, bool):
            new.slice = ast.Constant(1 - int(bool(at)))
            yield "index", node, new  # type: ignore[misc]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "range" and node.args:
        last = node.args[-1]
        yield "off by one", last, ast.BinOp(last, ast.Sub(), ast.Constant(1))


def _numeric(node: ast.BinOp) -> bool:
    """Return whether an operation is one of numbers, as far as its text says."""
    parts = [n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.JoinedStr | ast.List)]
    return not any(not isinstance(getattr(p, "value", ""), int | float) for p in parts)


def drawn(number: int) -> list[dict[str, Any]]:
    """Return ``number`` mutants: the folders in turn, one change of one file of each."""
    source = random.Random(SEED)
    folders = sorted({p.parent for room in ROOMS for p in (ROOT / room).rglob("*.py")})
    folders = [f for f in folders if any(True for p in f.glob("*.py") for _ in changes(p))]
    source.shuffle(folders)
    found: list[dict[str, Any]] = []
    while len(found) < number:
        for folder in folders[: number - len(found)]:
            every = [c for path in sorted(folder.glob("*.py")) for c in changes(path)]
            found.append(source.choice(every))
    return found


def mirrors(checkout: Path, file: str) -> list[str]:
    """Return the test modules that name the changed module, those with its name first."""
    package, _, name = file.removesuffix(".py").replace("/", ".").rpartition(".")
    wanted = re.compile(rf"\b{package}\.{name}\b|from {package} import [^\n]*\b{name}\b")
    found = []
    for path in sorted((checkout / "tests").rglob("test_*.py")):
        if wanted.search(path.read_text(encoding="utf-8")) or name in path.stem:
            found.append(path.relative_to(checkout).as_posix())
    return sorted(found, key=lambda path: name not in path)


def play(mutant: dict[str, Any], checkout: Path, jobs: str, whole: bool) -> str:
    """Return the first test that fails with a mutant; an empty text if none does."""
    path = checkout / mutant["file"]
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    before, rest = "".join(lines[: mutant["line"] - 1]), "".join(lines[mutant["line"] - 1 :])
    assert mutant["before"] in rest, mutant
    path.write_text(before + rest.replace(mutant["before"], mutant["after"], 1), encoding="utf-8")
    command = [str(checkout / ".venv/bin/python"), "-m", "pytest", "-q", "-x", "-n", jobs]
    command += ["-p", "no:cacheprovider", "--dist", "worksteal"]
    try:
        for some in [mirrors(checkout, mutant["file"]), *[[]] * whole]:
            for tier in TIERS if some or whole else ():
                line = [*command, "-m", tier, *some]
                status, shown = _run(line, checkout)
                failed = [x for x in shown.splitlines() if x.startswith(("FAILED", "ERROR"))]
                if failed or status not in (0, 5):
                    return (failed or [f"pytest ended with status {status}"])[0][:200]
    finally:
        path.write_text(text, encoding="utf-8")
    return ""


def _run(command: list[str], checkout: Path) -> tuple[int, str]:
    """Return status and output of a command; -9 if it had to be ended, with what it started."""
    process = subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        shown, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        shown, _ = process.communicate()
    return process.returncode, shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("command", choices=("draw", "run"))
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--file", type=Path, default=FILE, help="list of mutants, and results")
    parser.add_argument("--key", default="caught by", help="name of the result in the file")
    parser.add_argument("--more", type=int, default=0, help="with draw: mutants beyond the number")
    parser.add_argument("--jobs", default="auto", help="processes that run tests")
    parser.add_argument("--whole", action="store_true", help="all tests, if those of it all pass")
    given = parser.parse_args()
    if given.command == "draw":
        mutants = drawn(NUMBER + given.more)
        given.file.write_text(json.dumps(mutants, indent=1, ensure_ascii=False) + "\n")
        return
    mutants = json.loads(given.file.read_text())
    for i, mutant in enumerate(mutants):
        if not mutant.get(given.key) and not mutant.get("equivalent"):
            found = play(mutant, given.checkout.resolve(), given.jobs, given.whole)
            mutant[given.key] = found
            given.file.write_text(json.dumps(mutants, indent=1, ensure_ascii=False) + "\n")
            where = f"{mutant['file']}:{mutant['line']} {mutant['kind']}"
            print(f"{i}: {where}: {found or 'not caught'}", flush=True)


if __name__ == "__main__":
    main()
