"""``fedmosaic leaderboard``: choices by validation, positions, missing cells, users' rows."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from common.models import smallest
from common.settings.version import ROOT
from deploy.leaderboard import board as boards
from deploy.leaderboard import inference, ranking, user_rows
from deploy.leaderboard import page as pages
from deploy.leaderboard import protocol as protocols
from deploy.leaderboard.board import Board
from deploy.leaderboard.protocol import Protocol
from deploy.report.table import markdown
from deploy.run import launch
from deploy.settings import checked
from deploy.study import paper_table, records, runner
from deploy.study.paper_table import CellRun
from deploy.study.runner import UNFINISHED
from tests.support.board import SMALL, chosen, fill, record
from tests.support.browser import PROGRAM, Browser
from tests.support.commandline import completed, error_of

FIRST = "α = 0.5, partition 5"
SHAPES = {
    "fashion": ((1, 14, 14), 10),
    "fashion3": ((1, 14, 14), 10),
    "cifar": ((3, 16, 16), 10),
    "smartwatch": ((6, 100), 7),
}
MEANS = {"first": 0.8, "also": 0.8, "last": 0.5}
RECORDED = [name for name in protocols.names() if boards.record(protocols.read(name)).is_dir()]


@pytest.fixture
def protocol() -> Protocol:
    return Protocol.model_validate(SMALL)


@pytest.mark.parametrize("name", protocols.names())
def test_a_bundled_protocol_is_one_and_its_cells_are_distinct(name: str) -> None:
    protocol = protocols.read(name)
    board = Board(Path("nowhere"), protocol)
    cells = list(paper_table.cells(board.tuning()))
    tries = protocols.TRIES * len(protocol.tuning.seeds)
    assert len(cells) == tries * len(board.places)
    again = [place.name for place in board.places if place.row.personal]  # runs of another row
    own = [c for c in cells if not c.row.startswith("centralised, ")]  # on all fleets
    own = [c for c in own if c.row.rpartition(": ")[0] not in again]
    assert len({cell.fingerprint for cell in own}) == len(own)
    for cell in cells:
        epochs = int(cell.flat["rounds"]) * int(cell.flat["train.epochs"])
        share = int(cell.flat["per-round"]) / int(cell.flat["clients"]) or 1.0
        if not cell.row.startswith("Ditto"):  # half of its epochs are for the personal model
            assert epochs * share == 40, cell.row
        assert cell.flat["data.score-on"] == "validation"
        assert float(cell.flat["data.validation"]) > 0
    rounds = {int(cell.flat["rounds"]) for cell in cells}
    assert rounds == {1, 40} and len(protocol.runs) == 15
    local = next(row for row in protocol.row if row.name == "local, smallest network")
    fleet = protocol.fleet["mixed"].set
    specs, wide = str(fleet["fleet"]).split(","), int(fleet["feature-dim"])
    least = smallest(specs, *SHAPES[name], feature_dim=wide)
    assert local.set["fleet"] == least, "the network of FedAvg"


def test_configurations_are_eight_and_cover_the_values_of_each_setting(protocol: Protocol) -> None:
    local, prox = protocol.row
    assert [one["train.lr"] for one in protocol.configurations(local)] == protocol.rates
    own = [rate / 10 for rate in protocol.rates]
    slow = local.model_copy(update={"rates": own})
    assert [one["train.lr"] for one in protocol.configurations(slow)] == own
    for rates, allowed in ((own[1:], "8 or more"), ([*own, 1.0], "at most 8")):
        row = {**local.model_dump(), "rates": rates}
        with pytest.raises(ValueError, match=f"should be a list with {allowed} entries"):
            checked(protocols.Row, row, Path("board.toml"))
    two = protocol.configurations(prox)
    assert len(two) == 8 and {one["train.lr"] for one in two} == {0.2, 0.4, 0.6, 0.8}
    three = prox.model_copy(update={"space": {**prox.space, "average.beta": [0.1, 0.2]}})
    tried = protocol.configurations(three)
    for first, second in (("train.lr", "fedprox.mu"), ("fedprox.mu", "average.beta")):
        pairs = [(one[first], one[second]) for one in tried]
        assert len(tried) == 8 and len({pairs.count(pair) for pair in pairs}) == 1


def test_the_best_configuration_is_chosen_at_the_end(tmp_path: Path, protocol: Protocol) -> None:
    board = Board(tmp_path, protocol)
    cells = [c for c in paper_table.cells(board.tuning()) if c.row.startswith("local")]
    for i, cell in enumerate(cells[:-1]):
        record(tmp_path, cell, 0.9 if i == 3 else 0.5)
    assert board.choose() == [] and not board.chosen
    (tmp_path / UNFINISHED).write_text(json.dumps({cells[-1].fingerprint: "it diverged"}))
    assert board.choose() == ["local"] and board.chosen == {"local": {"train.lr": 0.4}}
    again = Board(tmp_path, protocol)
    assert again.chosen == board.chosen
    assert [row.name for row in again.board().row] == ["local"]
    newer = protocol.model_copy(update={"version": 8})
    line = "is of board points, version 7, and this is board points, version 8"
    with pytest.raises(ValueError, match=line):
        Board(tmp_path, newer)


def test_a_configuration_that_stops_yields_to_the_next(tmp_path: Path, protocol: Protocol) -> None:
    board = Board(tmp_path, protocol)
    cells = [c for c in paper_table.cells(board.tuning()) if c.row.startswith("local")]
    for i, cell in enumerate(cells):
        record(tmp_path, cell, {3: 0.9, 5: 0.8}.get(i, 0.5))
    assert board.choose() == ["local"] and board.choose() == []
    stopped = next(iter(paper_table.cells(board.board())))
    (tmp_path / UNFINISHED).write_text(json.dumps({stopped.fingerprint: "it diverged"}))
    assert board.choose() == ["local"] and board.chosen == {"local": {"train.lr": 0.6}}
    again = Board(tmp_path, protocol)
    assert again.chosen == board.chosen and again.choose() == []
    lines = pages.incomplete(list(ranking.sections(again)))
    why = "one: local: given up, because a run did not finish: train.lr = 0.4"
    assert why in lines


def boards_without_differences(rows: int, repetitions: int) -> Iterator[np.ndarray]:
    """Yield accuracies [rows, repetitions] of 100 boards on three partitions.

    Rows have the same mean, different variances, a part of the noise on all partitions alike, and a
    part that all rows of a repetition share.
    """
    draw = np.random.default_rng(5)
    for _ in range(100):
        deviation = 0.02 * np.exp(0.5 * draw.normal(size=(rows, 1, 1)))
        own = draw.normal(size=(rows, 3, repetitions)) + draw.normal(size=(rows, 1, repetitions))
        shared = draw.normal(0, 0.05, size=(1, 3, repetitions))
        yield (0.5 + deviation * own + shared).mean(axis=1)


@pytest.mark.parametrize(("rows", "repetitions"), [(15, 5), (3, 5), (15, 15)])
def test_few_boards_without_differences_have_a_false_statement(rows: int, repetitions: int) -> None:
    """Neither an impossible position nor a decided pair.

    Of 100 boards at most 5 have a false position. The test of pairs is exact: 5 % are expected at
    most, and more than 9 of 100 in 3 % of simulations.
    """
    wrong_positions = wrong_pairs = 0
    for values in boards_without_differences(rows, repetitions):
        found = inference.positions({str(i): one for i, one in enumerate(values)})
        wrong_positions += any((one.best, one.worst) != (1, rows) for one in found.values())
        pairs = [first - second for first, second in itertools.combinations(values[:6], 2)]
        wrong_pairs += any(one.decided for one in inference.differences(pairs))
    assert wrong_positions <= 5 and wrong_pairs <= 9


def test_positions_and_pairs_find_true_differences() -> None:
    draw = np.random.default_rng(0)
    shared = draw.normal(0, 0.1, 5)
    values = {name: mean + shared + draw.normal(0, 0.01, 5) for name, mean in MEANS.items()}
    found = inference.positions(values)
    assert [(one.best, one.worst) for one in found.values()] == [(1, 2), (1, 2), (3, 3)]
    for name, one in found.items():
        assert one.low < values[name].mean() < one.high
    assert found["last"].high < found["also"].low
    # more variance widens a row's interval and does not give it a better position
    wide = {**values, "wide": 0.8 + shared + 0.2 * draw.normal(size=5)}
    wide["wide"] += values["first"].mean() - wide["wide"].mean()
    four = inference.positions(wide)
    assert four["wide"].high - four["wide"].low > 2 * (four["first"].high - four["first"].low)
    assert four["wide"].best == four["first"].best == 1 and four["wide"].worst == 3
    assert inference.positions({}) == {}
    alone = inference.positions({"alone": np.array([0.5, 0.6])})["alone"]
    assert (alone.best, alone.worst, alone.low, alone.high) == (1, 1, 0.55, 0.55)
    # rows that differ by the same in each repetition are told apart with certainty
    sure = inference.positions({"a": shared + 0.25, "b": shared + 0.125})
    assert (sure["a"].worst, sure["b"].best) == (1, 2)
    up, level, down = inference.differences(
        [values["first"] - values["last"], shared * 0, values["last"] - values["also"]]
    )
    assert up.decided and down.decided and not level.decided and up.mean > 0 > down.mean


def test_a_pair_is_compared_by_hand_numbers() -> None:
    """Mean 3, s = 1.5811, error 0.7071, t = 4.243, one-sided p = 0.0066: 0.0264 for two pairs."""
    even = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    (one,) = inference.differences([even])
    assert (one.mean, one.decided) == (3.0, True) and one.half == pytest.approx(1.9632, abs=1e-4)
    assert [it.decided for it in inference.differences([even, even - 3.0])] == [True, False]
    assert [it.decided for it in inference.differences([even, *[even - 3.0] * 3])] == [False] * 4


def test_a_complete_board_has_positions_and_equal_costs(tmp_path: Path, protocol: Protocol) -> None:
    board = chosen(tmp_path, protocol)
    fill(board, paper_table.cells(board.board()), {"local": 0.5, "FedProx": 0.7})
    [section] = ranking.sections(board)
    assert pages.incomplete([section]) == []
    local, prox = section.standings
    assert [one.positions["accuracy"].best for one in (local, prox)] == [2, 1]
    assert prox.values["accuracy"] == pytest.approx(0.715)
    assert prox.values["accuracy at bytes"] == pytest.approx(0.615)  # one round is within 250 bytes
    assert prox.values["accuracy at flops"] == pytest.approx(0.715)
    assert prox.values["worst"] == pytest.approx(0.3575)
    assert prox.values["bytes a round"] == 200 and prox.values["memory"] == 5000
    text = markdown(pages.table(section, False))
    assert text.index("FedProx") < text.index("local") and "71.5 %" in text


def test_a_board_with_a_limit_of_time_has_columns_at_equal_time(tmp_path: Path) -> None:
    """The others have none, and the same columns and sentences as before."""
    plain = Protocol.model_validate(SMALL)
    timed = Protocol.model_validate({**SMALL, "budget": {**SMALL["budget"], "time": 5.0}})
    few, more = ([column.name for column in pages.columns(one)] for one in (plain, timed))
    at_time = ["global at equal time", "personal at equal time"]
    assert [name for name in more if name not in few] == at_time
    assert "global at equal operations" in few and len(few) == 12
    sentences = [" ".join(pages.protocol_lines(one)) for one in (plain, timed)]
    equal = "Equal bytes: 250 B of all clients in all rounds. Equal operations: 1.00 kFLOP of "
    assert f"{equal}training. Both are what FedAvg of" in sentences[0]
    assert f"{equal}training. Equal time: 5.00 s on the virtual clock. All are" in sentences[1]
    board = chosen(tmp_path, timed)
    fill(board, paper_table.cells(board.board()), {"local": 0.5, "FedProx": 0.7})
    [section] = ranking.sections(board)
    _, prox = section.standings
    assert prox.values["accuracy at time"] == pytest.approx(0.615)  # one round ends within 5 s
    assert prox.values["personal.accuracy at time"] == pytest.approx(0.615)
    table = pages.table(section, False)
    at = list(table.header).index("global at equal time")
    assert str(table.rows[0][at]) == "61.5 %" and "61.5 %" in pages.html(board, [section])


def test_an_incomplete_row_has_no_position_and_others_have(
    tmp_path: Path, protocol: Protocol
) -> None:
    """Nor has training that is not federated, although it has numbers."""
    board = chosen(tmp_path, protocol)
    cells = list(paper_table.cells(board.board()))
    kept = [c for c in cells if (c.row, c.line.name, c.seed) != ("local", FIRST, 2)]
    fill(board, kept, {"local": 0.5, "FedProx": 0.7})
    [section] = ranking.sections(board)
    assert [one.place.name for one in section.ranked] == ["FedProx"]
    [line] = pages.incomplete([section])
    assert line.endswith(f"local: missing: {FIRST}, seed 2")
    page = pages.html(board, [section])
    assert "local: missing" in page and "1 of 2 rows complete" in page
    [missing] = [cell for cell in cells if cell not in kept]
    (tmp_path / UNFINISHED).write_text(json.dumps({missing.fingerprint: "it diverged"}))
    [section] = ranking.sections(board)
    local, prox = section.standings
    assert local.positions == {} and prox.positions["accuracy"].worst == 1
    assert "did not finish" in pages.incomplete([section])[0]
    assert pages.picture([section], tmp_path / "ranks.png")
    rows = [protocol.row[0], protocol.row[1].model_copy(update={"ranked": False})]
    board = chosen(tmp_path / "unranked", protocol.model_copy(update={"row": rows}))
    fill(board, paper_table.cells(board.board()), {"local": 0.5, "FedProx": 0.7})
    [section] = ranking.sections(board)
    local, prox = section.standings
    assert prox.positions == {} and prox.values["accuracy"] == pytest.approx(0.715)
    assert local.positions["accuracy"].worst == 1


def test_rows_that_have_not_begun_are_named_not_shown(tmp_path: Path, protocol: Protocol) -> None:
    board = Board(tmp_path, protocol)
    [section] = ranking.sections(board)
    assert pages.tables([section]) == []
    assert not pages.picture([section], tmp_path / "ranks.png")
    [line] = pages.incomplete([section])
    assert line == "one: 2 of 2 rows not run yet: local, FedProx"
    cells = [c for c in paper_table.cells(board.tuning()) if c.row.startswith("local")]
    fill(board, cells, {"local": 0.5})
    board.choose()
    fill(board, paper_table.cells(board.board()), {"local": 0.5})
    [section] = ranking.sections(Board(tmp_path, protocol))
    [local] = pages.ordered(section, False)
    assert local.positions["accuracy"].worst == 1
    [line] = pages.incomplete([section])
    assert line.endswith("1 of 2 rows not run yet: FedProx")


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_is_of_its_protocol_and_its_choices_are_best(name: str, tmp_path: Path) -> None:
    protocol = protocols.read(name)
    board = Board(boards.record(protocol), protocol)
    assert board.choose() == []
    known = {c.fingerprint for t in (board.tuning(), board.board()) for c in paper_table.cells(t)}
    recorded = records.read(board.folder)
    assert recorded.keys() <= known and recorded
    shutil.copy(board.folder / records.NAME, tmp_path)
    unfinished = board.folder / UNFINISHED
    if unfinished.exists():
        shutil.copy(unfinished, tmp_path)
    again = Board(tmp_path, protocol)
    again.choose()
    assert again.chosen == board.chosen
    shown = pages.text(board, list(ranking.sections(board)))
    assert (board.folder / f"{protocol.label}.md").read_text() == shown


def test_each_number_about_the_boards_is_in_their_records() -> None:
    every = map(protocols.read, RECORDED)
    shown = "".join((boards.record(one) / f"{one.label}.md").read_text() for one in every)
    told = re.findall(r"[\d.]+ (?:%|[kM]B)", (ROOT / "docs/leaderboard-results.md").read_text())
    assert len(told) > 20 and [number for number in told if f" {number}" not in shown] == []


def test_protocol_3_pairs_seeds_and_partitions_and_extends_rates(tmp_path: Path) -> None:
    third = protocols.read("fashion3")
    assert third.paired and third.edge and boards.runs_of_a_row(third) == 55
    assert boards.runs_of_a_row(protocols.read("fashion")) == 39
    assert "at least 55 runs" in " ".join(pages.protocol_lines(third))
    assert {row.name for row in third.row} == {row.name for row in protocols.read("fashion").row}
    changes = {"paired": True, "edge": 2, "tuning": {**SMALL["tuning"], "seeds": [9, 10, 11]}}
    protocol = Protocol.model_validate({**SMALL, **changes})
    board = Board(tmp_path, protocol)

    def tune(values: dict[float, float]) -> list[str]:
        for cell in paper_table.cells(board.tuning()):
            if cell.row.startswith("local") and cell.fingerprint not in records.read(tmp_path):
                rate = cell.flat["train.lr"]
                record(tmp_path, cell, values.get(float(rate), 0.5) + 0.3 * (cell.seed == 9))
        return board.choose()

    assert tune({0.8: 0.6, 0.7: 0.55}) == [], "the best rate is the largest one"
    assert tune({1.6: 0.7}) == [], "and the next one too"
    assert tune({3.2: 0.8}) == ["local"], "two further rates are the most"
    assert board.chosen == {"local": {"train.lr": 3.2}}
    assert Board(tmp_path, protocol).chosen == board.chosen and board.choose() == []
    cells = [cell for cell in paper_table.cells(board.board()) if cell.column != "costs"]
    assert [(cell.flat["data.seed"], cell.seed) for cell in cells] == [(5, 1), (6, 2)]
    fill(board, paper_table.cells(board.board()), {"local": 0.5})
    local = next(ranking.sections(board)).standings[0]
    assert local.grid["accuracy"] == pytest.approx([0.51, 0.52]) and local.complete
    with pytest.raises(ValueError, match="2 seeds and 1 partitions"):
        Protocol.model_validate({**SMALL, **changes, "partitions": [5]})


def test_a_smallest_rate_is_halved_and_one_inside_is_kept(tmp_path: Path) -> None:
    protocol = Protocol.model_validate({**SMALL, "edge": 1})
    board = Board(tmp_path, protocol)
    for cell in paper_table.cells(board.tuning()):
        best = 0.1 if cell.row.startswith("local") else 0.4
        record(tmp_path, cell, 0.9 if cell.flat["train.lr"] == best else 0.5)
    assert board.choose() == ["FedProx"]
    rates = [cell.flat["train.lr"] for cell in paper_table.cells(board.tuning())][:9]
    assert rates == [*protocol.rates, 0.05]


def test_a_row_of_one_personal_score_is_chosen_and_scored_by_it(tmp_path: Path) -> None:
    local = SMALL["row"][0]
    own = {**local, "name": "by prototypes", "personal": protocols.PROTOTYPE}
    pair = {"fleet": "one", "score": "personal", "row": "by prototypes", "other": "local"}
    protocol = Protocol.model_validate({**SMALL, "row": [local, own], "pair": [pair]})
    board = Board(tmp_path, protocol)

    def made(cell: CellRun, head: float, prototype: float) -> None:
        record(tmp_path, cell, head, {protocols.PROTOTYPE: prototype})

    for cell in paper_table.cells(board.tuning()):
        rate = float(cell.flat["train.lr"])
        made(cell, rate, 1 - rate) if cell.row.startswith("local") else None
    assert sorted(board.choose()) == ["by prototypes", "local"]
    assert board.chosen == {"local": {"train.lr": 0.8}, "by prototypes": {"train.lr": 0.1}}
    for cell in paper_table.cells(board.board()):
        made(cell, 0.6 + 0.001 * cell.seed, 0.4 + 0.001 * cell.seed**2)
    [section] = ranking.sections(board)
    by_head, by_prototype = section.standings
    assert by_head.values["personal.accuracy"] == pytest.approx(0.6015)
    assert by_prototype.values["personal.accuracy"] == pytest.approx(0.4025)
    assert by_prototype.values.get("accuracy") is None and "accuracy" not in by_prototype.positions
    [one] = ranking.compared([section])
    assert one.difference.mean == pytest.approx(-0.199) and one.skew == "α = 0.5"
    text = pages.text(board, [section])
    assert (
        "## Named pairs" in text and "| by prototypes | local | one, α = 0.5 | personal |" in text
    )
    assert "**" not in text, "no number is bold"
    with pytest.raises(ValueError, match="pair: 'nobody' is no row of the fleet 'one'"):
        Protocol.model_validate({**SMALL, "pair": [{**pair, "row": "nobody"}]})


def test_a_personal_method_is_marked_if_the_global_score_chose(tmp_path: Path) -> None:
    rows = [
        {**SMALL["row"][1], "name": name, "set": {"method": name}, "space": {}}
        for name in ("fml", "fedavg", "fedbn")
    ]
    protocol = Protocol.model_validate({**SMALL, "row": rows})
    board = Board(tmp_path, protocol)
    fill(board, paper_table.cells(board.tuning()), dict.fromkeys(("fml", "fedavg", "fedbn"), 0.5))
    board.choose()
    fill(board, paper_table.cells(board.board()), {"fml": 0.6, "fedavg": 0.5, "fedbn": 0.4})
    [section] = ranking.sections(board)
    assert [one.for_global for one in section.standings] == [True, False, False]
    lines = markdown(pages.table(section, False)).splitlines()
    marked = [line.split(" |")[0] for line in lines if "tuned for the global score" in line]
    assert marked == ["| fml"]


def test_records_of_two_machines_are_joined(tmp_path: Path, protocol: Protocol) -> None:
    first, second = chosen(tmp_path / "a", protocol), Board(tmp_path / "b", protocol)
    best = first.chosen["local"]
    stopped = next(iter(paper_table.cells(first.board())))
    (first.folder / UNFINISHED).write_text(json.dumps({stopped.fingerprint: "it diverged"}))
    assert first.choose() == ["local"] and first.chosen["local"] != best
    second.join(first.folder)
    assert second.choose() == [] and second.chosen == first.chosen
    assert records.read(second.folder) == records.read(first.folder)


def user_run(folder: Path, protocol: Protocol, **changes: Any) -> Path:
    """A run of SCAFFOLD that follows the small protocol, except for the changes."""
    prox = protocol.row[1].model_copy(update={"name": "SCAFFOLD", "set": {"method": "scaffold"}})
    board = Board(folder / "board", protocol.model_copy(update={"row": [prox]}))
    board.chosen = {"SCAFFOLD": {"train.lr": 0.05}}
    cell = next(c for c in paper_table.cells(board.board()) if c.column == FIRST)
    place = folder / "run"
    launch.cell({**cell.flat, **changes}, place, workers=0, console=Console(quiet=True))
    return place


def test_a_users_run_that_follows_the_protocol_is_added(tmp_path: Path, protocol: Protocol) -> None:
    board = chosen(tmp_path / "record", protocol)
    run = user_run(tmp_path, protocol, name="ours")
    place = user_rows.add(board, [run], "", "a network")
    assert (place.name, place.fleet, place.row.kinds) == ("ours", "one", [])
    assert place.row.set == {"method": "scaffold", "train.lr": 0.05}
    again = Board(board.folder, protocol)
    for one in (board, again):
        [section] = ranking.sections(one)
        added = section.standings[-1]
        assert added.place.added and f"{FIRST}, seed 1" not in added.missing
        assert f"{FIRST}, seed 2" in added.missing
    with pytest.raises(ValueError, match="has another row 'local'; give another: --name NAME"):
        user_rows.add(again, [run], "local", "")
    with pytest.raises(ValueError, match="--name 'a\\\\nb' is not allowed"):
        user_rows.add(again, [run], "a\nb", "")
    same = user_rows.add(again, [run], "", "")
    assert same.row.sends == "a network", "a later run keeps what the first one said"
    copy = shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(ValueError, match="are runs of the same cell; give one of them"):
        user_rows.add(again, [run, copy], "", "")
    summary = json.loads((copy / "summary.json").read_text())
    other = {"bytes": {**summary["bytes"], "up": 1}}
    (copy / "summary.json").write_text(json.dumps(summary | other))
    with pytest.raises(ValueError, match=f"has another run of {FIRST}, seed 1, of this row"):
        user_rows.add(again, [copy], "", "")
    (copy / "summary.json").write_text(json.dumps(summary | {"rounds": 1}))
    with pytest.raises(ValueError, match="ended after 1 of 2 rounds"):
        user_rows.add(again, [copy], "", "")
    (copy / "journal.jsonl").unlink()
    with pytest.raises(ValueError, match="journal.jsonl is damaged: it is missing"):
        user_rows.add(again, [copy], "", "")
    rows = json.loads((board.folder / "added.json").read_text())
    rows["rows"][0]["fleets"] = ["two"]
    (board.folder / "added.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match="added.json: ours: fleet 'two' is none of the protocol's"):
        Board(board.folder, protocol)
    (board.folder / "added.json").write_text(json.dumps(rows | {"rows": 5}))
    with pytest.raises(ValueError, match="added.json is damaged: "):
        Board(board.folder, protocol)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": 3}, "rounds = 3 instead of 2"),
        ({"train.epochs": 2}, "train.epochs = 2 instead of 1"),
        ({"train.momentum": 0.5}, "train.momentum = 0.5 instead of 0.9"),
        ({"seed": 8}, "seed = 8 instead of one of 1, 2"),
    ],
)
def test_a_run_that_does_not_follow_the_protocol_is_refused(
    tmp_path: Path, protocol: Protocol, changes: dict[str, Any], why: str
) -> None:
    run = user_run(tmp_path, protocol, **changes)
    board = chosen(tmp_path / "record", protocol)
    before = records.read(board.folder)
    refusal = f"does not follow the protocol: .*{why}.*nearest: one, {FIRST}"
    with pytest.raises(ValueError, match=refusal):
        user_rows.add(board, [run], "", "")
    assert records.read(board.folder) == before and not (board.folder / "added.json").exists()


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_the_page_sorts_and_filters(tmp_path: Path, protocol: Protocol) -> None:
    board = chosen(tmp_path, protocol)
    fill(board, paper_table.cells(board.board()), {"local": 0.5, "FedProx": 0.7})
    page = tmp_path / "page.html"
    pages.write_html(board, list(ranking.sections(board)), page)
    kept = "[...document.querySelectorAll('tbody tr')].filter(row => !row.hidden)"
    rows = f"{kept}.map(row => row.cells[0].textContent)"
    with Browser(page.as_uri(), tmp_path / "profile") as shown:
        assert shown.value(rows) == ["FedProx", "local"]
        shown.value("document.querySelector('thead button').click()")
        assert shown.value(rows) == ["local", "FedProx"]
        limit = "document.querySelector('[name=bytes]')"
        event = "new Event('input', {bubbles: true})"
        shown.value(f"{limit}.value = 0.1; {limit}.dispatchEvent({event})")
        assert shown.value(rows) == []
        assert shown.value("document.getElementById('live').textContent").startswith("0 of 2 rows")
        assert shown.width(375) <= 375 and shown.errors == []


@pytest.mark.full
def test_a_board_is_played_in_two_steps_and_only_once(tmp_path: Path, protocol: Protocol) -> None:
    board, played = Board(tmp_path, protocol), list[CellRun]()
    boards.play(board, [], 2, on_cell=lambda cell, _: played.append(cell))
    assert len(played) == 2 * boards.runs_of_a_row(protocol)
    [section] = ranking.sections(board)
    assert all(one.positions for one in section.standings)
    written = boards.write(board, tmp_path)
    for path in written:
        assert runner.missing(paper_table.cells(paper_table.read(path)), tmp_path) == []
    played.clear()
    again = Board(tmp_path, protocol)
    boards.play(again, ["local"], 1, on_cell=lambda cell, _: played.append(cell))
    assert played == []
    with pytest.raises(ValueError, match="--row nobody is no row of the leaderboard"):
        boards.play(again, ["nobody"], 1)


def test_the_command_names_what_is_missing_or_wrong_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = completed("leaderboard", "--out", tmp_path / "record", "--html", page)
    assert "Protocol of the board fashion, version" in done.stdout and page.exists()
    assert (tmp_path / "record" / "tuning.toml").exists()
    text = tmp_path / "record" / "leaderboard_fashion.md"
    assert text.read_text().startswith("# Leaderboard: Fashion-MNIST")
    error = error_of("leaderboard", "--board", "cifar", "--out", tmp_path / "record")
    assert "is of board fashion, version" in error
    for words, why in (
        (("nothing",), "nothing is given without --add"),
        (("--add", "nothing"), "nothing holds no finished run"),
        (("--html", "."), "--html . is not allowed; it is a folder"),
        (
            ("--board", "mars"),
            "--board mars is not allowed; allowed: fashion, cifar, fashion3, smartwatch",
        ),
        (("--row", "nobody"), "--row nobody is no row of the leaderboard; its rows are: local"),
        (("--row", "LwN"), "--row LwN is not on the board: its server learns from noise alone"),
    ):
        error = error_of("leaderboard", *words, "--out", tmp_path / "wrong")
        assert why in error and not (tmp_path / "wrong").exists()
