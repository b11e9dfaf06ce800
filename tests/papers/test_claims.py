"""The papers' claims: the files are whole, verdicts follow from records, stale ones are named."""

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from PIL import Image
from rich.console import Console

from deploy.cli import main
from deploy.run import launch
from deploy.study import paper_table, records
from deploy.study.records import Recorded
from tests import papers
from tests.papers import RESULTS, canary, claims_page
from tests.papers import judging as claims
from tests.papers.__main__ import PROGRAM, app
from tests.papers.canary import Canaries
from tests.papers.judging import Side, Verdict
from tests.support import commandline
from tests.support.board import TABLE

pytestmark = pytest.mark.docs

typed = partial(commandline.typed, program=lambda: main(app, PROGRAM))
CLAIM = """
paper = "P"
source = "abstract"
ran = "We ran A."
differs = "The paper has B."
conclusion = "A is above B."
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
EVEN = [1.0, 2.0, 3.0, 4.0, 5.0]  # mean 3, half of the interval 1.9632
DOCUMENT = Path(__file__).parents[2] / "docs" / "results.md"


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

    def judge_all(self, **old: str) -> list[tuple[claims.Paper, list[claims.Judged]]]:
        return claims.judge(claims.read(self.file.parent), claims.Records(self.records), old)

    def judge(self, **old: str) -> claims.Judged:
        ((_, (one,)),) = self.judge_all(**old)
        return one


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(papers, "EXPERIMENTS", tmp_path)
    return Scene(tmp_path)


def test_an_order_follows_from_the_record(scene: Scene) -> None:
    scene.record(A=HIGH, B=LOW)
    assert scene.judge().verdict is Verdict.REPRODUCED and scene.judge().tests[0].kept
    scene.record(A=LOW, B=HIGH)
    assert scene.judge().verdict is Verdict.CONTRADICTED
    scene.changed(column='column = ["C"]\nbetter = "lower"')
    assert scene.judge().verdict is Verdict.REPRODUCED
    scene.record(A=LOW, B=[0.0, 2.0, 1.0, 0.5, 1.5])
    one = scene.judge()
    assert one.verdict is Verdict.NO_POWER and one.tests[0].decision.side is Side.OPEN


def test_an_effect_is_the_share_of_the_error_that_a_method_removes(scene: Scene) -> None:
    scene.record(A=[x + 60.0 for x in EVEN], B=[60.0] * 5)  # 3 of 40 points: 7.5 %
    (test,) = scene.judge().tests
    assert test.effect == pytest.approx(7.5) and test.width == pytest.approx(4.908, abs=1e-3)
    assert test.mde == pytest.approx(100 * (2.7764 + 0.9410) * 0.7071 / 40, abs=1e-2)
    scene.changed(column='column = ["C"]\nbetter = "lower"')  # 3 more than a cost of 60
    assert scene.judge().tests[0].effect == pytest.approx(-5.0)


def test_the_error_of_another_score_than_percent_is_what_it_lacks_of_its_best(scene: Scene) -> None:
    scene.record(A=[x / 100 + 0.6 for x in EVEN], B=[0.6] * 5)  # 0.03 of 0.4
    scene.changed(column='column = ["C"]\nbest = 1.0')
    assert scene.judge().tests[0].effect == pytest.approx(7.5)


@pytest.mark.parametrize(
    ("printed", "verdict"),
    [  # the interval is 9.816 % wide in all; B errs 30 % in the paper
        (76.0, Verdict.REPRODUCED),  # the paper's effect is 6 of 30: 20 %, half of it 10 %
        (75.8, Verdict.NO_POWER),  # 19.3 %, half of it 9.7 %
    ],
)
def test_an_interval_wider_than_half_of_the_papers_effect_has_no_power(
    scene: Scene, printed: float, verdict: Verdict
) -> None:
    scene.record(A=[x + 60.0 for x in EVEN], B=[60.0] * 5)
    assert scene.judge().verdict is Verdict.REPRODUCED, "the paper prints no number"
    scene.changed(column=f'column = ["C"]\npaper = {{ A = {printed}, B = 70.0 }}')
    one = scene.judge()
    assert one.verdict is verdict and one.tests[0].weak is (verdict is Verdict.NO_POWER)
    assert one.tests[0].paper == pytest.approx(100 * (printed - 70.0) / 30.0)
    scene.table.write_text(scene.table.read_text() + "[expected]\nA.C = 75.8\nB.C = 70.0\n")
    scene.file.write_text(CLAIM)
    assert scene.judge().verdict is Verdict.NO_POWER, "expected numbers of the table count as well"
    scene.record(A=[60.0] * 5, B=[x + 60.0 for x in EVEN])
    scene.changed(column='column = ["C"]\nbetter = "lower"')
    assert scene.judge().verdict is Verdict.REPRODUCED, "the gate is for accuracies"


def test_a_sentence_about_several_comparisons_is_judged_by_all_of_them(scene: Scene) -> None:
    scene.changed(column='column = ["C", "rounds"]')
    clear = [x + 20.0 for x in EVEN]
    scene.record(A=clear, B=[20.0] * 5)  # p = 0.013
    scene.record("rounds", A=clear, B=[20.1] * 5)  # p = 0.015
    assert scene.judge().verdict is Verdict.REPRODUCED
    scene.record("rounds", A=clear, B=[20.9] * 5)  # p = 0.041, as claimed
    assert scene.judge().verdict is Verdict.REPRODUCED
    scene.record(A=clear, B=[20.9] * 5)  # both are as claimed, but 0.041 > 0.05 / 2
    one = scene.judge()
    assert one.verdict is Verdict.NO_POWER and {t.decision.side for t in one.tests} == {
        "as claimed"
    }
    scene.record(A=[20.9] * 5, B=clear)  # one against the claim, but not after Holm
    assert scene.judge().verdict is Verdict.NO_POWER
    scene.record(A=[20.0] * 5, B=clear)
    assert scene.judge().verdict is Verdict.CONTRADICTED


def test_only_what_meets_the_fair_conditions_decides(scene: Scene) -> None:
    scene.record(A=LOW, B=HIGH)
    for condition, reason in (
        ("rounds = 4", "rounds is 3 in ours, fair is 4"),
        ('fleet = "resnet|cnn"', "fleet is mlp@0.25 in ours, fair is resnet|cnn"),
        ('"below.fleet" = "cnn"', "fleet is mlp@0.25 in ours, fair is cnn"),
        ("architectures = 2", "architectures is 1 in ours, fair is 2"),
        ("room = 95", "room is 93 in ours, fair is 95"),
    ):
        scene.changed(says=f'says = ""\nfair = {{ {condition} }}')
        one = scene.judge()
        assert (one.verdict, one.reason) == (Verdict.UNFAIR, reason)
        scene.file.write_text(CLAIM)
    scene.changed(
        says='says = ""\nfair = { rounds = 3, fleet = "cnn|mlp", room = 90, "below.rounds" = 3 }'
    )
    assert scene.judge().verdict is Verdict.CONTRADICTED
    scene.changed(column='column = ["C", "rounds"]', fair="fair = { rounds = 4 }")
    scene.record("rounds", A=HIGH, B=LOW)
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED and "1 more not at a fair scale" in one.reason
    scene.changed(fair="fair = { server-steps = 4 }")
    with pytest.raises(
        ValueError, match="a-above-b: no row of ours has the setting 'server-steps'"
    ):
        scene.judge()


def test_what_is_not_recorded_with_all_seeds_is_not_tested(scene: Scene) -> None:
    assert scene.judge().verdict is Verdict.UNFAIR
    scene.record(A=HIGH, B=LOW[:4])
    one = scene.judge()
    assert one.verdict is Verdict.UNFAIR and one.tests[0].decision.seeds == 0
    assert one.reason == "ours is not recorded with all of its seeds"
    four = scene.table.read_text().replace("seeds = [1, 2, 3, 4, 5]", "seeds = [1, 2, 3, 4]")
    scene.table.write_text(four)
    scene.record(A=HIGH, B=LOW)
    assert scene.judge().verdict is Verdict.NO_POWER, "four seeds decide nothing"


def test_rows_with_more_seeds_are_compared_over_those_of_both(scene: Scene) -> None:
    ten = "seeds = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
    low, high = [1.0, 1.2] * 5, [1.1, 1.1, 1.0, 1.4, 1.1, *([1.6] * 5)]
    text = scene.table.read_text().replace('name = "A"', f'name = "A"\n{ten}')
    scene.table.write_text(text)
    scene.record(A=high[:5], B=low[:5])
    assert scene.judge().tests[0].decision.seeds == 0, "of A only five of ten are recorded"
    scene.record(A=high, B=low[:5])
    one = scene.judge()
    assert one.verdict is Verdict.NO_POWER and one.tests[0].decision.seeds == 5
    scene.table.write_text(text.replace('name = "B"', f'name = "B"\n{ten}'))
    scene.record(A=high, B=low)
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED and one.tests[0].decision.seeds == 10
    scene.table.write_text(text.replace(ten, "seeds = [2, 3, 4, 5, 6]"))
    with pytest.raises(ValueError, match=r"the seeds of 'A' do not begin with \[1, 2, 3, 4, 5\]"):
        scene.judge()


def test_sizes_and_margins(scene: Scene) -> None:
    scene.record(A=[2.5, 2.4, 2.6, 2.5, 2.5], B=[1.0] * 5)
    scene.changed(says='says = "A is 150 % above B."\nkind = "size"\nrange = [120.0, 180.0]')
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED
    assert one.tests[0].decision.mean == pytest.approx(150.0)
    assert claims_page.label(one.claim) == "a-above-b (≤ 180 %)"
    scene.changed(range="range = [10.0, 100.0]")
    assert scene.judge().verdict is Verdict.CONTRADICTED
    scene.changed(range="range = [100.0, inf]")
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED, "more than at least is no contradiction"
    assert claims_page.label(one.claim) == "a-above-b (≥ 100 %)"
    assert claims_page.as_json(scene.judge_all())[0]["range"] == [100.0, None]
    scene.changed(below='below = ["B"]\nover = "A"\nbetter = "lower"')
    (test,) = scene.judge().tests
    assert test.decision.mean == pytest.approx(60.0, abs=0.1), "1.5 of 2.5"
    assert test.effect == pytest.approx(-60.0, abs=0.1)
    scene.changed(kind='kind = "comparable"\nmargin = 2.0', range="", over="")
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED
    assert claims_page.label(one.claim) == "a-above-b (±2 points)"


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


def test_costs_are_compared_at_equal_accuracy(scene: Scene) -> None:
    """A costs 10 in all; B costs 30 in three rounds, that is 10 a round."""
    scene.record(A=[10.0] * 5, B=[30.0] * 5)
    scene.record("rounds", A=[1.0] * 5, B=[2.0, 2.0, 3.0, 2.0, 2.0])
    scene.changed(column='column = ["C"]\nbetter = "lower"\nreached = "rounds"')
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED
    assert one.tests[0].decision.mean == pytest.approx((20 * 4 + 30) / 5 - 10)
    scene.record("rounds", B=[None] * 5)
    assert scene.judge().tests[0].decision.mean == 20.0, "all of its cost is a lower bound"
    scene.record(A=[40.0] * 5)
    one = scene.judge()
    assert one.verdict is Verdict.UNFAIR and "B ends below the accuracy of A" in one.reason
    scene.record("rounds", B=[3.0] * 5)
    assert scene.judge().verdict is Verdict.CONTRADICTED
    scene.record("rounds", A=LOW, B=HIGH)
    scene.changed(reached='accuracy = "rounds"')
    one = scene.judge()
    assert one.verdict is Verdict.UNFAIR and one.reason == "A is less accurate than B in ours"
    scene.record("rounds", A=HIGH, B=LOW)
    assert scene.judge().verdict is Verdict.CONTRADICTED


def test_a_changed_claim_is_marked_and_a_flawed_one_is_not_tested(scene: Scene) -> None:
    scene.record(A=HIGH, B=LOW)
    assert claims_page.verdict(scene.judge()) == "reproduced"
    for field in ("seen = true", 'before = "A is far above B: does not hold."'):
        scene.changed(says=f'says = "A is above B."\n{field}')
        assert claims_page.verdict(scene.judge()) == "reproduced †"
        scene.file.write_text(CLAIM)
    scene.changed(says='says = "A is above B."\nflaw = "A is B."')
    one = scene.judge()
    assert (one.verdict, one.reason) == (Verdict.FLAWED, "A is B.")
    scene.file.write_text(CLAIM.partition("[[claim.test]]")[0] + 'needs = "a GPU"\n')
    one = scene.judge()
    assert (one.verdict, one.reason, one.tests) == (Verdict.UNFAIR, "a GPU", ())


def test_a_target_never_reached_counts_as_later_than_the_last_round(scene: Scene) -> None:
    scene.record("rounds", A=[2.0, 3.0, 2.0, 2.0, 3.0], B=[3.0, None, None, 3.0, None])
    scene.changed(column='column = ["rounds"]\nbetter = "lower"')
    with pytest.raises(ValueError, match="ours: a target was never reached"):
        scene.judge()
    scene.changed(better='better = "lower"\ncensored = 4.0')
    one = scene.judge()
    assert one.verdict is Verdict.REPRODUCED and one.tests[0].decision.mean == pytest.approx(1.2)


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
        ("ran", "", "ran"),
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
    now = canary.run(paper_table.read(papers.place("ours")), go, heard.append)
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
    assert claims_page.verdict(scene.judge(**found)) == "reproduced, stale"
    canary.save([elsewhere], place)
    assert canary.stale(["ours"], scene.records, go, heard.append) == {}
    assert heard[-1].startswith("ours: recorded with another torch, this machine has torch")


def test_the_plot_shows_the_comparison_that_supports_a_claim_least(scene: Scene) -> None:
    scene.changed(column='column = ["C", "rounds"]')
    scene.record(A=HIGH, B=LOW)
    scene.record("rounds", A=[x - 9.0 for x in HIGH], B=LOW)
    one = scene.judge()
    assert claims_page.weakest(one) is one.tests[1]
    scene.changed(says='says = ""\nfair = { rounds = 4 }', column='column = ["rounds", "C"]')
    assert claims_page.weakest(scene.judge()) == scene.judge().tests[0], "C has three rounds"
    scene.changed(fair='kind = "comparable"\nmargin = 3.0')
    assert claims_page.weakest(scene.judge()) == scene.judge().tests[1], "+6 is more than -3"


def test_the_summary_the_json_and_the_document_tell_the_same(scene: Scene, tmp_path: Path) -> None:
    scene.record(A=HIGH, B=LOW)
    judged = scene.judge_all()
    text, numbers, plot = claims_page.write(judged, tmp_path / "out")
    assert "### Claims of P\n\nA is above B. The paper has B.\n\nVerdicts: 1 reproduced.\n" in (
        text.read_text()
    )
    assert "\n\nRecords: [ours](../ours/ours.md).\n\n" in text.read_text()
    (told,) = json.loads(numbers.read_text())
    assert told["verdict"] == "reproduced" and told["tests"][0]["kept"] is True
    assert matplotlib.image.imread(plot).shape[1] == 900
    document = tmp_path / "docs" / "page.md"
    document.parent.mkdir()
    document.write_text(f"before\n{claims_page.BEGIN}\nformerly\n{claims_page.END}\nafter\n")
    claims_page.into(judged, document, tmp_path / "out")
    told = document.read_text()
    assert "](../out/p.png)" in told and "formerly" not in told
    document.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        claims_page.into(judged, document, tmp_path / "out")


def test_our_claims_are_whole_and_what_is_committed_tells_what_the_records_say() -> None:
    judged = claims.judge(claims.read(), claims.Records(), {})
    assert sum(len(of_paper) for _, of_paper in judged) >= 57 and len(judged) == 6
    folder = RESULTS / "claims"
    pictures = "../tests/papers/results/claims"
    assert claims_page.markdown(judged, pictures) in DOCUMENT.read_text(encoding="utf-8")
    assert claims_page.markdown(judged, ".") == (folder / "claims.md").read_text().rstrip("\n")
    assert claims_page.as_json(judged) == json.loads((folder / "claims.json").read_text())
    for one in judged:
        plot = folder / f"{claims_page.stem(one[0])}.png"
        assert Image.open(plot).info["Description"] == claims_page.digest([one]), plot
        assert plot.stat().st_size <= 64_000


def test_the_command_writes_what_it_says(tmp_path: Path) -> None:
    done = typed("claims", "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    files = list(map(Path, json.loads(done.stdout)["files"]))
    assert [path.name for path in files[:2]] == ["claims.md", "claims.json"] and len(files) == 8
    assert all(path.stat().st_size for path in files)


def test_a_mistake_of_the_command_is_one_line_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "claims.json").write_text("{}")
    for document in ("none.md", "claims.json"):
        out, file = tmp_path / "more", tmp_path / document
        wrong = typed("claims", "--out", out, "--into", file)
        assert wrong.returncode == 1 and f"error: --into {file}: " in wrong.stderr
        assert not out.exists()
    done = typed("claims", "--records", tmp_path / "none", "--out", tmp_path / "more")
    assert done.returncode == 1 and f"--records {tmp_path / 'none'}: no such" in done.stderr
    assert not (tmp_path / "more").exists()


def test_the_command_shows_one_paper(tmp_path: Path) -> None:
    done = typed("claims", "Noise_Distillation", "--out", tmp_path / "none")
    assert done.returncode == 0 and not (tmp_path / "none").exists()
    assert "Noise distillation: We ran" in done.stdout.replace("\n", " ")
    assert "noise-efficient" in done.stdout and "fedin-iid" not in done.stdout
    wrong = typed("claims", "fedxyz")
    known = "fedin, fedkf, fedorion, fedtgp-fedktl-htfllib, dl-mh, noise-distillation"
    assert wrong.returncode == 1
    assert wrong.stderr == f"error: 'fedxyz' is no paper with claims; allowed: {known}\n"
    wrong = typed("claims", "fedin", "--into", DOCUMENT)
    assert wrong.returncode == 1 and "--into takes the claims of all papers" in wrong.stderr
