"""Reference pages: commands, settings, the Python API, and messages by error."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer.main

from common.settings.version import ROOT
from deploy.cli import app
from deploy.report.listing import described
from docs.tools.method_page import settings_table

OURS = ("common", "server_app", "client_app", "deploy")
API = """# Python functions

This page has the functions and classes of `import fedmosaic`.
[Python and notebooks](../python.md) introduces them.

::: deploy.api
"""


def pages() -> dict[str, str]:
    """Return the reference pages as text by path."""
    return {
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/api.md": API,
        "reference/errors.md": errors(),
    }


def commands() -> str:
    """Return the page of all commands with their arguments and options."""
    lines = ["# Commands", "", "This page has every command of `fedmosaic` with its options."]
    for name, command in _commands("fedmosaic", typer.main.get_command(app)):
        lines += ["", f"## {name}", "", _plain(command.help or "")]
        rows = [_parameter(one) for one in command.params if one.name != "help"]
        if rows:
            lines += ["", "| argument or option | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield the complete name of each command that is no group."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
    for child, value in (children or {}).items():
        if not value.hidden:
            yield from _commands(f"{name} {child}", value)


def _parameter(one: click.Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in one.opts) if one.opts[0][0] == "-" else ""
    names = names or f"`{(one.name or '').upper()}`"
    return f"| {names} | {_plain(getattr(one, 'help', '') or '')} |"


def _plain(text: str) -> str:
    return re.sub(r"([|<*\[_])", r"\\\1", " ".join(text.split()))


def settings() -> str:
    """Return the page of all settings by table."""
    lines = [
        "# Settings",
        "",
        "This page has every setting with its default, what is allowed and its meaning, by table.",
        "`fedmosaic list settings WORD` searches them; each method's page has the ones it reads.",
    ]
    for table, known in itertools.groupby(described(), lambda one: one.key.rpartition(".")[0]):
        lines += ["", f"## {f'[{table}]' if table else 'Top level'}", "", settings_table([*known])]
    return "\n".join(lines) + "\n"


def errors() -> str:
    """Return the page of the messages with which a run or command is refused."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py")):
        for text in _messages(path):
            found.setdefault(text, []).append(path.relative_to(ROOT).as_posix())
    lines = [
        "# Messages by error",
        "",
        "This page has the messages with which `fedmosaic` refuses something, so that a search for "
        "a few of their words finds the file that explains them. … stands for a value.",
        "",
        "| message | file |",
        "|---|---|",
    ]
    for text, files in sorted(found.items(), key=lambda one: one[0].lstrip("… ").lower()):
        lines.append(f"| {_plain(text)} | {', '.join(f'`{file}`' for file in files)} |")
    return "\n".join(lines) + "\n"


def _messages(path: Path) -> Iterator[str]:
    """Yield the texts of the errors that a module raises, with … for each value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and ast.unparse(node.exc.func) in ("ValueError", "RuntimeError", "Stopped")
            and node.exc.args
        ):
            text = " ".join(_text(node.exc.args[0]).split())
            if len(re.findall(r"\w{2,}", text)) > 1:
                yield text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(piece) for piece in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"
