"""Files that are not as they were written: named, with what can still be done; and going back."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from deploy.run.verify import verify
from server_app.stopped import Stopped
from server_app.storage import checkpoint
from server_app.storage.journal import read_lines
from tests.support.commandline import completed, typed
from tests.support.tiny import TinyRun, flat, play

SMALL: dict[str, Any] = {"method": "fedorion", "clients": 2, "fleet": "mlp@0.25,mlp@0.5"}
SMALL |= {"rounds": 4, "keep": 3, "train__epochs": 1, "noise__batches": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(flat(tmp_path_factory.mktemp("whole") / "run", **SMALL)).folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return copytree(whole, tmp_path / "run")


def again(folder: Path, **changes: Any) -> TinyRun:
    return play(flat(folder, **{**SMALL, "resume": True, **changes}))


def flip(path: Path, share: float = 0.9) -> None:
    data = bytearray(path.read_bytes())
    for at in (int(share * len(data)), int(share * len(data)) + 1):
        data[at] ^= 1
    path.write_bytes(data)


def state_of(folder: Path, name: str) -> list[tuple[str, str]]:
    return [(one.state, one.detail) for one in verify(folder) if one.path.name == name]


def test_a_run_of_which_all_is_whole(run: Path) -> None:
    assert all(one.state != "damaged" for one in verify(run))
    assert state_of(run, "journal.jsonl") == [("whole", "rounds 0 to 4")]
    assert sorted(checkpoint.older(run)) == [2, 3]
    found = {one.path.relative_to(run).as_posix() for one in verify(run) if one.state == "whole"}
    kept = {f"state/test/{k}/{t}/private.Memory.safetensors" for k in (0, 1) for t in (1, 2, 3, 4)}
    models = {"model.safetensors", "checkpoint.safetensors", "journal.jsonl"}
    assert found == kept | models | {f"checkpoints/{t}.safetensors" for t in (2, 3)}


def test_files_without_digests_are_named(run: Path) -> None:
    (run / "report.html").write_text("<p>")
    (run / "checkpoints" / "notes.txt").write_text("?")
    (run / "mlruns").mkdir()
    for name in "ab":
        (run / "mlruns" / name).write_text("?")
    named = ["config.toml", "summary.json", "checkpoints/notes.txt"]
    named += ["confusion.json", "data.json", "mlruns", "model.json", "report.html"]
    named += [f"state/test/{k}/run.json" for k in (0, 1)] + ["status.json"]
    unproven = [one.path.relative_to(run).as_posix() for one in verify(run) if not one.proven]
    assert unproven == named
    done = completed("verify", run)
    line = f"13 files are proven by a digest; not covered by any digest: {', '.join(named)}"
    assert done.stdout.splitlines()[-1] == line
    flip(run / "model.safetensors")
    done = typed("verify", run, "--json")
    answers = json.loads(done.stdout)
    files = {"journal.jsonl", "checkpoint.safetensors", "private.Memory.safetensors"}
    files |= {"2.safetensors", "3.safetensors"}
    assert {Path(one["path"]).name for one in answers if one["proven"]} == files
    states = {(one["state"], one["proven"]) for one in answers}
    assert states == {("whole", True), ("unproven", False), ("damaged", False)}
    assert "12 files are proven by a digest" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("; damaged: model.safetensors")


def test_going_back_gives_the_same_bits(run: Path) -> None:
    before = TinyRun(run)
    assert before.weights and before.timeless
    back = again(run, from_round=2)
    assert back.timeless == before.timeless and back.weights == before.weights
    assert [json.loads(line)["round"] for line in (run / "journal.jsonl").open()] == [0, 1, 2, 3, 4]
    assert all(one.state != "damaged" for one in verify(run))
    line = "from-round = 1: .* has no checkpoint of it; kept are 2, 3, 4"
    with pytest.raises(Stopped, match=line):
        again(run, from_round=1)


def test_keeping_one_leaves_what_a_repeated_round_needs(tmp_path: Path) -> None:
    one = play(flat(tmp_path, **{**SMALL, "keep": 1, "rounds": 3})).folder
    assert not (one / "checkpoints").exists()
    assert sorted(path.name for path in (one / "state/test/0").glob("[0-9]*")) == ["2", "3"]


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        (
            "checkpoint.safetensors",
            "checkpoint.safetensors cannot be read: it is damaged: its digest does not match its",
            "it is damaged: its digest does not match its content",
        ),
        (
            "state/test/1/4/private.Memory.safetensors",
            r"client 1: .*Memory.safetensors cannot be read: it is dama",
            "the state of client 1 after round 4: it is damaged",
        ),
    ],
)
def test_a_flipped_bit_is_named_and_undone(file: str, line: str, told: str, run: Path) -> None:
    before = TinyRun(run)
    assert before.weights
    flip(run / file)
    back = f"go back to round 3: fedmosaic run --resume {run} --from-round 3"
    with pytest.raises(Stopped, match=line) as stopped:
        again(run, rounds=5)
    assert back in str(stopped.value) or file != "checkpoint.safetensors"
    (damaged,) = (said for state, said in state_of(run, Path(file).name) if state == "damaged")
    assert told in damaged and damaged.endswith(back)
    mended = again(run, from_round=3)
    assert mended.weights == before.weights and mended.timeless == before.timeless


def test_a_flipped_bit_in_the_model_is_named(run: Path) -> None:
    flip(run / "model.safetensors")
    done = typed("verify", run)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("damaged"))
    assert "model.safetensors: is damaged: its digest does not match its weights; remove" in line
    (run / "summary.json").unlink()
    again(run)
    assert all(one.state != "damaged" for one in verify(run))


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


def replaced(i: int, line: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[:i], line, *lines[i + 1 :]]


@pytest.mark.parametrize(
    ("damage", "said", "todo"),
    [
        (replaced(2, b"[1,2]\n"), "line 3 is damaged: it is no entry", "--from-round 2"),
        (replaced(2, b'{"x":1}\n'), "line 3 is damaged: it is no entry", "--from-round 2"),
        (replaced(3, b'{"round":\xff}\n'), "line 4 is damaged: .*byte 0xff", "round 3"),
        (lambda x: [*x[:2], *x[3:]], "line 3 is damaged: it is for round 3", "--from-round 2"),
        (lambda x: [*x[:3], *x[2:]], "line 4 is damaged: it is for round 2", "--from-round 3"),
        (lambda x: x[:3], "lacks rounds before 4", "--from-round 3"),
        (lambda x: x[:1], "lacks rounds before 4", "cannot go on: start the run anew"),
        (
            lambda x: [line.replace(b'"loss": ', b'"loss": 1') for line in x],
            "line 1 is damaged: its digest does not match its text",
            "cannot go on: start the run anew",
        ),
    ],
)
def test_a_damaged_journal_is_one_line_with_what_can_be_done(
    damage: Callable[[list[bytes]], list[bytes]], said: str, todo: str, run: Path
) -> None:
    (run / "journal.jsonl").write_bytes(b"".join(damage(lines_of(run))))
    with pytest.raises(Stopped) as stopped:
        again(run, rounds=5)
    line = str(stopped.value)
    assert f"{run}/journal.jsonl" in line and re.search(said, line) and "\n" not in line
    assert todo in line and "the checkpoint is kept" not in line
    ((state, told),) = state_of(run, "journal.jsonl")
    assert state == "damaged" and (todo in told or "checkpoint" in told)


def test_journals_of_earlier_releases_are_read_and_go_on(run: Path) -> None:
    before, journal = TinyRun(run).timeless, run / "journal.jsonl"
    plain = [line.entry.line() for line in read_lines(journal) if line.entry]
    journal.write_text("\n".join(plain) + "\n")
    assert state_of(run, "journal.jsonl") == [("unproven", "rounds 0 to 4, without digests")]
    bodies = [f'{line[:-1]}, "follows": "{i:064}"' for i, line in enumerate(plain)]
    digests = [hashlib.sha256(f"{body}}}".encode()).hexdigest() for body in bodies]
    chain = [f'{body}, "digest": "{d}"}}\n' for body, d in zip(bodies, digests, strict=True)]
    journal.write_text("".join([plain[0] + "\n", *chain[1:]]))
    assert [line.why for line in read_lines(journal)] == [""] * 5
    assert again(run, rounds=5).timeless[:5] == before
    assert [line.proven for line in read_lines(journal)] == [False] + [True] * 5
