"""The papers' claims: the files are whole, verdicts follow from records, stale ones are named."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.run import launch, settings
from deploy.study import canary, claims, claims_page, paper_table, records
from deploy.study.canary import Canaries
from deploy.study.claims import Verdict
from deploy.study.records import Recorded
from tests.support.commandline import fedmosaic, typed
from tests.support.small_table import TABLE

CLAIM = """
paper = "P"
source = "abstract"
[[claim]]
name = "a-above-b"
section = "abstract"
says = "A is above B."
[[claim.test]]
table = "ours"
above = "A"
below = ["B"]
column = ["C"]
"""
HIGH, LOW = [5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 1.1, 1.0, 0.9, 1.0]


class Scene:
    """A table, its record, and a file of claims about it."""

    def __init__(self, folder: Path) -> None:
        self.table, self.records = folder / "ours.toml", folder / "results"
        text = TABLE.replace("seeds", 'unit = ""\nseeds', 1)
        self.table.write_text(f'{text}measure = "rounds_to_target.first"\nset = {{ rounds = 4 }}\n')
        self.cells: dict[str, Recorded] = {}
        (folder / "claims").mkdir()
        self.file = folder / "claims" / "p.toml"
        self.file.write_text(CLAIM)
        (self.records / "ours").mkdir(parents=True)

    def record(self, column: str = "C", **rows: Any) -> None:
        left = {row: iter(values) for row, values in rows.items()}
        for cell in paper_table.cells(paper_table.read(self.table)):
            for value in islice(left.get(cell.row, ()) if cell.column == column else (), 1):
                target = {"target": 0.5, "first": value}
                self.cells[cell.fingerprint] = Recorded(
                    fingerprint=cell.fingerprint,
                    settings={},
                    seed=cell.seed,
                    summary={"accuracy": {"final": value}, "rounds_to_target": target},
                )
        lines = (one.line() for one in self.cells.values())
        (self.records / "ours" / records.NAME).write_bytes(b"".join(lines))

    def changed(self, **changes: str) -> None:
        text = self.file.read_text()
        for old, new in changes.items():
            assert f"\n{old} = " in text
            lines = [new if line.startswith(f"{old} = ") else line for line in text.splitlines()]
            text = "\n".join(lines)
        self.file.write_text(text)

    def judge(self, **old: str) -> claims.Judged:
        papers = claims.read(self.file.parent)
        (one,) = claims.judge(papers, claims.Records(self.records), old)
        return one


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(settings, "EXPERIMENTS", tmp_path)
    return Scene(tmp_path)


def test_an_order_follows_from_the_record(scene: Scene) -> None:
    scene.record(A=HIGH, B=LOW)
    assert scene.judge().verdict is Verdict.HOLDS and scene.judge().tests[0].kept
    scene.record(A=LOW, B=HIGH)
    assert scene.judge().verdict is Verdict.OPPOSITE
    scene.changed(column='column = ["C"]\nbetter = "lower"')
    assert scene.judge().verdict is Verdict.HOLDS


def test_what_is_not_recorded_with_all_seeds_is_undecided(scene: Scene) -> None:
    assert scene.judge().verdict is Verdict.UNDECIDED
    scene.record(A=HIGH, B=LOW[:4])
    one = scene.judge()
    assert one.verdict is Verdict.UNDECIDED and one.tests[0].decision.seeds == 0
    assert "without five seeds" in str(claims_page.summary([one]).rows[0][-1])


def test_rows_with_ten_seeds_decide_what_five_leave_open(scene: Scene) -> None:
    ten = "seeds = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    low, high = [1.0, 1.2] * 5, [1.1, 1.1, 1.0, 1.4, 1.1, *([1.6] * 5)]
    scene.record(A=high[:5], B=low[:5])
    assert scene.judge().verdict is Verdict.UNDECIDED
    text = scene.table.read_text().replace('name = "A"', f'name = "A"\n{ten}')
    scene.table.write_text(text)
    assert scene.judge().tests[0].decision.seeds == 0, "of A only five of ten are recorded"
    scene.record(A=high, B=low[:5])
    one = scene.judge()
    assert one.verdict is Verdict.UNDECIDED and one.tests[0].decision.seeds == 5
    scene.table.write_text(text.replace('name = "B"', f'name = "B"\n{ten}'))
    scene.record(A=high, B=low)
    one = scene.judge()
    assert one.verdict is Verdict.HOLDS and one.tests[0].decision.seeds == 10
    scene.table.write_text(text.replace(ten, "seeds = [2, 3, 4, 5, 6]"))
    with pytest.raises(ValueError, match=r"the seeds of 'A' do not begin with \[1, 2, 3, 4, 5\]"):
        scene.judge()


def test_sizes_and_margins(scene: Scene) -> None:
    scene.record(A=[2.5, 2.4, 2.6, 2.5, 2.5], B=[1.0] * 5)
    scene.changed(says='says = "A is 150 % above B."\nkind = "size"\nrange = [120.0, 180.0]')
    one = scene.judge()
    assert one.verdict is Verdict.HOLDS
    assert one.tests[0].decision.mean == pytest.approx(150.0)
    scene.changed(range="range = [10.0, 100.0]")
    assert scene.judge().verdict is Verdict.OPPOSITE
    scene.changed(kind='kind = "comparable"\nmargin = 2.0', range="")
    assert scene.judge().verdict is Verdict.HOLDS


def test_a_difference_may_be_compared_with_that_of_another_column(scene: Scene) -> None:
    scene.record(A=HIGH, B=LOW)
    scene.record("rounds", A=[2.0] * 5, B=[1.9] * 5)
    scene.changed(column='column = ["C"]\nbeyond = "rounds"')
    (test,) = scene.judge().tests
    assert test.column == "C beyond rounds"
    gains = [a - b - 0.1 for a, b in zip(HIGH, LOW, strict=True)]
    assert test.decision.mean == pytest.approx(sum(gains) / 5)
    scene.changed(beyond='beyond = "R"')
    with pytest.raises(ValueError, match="ours has no column 'R'; it has C, rounds"):
        scene.judge()


def test_a_claim_that_was_written_after_its_record_is_marked_or_needs_more(scene: Scene) -> None:
    scene.record(A=HIGH, B=LOW)
    assert "†" not in str(claims_page.summary([scene.judge()]).rows[0])
    scene.changed(says='says = "A is above B."\nseen = true')
    one = scene.judge()
    assert "holds here †" in claims_page.summary([one]).rows[0]
    assert claims_page.as_json([one])[0]["seen"] is True
    scene.file.write_text(CLAIM.partition("[[claim.test]]")[0] + 'needs = "a GPU"\n')
    assert scene.judge().verdict is Verdict.OUT_OF_REACH and not scene.judge().tests


def test_a_target_never_reached_counts_as_later_than_the_last_round(scene: Scene) -> None:
    scene.record("rounds", A=[2.0, 3.0, 2.0, 2.0, 3.0], B=[3.0, None, None, 3.0, None])
    scene.changed(column='column = ["rounds"]\nbetter = "lower"')
    with pytest.raises(ValueError, match="ours: a target was never reached"):
        scene.judge()
    scene.changed(better='better = "lower"\ncensored = 4.0')
    one = scene.judge()
    assert one.verdict is Verdict.HOLDS and one.tests[0].decision.mean == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("key", "new", "line"),
    [
        ("below", 'below = ["D"]', "ours has no row 'D'; it has A, B"),
        ("column", 'column = ["E"]', "ours has no column 'E'; it has C, rounds"),
        ("name", 'name = "a-above-b"\nkind = "size"', "kind = 'size' needs a range"),
        ("name", 'name = "a-above-b"\nkind = "comparable"', "needs a margin above 0"),
        ("name", 'name = "a-above-b"\nneeds = "a GPU"', "give either tests or 'needs'"),
        ("column", 'colum = ["C"]', "colum' is unknown; did you mean 'column'"),
        ("name", 'name = "a-above-b"\nkind = "larger"', 'claim.0.kind = "larger"'),
    ],
)
def test_a_mistake_in_a_file_of_claims_is_one_line(
    scene: Scene, key: str, new: str, line: str
) -> None:
    scene.record(A=HIGH, B=LOW)
    scene.changed(**{key: new})
    with pytest.raises(ValueError, match=line) as raised:
        scene.judge()
    assert "\n" not in str(raised.value)


def test_a_record_is_stale_when_its_canary_says_so(scene: Scene, tmp_path: Path) -> None:
    scene.record(A=HIGH, B=LOW)

    def go(flat: paper_table.Flat, at: Path) -> None:
        launch.cell(flat, at, 0, Console(quiet=True))

    heard: list[str] = []
    assert canary.stale(["ours"], scene.records, go, heard.append) == {}
    assert heard == ["ours: recorded without canaries, so it cannot be checked"]
    now = canary.run(paper_table.read(Path("ours")), go, heard.append)
    assert sorted(now.digests) == ["fedavg", "fedprox"]
    place = scene.records / "ours"
    elsewhere = Canaries("another torch", {})
    canary.save([elsewhere, now], place)
    assert canary.load(place) == [elsewhere, now]
    assert canary.stale(["ours"], scene.records, go, heard.append) == {}
    assert heard[-1] == "ours: as recorded"
    canary.save([Canaries(now.where, {**now.digests, "fedprox": "0"})], place)
    found = canary.stale(["ours"], scene.records, go, heard.append)
    assert found == {"ours": "fedprox"} and heard[-1] == "ours: stale: fedprox"
    assert scene.judge(**found).stale == ("ours: fedprox",)
    canary.save([elsewhere], place)
    assert canary.stale(["ours"], scene.records, go, heard.append) == {}
    assert heard[-1].startswith("ours: recorded with another torch, this machine has torch")


def test_the_page_the_json_and_the_document_tell_the_same(scene: Scene, tmp_path: Path) -> None:
    scene.record(A=HIGH, B=LOW)
    page, text, numbers = claims_page.write([scene.judge()], tmp_path / "out")
    assert "A is above B." in page.read_text() and "<svg" in page.read_text()
    (told,) = json.loads(numbers.read_text())
    assert told["verdict"] == "holds here" and told["tests"][0]["after_holm"] is True
    document = tmp_path / "page.md"
    document.write_text(f"before\n{claims_page.BEGIN}\nformerly\n{claims_page.END}\nafter\n")
    claims_page.into([scene.judge()], document)
    told = document.read_text()
    assert text.read_text().strip() in told and "formerly" not in told
    document.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        claims_page.into([scene.judge()], document)


def test_our_claims_are_whole_and_the_document_tells_what_the_records_say() -> None:
    judged = claims.judge(claims.read(), claims.Records(), {})
    assert len(judged) >= 25 and len({one.paper for one in judged}) == 6
    document = Path(__file__).parents[2] / "docs" / "results.md"
    assert claims_page.markdown(judged) in document.read_text(encoding="utf-8")


def test_the_command_writes_what_it_says(tmp_path: Path) -> None:
    done = fedmosaic("claims", "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    files = list(map(Path, json.loads(done.stdout)["files"]))
    assert [path.name for path in files] == ["claims.html", "claims.md", "claims.json"]
    assert all(path.stat().st_size for path in files)
    for document in ("none.md", "claims.json"):
        out, file = tmp_path / "more", tmp_path / document
        wrong = typed("claims", "--out", out, "--into", file)
        assert wrong.returncode == 1 and f"error: --into {file}: " in wrong.stderr
        assert not out.exists(), "a mistake is told before the work"
    done = typed("claims", "--records", tmp_path / "none", "--out", tmp_path / "more")
    assert done.returncode == 1 and f"--records {tmp_path / 'none'}: no such" in done.stderr
    assert not (tmp_path / "more").exists()
