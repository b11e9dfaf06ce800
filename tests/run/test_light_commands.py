"""Commands by purpose, their lists and searches, and commands that leave torch unimported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from common.settings.version import ROOT
from deploy.flower.bundle import digest
from deploy.report import chooser, listing
from deploy.settings import DEFAULT, read
from docs.tools import generate
from tests.support.commandline import error_of, typed
from tests.support.own_modules import ONE_MODULE, package

LISTS = [*listing.HEADERS, "settings", "settings fedprox", "settings dirichlet"]
LIGHT = [*(f"list {kind}" for kind in LISTS), "--help", "run --help", "study --help"]
LIGHT += [
    "study regions --help",
    "study traces F --out T",
    "local --help",
    "certs made",
    "app-digest",
    "noise",
    "list cats",
]
LIGHT += ["list methods --rounds one", "stop --insecure --superlink 127.0.0.1:1 --wait 0"]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from deploy.cli import main
for line in sys.argv[2:]:
    sys.argv = ["fedmosaic", *line.split()]
    print("#", line, flush=True)
    try:
        main()
    except SystemExit:
        pass
    assert "torch" not in sys.modules, line
"""


@pytest.mark.full
def test_light_commands_import_no_torch_and_lists_fit_80_columns(tmp_path: Path) -> None:
    line = [sys.executable, "-c", SCRIPT, str(ROOT), *LIGHT]
    env = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "ca.crt").exists()
    outputs = dict(part.split("\n", 1) for part in done.stdout.split("# ")[1:])
    assert len(outputs["app-digest"].strip()) == 64
    for kind in LISTS:
        lines = outputs[f"list {kind}"].splitlines()
        assert lines and max(map(cell_len, lines)) <= 80, kind


def test_the_built_lists_are_those_of_the_registries() -> None:
    lists = chooser.FILE.read_text(encoding="utf-8")
    assert lists == generate.listing_text(), "run python -m docs.tools.generate"


def test_settings_are_found_by_key_and_description() -> None:
    found = json.loads(typed("list", "settings", "Dirichlet", "--json").stdout)
    assert [setting["key"] for setting in found] == ["data.alpha"]
    assert "train.lr-decay" in {setting.key for setting in listing.search("lr-decay")}
    error = error_of("list", "settings", "fedpox")
    assert error.startswith("error: list settings fedpox: no method has this name, and no")
    assert "did you mean 'fedprox'?" in error


def test_help_groups_commands_by_purpose_and_describes_arguments() -> None:
    text = typed("--help").stdout
    headings = [text.index(f"─ {name} ─") for name in ("Run", "Compare", "Deploy", "Inspect")]
    assert headings == sorted(headings)
    assert headings[1] < text.index(" study ") < headings[2] < text.index(" submit ") < headings[3]
    assert "A TOML file, or the name of a" in typed("run", "--help").stdout


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("wrong", 1, "fedmosaic has no command 'wrong'; allowed: run, data, table,"),
        ("study wrong", 1, "fedmosaic study has no command 'wrong'; allowed: regions,"),
        ("stop abc", 2, "'abc' is not a valid integer; see fedmosaic stop --help"),
        ("run --nope", 2, "No such option '--nope'; see fedmosaic run --help"),
        ("run fedorion_smal", 1, "fedorion_smal does not exist; bundled are fedorion_toy,"),
        ("claims fedin", 1, "belongs to the papers' tables: in a checkout, python -m tests.papers"),
        ("study noise", 1, "in a checkout, python -m tests.papers figures noise"),
        ("study information --seeds 1", 1, "in a checkout, python -m tests.papers"),
    ],
)
def test_a_mistyped_command_line_is_one_line(words: str, status: int, line: str) -> None:
    done = typed(*words.split())
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("error: ") and line in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_command_the_help_is_printed() -> None:
    done = typed()
    assert done.returncode == 2 and "Usage: fedmosaic" in done.stdout + done.stderr


def test_the_digest_of_the_code_depends_on_names_nodes_and_modules_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    file = tmp_path / "own.toml"
    file.write_text("rounds = 2\n[node.1]\nsize = 1\nthreads = 2\n")
    name = package(tmp_path, {"factor": ONE_MODULE})
    digests = set()
    for experiment, overrides in (
        (DEFAULT, ["rounds=3"]),
        (file, ["node.2.size=1"]),
        (file, [f"method={name}:factor"]),
    ):
        chosen = read(experiment, overrides)
        digests.add(digest(chosen.shipped()))
        assert digest(chosen.shipped()) == digest(chosen.resolve())
    assert len(digests) == 3
    assert digest(read(DEFAULT).shipped()) in digests
    with pytest.raises(ValueError, match="key 'roundz' is unknown"):
        read(DEFAULT, ["roundz=3"]).shipped()
