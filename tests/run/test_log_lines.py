"""``--log-format`` and ``--log-level``: lines of Flower's programs and of ours."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from common.settings.version import ROOT
from deploy.log_lines import converted
from tests.support.commandline import error_of, fedmosaic

LINES = [
    "\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode\n",
    *("DEBUG 2026-11-26 07:21:27,123:    debugging\n", 'WARNING :   it says "no"\n', "\n"),
    *("error: no key\n", "Traceback (most recent call last):\n", "  File 'x'\n"),
    "client 0 of 3 for fed.example.org:9092\n",
]
LEVELS = ["info", "debug", "warning", "error", "error", "error", "info"]
MESSAGES = ["Starting Flower SuperNode", "debugging", 'it says "no"', "no key"]
BECOMES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from deploy.log_lines import convert_output
convert_output("json", "info")
print("INFO :      before", flush=True)
os.execvp("sh", ["sh", "-c", "echo 'ERROR :     after'; echo beside >&2; kill -TERM 0; exit 3"])
"""
JSON = ["--superlink", "127.0.0.1:1", "--insecure", "--log-format", "json"]


def test_each_line_becomes_an_object_with_the_level_that_it_names() -> None:
    objects = [json.loads(line) for line in converted(LINES, "json", "debug")]
    assert [one["level"] for one in objects] == LEVELS
    assert [one["message"] for one in objects][:4] == MESSAGES
    assert objects[5]["message"] == "  File 'x'", "indentation stays"
    age = datetime.now(UTC) - datetime.fromisoformat(objects[0]["time"])
    assert 0 <= age.total_seconds() < 3600


@pytest.mark.parametrize(("level", "kept"), [("info", 6), ("warning", 4), ("error", 3)])
def test_lines_below_the_level_are_left_out_in_both_formats(level: str, kept: int) -> None:
    assert len(list(converted(LINES, "json", level))) == kept
    text = list(converted(LINES, "text", level))
    assert len(text) == kept and set(text) <= set(LINES)


def test_a_program_that_the_command_becomes_is_converted_up_to_its_last_line() -> None:
    line = [sys.executable, "-c", BECOMES, str(ROOT)]
    done = subprocess.run(line, capture_output=True, text=True, start_new_session=True)
    objects = [json.loads(text) for text in done.stdout.splitlines()]
    found = [(one["level"], one["message"]) for one in objects]
    assert found == [("info", "before"), ("error", "after"), ("info", "beside")]
    assert done.returncode == -15 and done.stderr == ""


@pytest.mark.full
def test_an_error_is_json_on_the_stream_of_the_commands_log() -> None:
    node = fedmosaic("node", *JSON, "--clients", 1, "--k", 5)
    submit = fedmosaic("submit", *JSON, "-s", "rounds=0", "--json")
    assert (node.returncode, node.stderr) == (submit.returncode, submit.stdout) == (1, "")
    for line, said in (
        (node.stdout, "--k 5 is not allowed"),
        (submit.stderr, "rounds = 0 is not allowed"),
    ):
        assert json.loads(line)["level"] == "error", line
        assert json.loads(line)["message"].startswith(said), line


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--log-format=xml", "'xml' is not one of 'text', 'json'"),
        ("--log-level=loud", "'loud' is not one of 'debug', 'info', 'warning', 'error'"),
    ],
)
def test_an_unknown_format_or_level_is_one_line(option: str, line: str) -> None:
    error = error_of("node", "--superlink", "a:1", "--insecure", "--clients", 1, "--k", 0, option)
    assert error.startswith("error: ") and line in error
