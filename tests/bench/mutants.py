"""``python -m tests.bench.mutants draw|run``: do the tests notice a small mistake in the code?

``draw`` chooses mutants over all folders of the code by a seed and writes ``mutants.json``. A
mutant is one change of one line: another sign, a skipped check, a swapped index, or an off-by-one.
``run`` applies each to a clone of the checkout and runs the two tiers of tests until one fails:
first those that mirror the changed file, then all others. A mutant that changes nothing a user can
see is marked ``equivalent`` by hand and replaced by the next draw (``draw --more``).
"""

import argparse
import ast
import copy
import json
import random
import subprocess
import sys
import tempfile
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
TIERS = ("not full and not exhaustive and not faults and not hostile and not containers", "full")


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


def mirrors(file: str) -> list[str]:
    """Return the test modules to run first: those that name the changed module."""
    module = file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    words = (module, f"from {package} import")
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if module in text or (words[1] in text and name in text):
            found.append(path.relative_to(ROOT).as_posix())
    return found


def play(mutant: dict[str, Any], python: str) -> str:
    """Return the first test that fails with a mutant; an empty text if none does."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as temporary:
        place = Path(temporary) / "fedmosaic"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(place)], check=True)
        path = place / mutant["file"]
        text = path.read_text(encoding="utf-8").splitlines(keepends=True)
        start = mutant["line"] - 1
        rest = "".join(text[start:])
        assert mutant["before"] in rest, mutant
        changed = rest.replace(mutant["before"], mutant["after"], 1)
        path.write_text("".join(text[:start]) + changed, encoding="utf-8")
        first = [name for name in mirrors(mutant["file"]) if (place / name).exists()]
        for some in (first, []):
            for tier in TIERS:
                line = [python, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider"]
                line += ["--dist", "worksteal", "-m", tier, *some]
                done = subprocess.run(line, cwd=place, capture_output=True, text=True)
                failed = [x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
                if failed:
                    return failed[0].split(" - ")[0]
                if done.returncode not in (0, 5):
                    return f"pytest ended with status {done.returncode}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("command", choices=("draw", "run"))
    parser.add_argument("--key", default="caught by", help="name of the result in the file")
    parser.add_argument("--more", type=int, default=0, help="with draw: mutants beyond the number")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    if given.command == "draw":
        FILE.write_text(json.dumps(drawn(NUMBER + given.more), indent=1, ensure_ascii=False) + "\n")
        return
    mutants = json.loads(FILE.read_text())
    for i, mutant in enumerate(mutants):
        if given.key not in mutant and not mutant.get("equivalent"):
            mutant[given.key] = play(mutant, given.python)
            FILE.write_text(json.dumps(mutants, indent=1, ensure_ascii=False) + "\n")
            where = f"{mutant['file']}:{mutant['line']} {mutant['kind']}"
            print(f"{i}: {where}: {mutant[given.key] or 'not caught'}", flush=True)


if __name__ == "__main__":
    main()
