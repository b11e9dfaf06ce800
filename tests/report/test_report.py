"""What a run leaves is read tolerantly and shown whole, and nothing in it can run or load."""

import io
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from common.journal import ClientScore
from deploy.report import plots, sections
from deploy.report import table as tables
from deploy.report.groups import Group, differences, grouped, half_width
from deploy.report.pages import write_report
from deploy.report.read import Run, of_clients, read, scored
from deploy.report.style import inline, png, set_hover_texts
from deploy.study.comparison import Comparison, Measured
from tests.support.run_folder import (
    SCORES,
    buffered,
    census,
    clocked,
    entry,
    finished,
    journal_line,
    write_run,
)

GLOBAL = [
    {"k": 0, "n": 1, "accuracy": 0.4, "accuracy_global": 0.4},
    {"k": 1, "n": 3, "accuracy": 0.8, "accuracy_global": 0.8},
]
TABLE = Comparison(
    title="Table 1",
    rows=("FedAvg", "Fed|KF"),
    columns=("α = 1", "α = 0.1"),
    cells={
        ("FedAvg", "α = 1"): Measured((80.0, 82.0, 84.0), 83.78),
        ("Fed|KF", "α = 1"): Measured((85.0,)),
        ("Fed|KF", "α = 0.1"): Measured((), 82.94),
    },
    notes=("<b>note</b>",),
)


class Tags(HTMLParser):
    """Every opening tag of a page with its attributes, and all its text with plain spaces."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\xa0", " ")


def page_of(*dirs: Path) -> str:
    out = dirs[0].parent / "report.html"
    write_report(list(dirs), out)
    return out.read_text(encoding="utf-8")


def test_a_finished_run_reads_whole(tmp_path: Path) -> None:
    run = read(finished(tmp_path / "a"))
    assert run.finished and run.notes == []
    assert run.accuracies() == [(0, 0.1), (1, 0.6), (2, 0.4)]
    assert (run.cost("down"), run.cost("up")) == (10 + 2 * 1000, 20 + 2 * 500)
    assert run.seconds() == 4.5
    shown = [(m.k, m.model, m.n, s.accuracy) for m, s in run.scores()]
    assert shown == [(0, "resnet8", 7, 0.25), (1, "lenet5", 7, 0.75)]
    for i, (summary, said) in enumerate((('{"seed": "many"}', "no summary"), ("half", "not JSON"))):
        (finished(tmp_path / f"b{i}") / "summary.json").write_text(summary)
        odd = read(tmp_path / f"b{i}")
        assert odd.summary is None and not odd.finished
        assert any(note.startswith(f"summary.json is {said}: ") for note in odd.notes)


def test_an_unfinished_run_is_counted_from_its_journal(tmp_path: Path) -> None:
    """By rounds, of which the last counts, and by finite numbers; a cut line is left out."""
    entries = [census(), entry(1, 0.9), entry(1, 0.6), entry(2, 0.4)]
    entries += [entry(3, float("nan"), loss=float("inf"), metrics={"kl": float("nan")})]
    where = write_run(tmp_path / "a", entries, rounds=5, tail=entry(4, 0.4).line()[:40])
    run = read(where)
    note, cut = run.notes
    assert cut == "journal.jsonl, line 6 is cut off: left out."
    assert not run.finished and "round 3 of 5" in note and "no summary.json" in note
    assert run.headline() == {"final": 0.4, "best": 0.6, "last10": pytest.approx(0.5)}
    assert run.seconds() == 0.5 + 3 * 2.0 and run.done == 3
    page = page_of(where)
    assert "60.0 %" in page and "Unfinished: the journal ends at round 3 of 5 and" in page
    long = [census(), entry(1, 0.9), *(entry(t, 0.1 * (t % 2)) for t in range(2, 12))]
    ten = read(write_run(tmp_path / "b", long, rounds=99)).headline()["last10"]
    assert ten == pytest.approx(5 * 0.1 / 10), "without the census and the first round"


def test_a_directory_that_is_no_run_of_this_release_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no journal\.jsonl") as none:
        read(tmp_path)
    assert str(tmp_path) in str(none.value) and "\n" not in str(none.value)
    with pytest.raises(ValueError, match="not a directory"):
        read(tmp_path / "absent")
    with pytest.raises(ValueError, match="no directory given"):
        write_report([], tmp_path / "report.html")
    a = finished(tmp_path / "a")
    with pytest.raises(ValueError, match="given twice"):
        write_report([a, tmp_path / "a" / ".." / "a"], tmp_path / "report.html")
    other = write_run(tmp_path / "b", [census()], tail='{"round": 1, "accuracy": 0.5}\n')
    with pytest.raises(ValueError, match="journal has version 1, this release reads") as refused:
        read(other)
    assert str(other) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("journal", ["", "\n", "null\n[]\n7\n", journal_line('"round": -1'), "\0"])
def test_a_journal_without_an_entry_still_gives_a_page(tmp_path: Path, journal: str) -> None:
    where = tmp_path / "a"
    where.mkdir()
    (where / "journal.jsonl").write_text(journal, encoding="utf-8")
    assert "config.toml is missing" in page_of(where)
    finished(tmp_path / "b")
    assert "2 runs compared" in page_of(where, tmp_path / "b")


def test_the_page_shows_every_part(tmp_path: Path) -> None:
    failure = {"k": 1, "round": 2, "reason": "shape (3,) for (4,)"}
    more = {"metrics": {"distill_loss": 0.2}, "failures": [failure]}
    scores = [{"k": 0, "n": 3, "accuracy": 0.9, "accuracy_global": 0.85}]
    last = entry(2, 0.4, scores=scores, **more)
    entries = [census(), entry(1, 0.6, metrics={"distill_loss": 0.3}), last]
    tags = Tags(page_of(write_run(tmp_path / "a", entries)))
    for text in ("fedkf on digits", "60.0 %", "shape (3,) for (4,)", "data", "alpha", "0.5"):
        assert text in tags.text
    headings = ["Learning", "Clients", "Data and models", "Cost", "Failures", "Settings"]
    assert all(h in tags.text for h in headings) and "distill_loss" in tags.text
    pictures = [a for tag, a in tags.tags if tag == "svg"]
    assert len(pictures) == 7  # accuracy, loss, clients, partition, bytes, time, distill_loss
    assert all(a["role"] == "img" and a["aria-label"] for a in pictures)


def test_the_page_loads_nothing_and_leaves_matplotlibs_settings_alone(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    page = page_of(finished(tmp_path / "a"), finished(tmp_path / "b", seed=2))
    assert dict(mpl.rcParams) == before
    assert page_of(tmp_path / "a", tmp_path / "b") == page, "it is the same again"
    assert not re.search(r"https?://|//[a-z]", page)
    assert "default-src 'none'" in page
    tags = Tags(page).tags
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in tags}
    assert [tag for tag, _ in tags].count("script") == 1 and "script-src 'sha256-" in page
    for _, attributes in tags:
        for name in ("href", "src"):
            assert (attributes.get(name) or "#").startswith("#")
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids)), "a reference has one target"
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(ids)


@pytest.mark.full
def test_accuracies_by_batchnorms_statistics_stand_side_by_side(tmp_path: Path) -> None:
    told = {"running": 0.25, "batch": 0.5}
    both = write_run(tmp_path / "a", [census(), entry(1, 0.25, accuracy_bn=told)])
    last = entry(1, 0.75, accuracy_bn=told | {"recalibrated": 1})
    anew = write_run(tmp_path / "b", [census(), last])
    none = finished(tmp_path / "c")
    assert "BatchNorm's statistics" not in Tags(page_of(none)).text
    alone = sections.normalised([Group("x", [read(both)])])
    (card,) = alone.cards if alone else ()
    assert card.table is not None
    rows = [list(map(str, card.table.header)), *card.table.rows]
    assert rows == [["run", "running", "batch"], ("x", "25.00 %", "50.00 %")]
    page = Tags(page_of(both, anew, none)).text
    assert "recalibrated" in page and "100.00 %" in page


def test_what_a_client_names_is_text_and_never_markup(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script><img src=x onerror="alert(2)">'
    entries = [
        census(model=evil, classes=(evil, "$x^{$")),
        entry(
            1,
            0.6,
            metrics={evil: 1.0, "$\\frac{$": 2.0},
            accuracies={evil: 0.5, "_hidden": 0.4},
            failures=[{"k": 1, "round": 1, "reason": evil + "\x1b[2J"}],
            scores=[{"k": 1, "accuracy": 0.5, "accuracy_global": 0.4}],
        ),
    ]
    where = write_run(tmp_path / "a", entries, method="fedkf")
    both = page_of(where, finished(tmp_path / evil.replace("/", "")))
    for page, scripts in ((page_of(where), 0), (both, 1)):  # ours sorts the tables of a comparison
        tags = Tags(page)
        assert [tag for tag, _ in tags.tags if tag in ("script", "img")] == ["script"] * scripts
        assert not any(name.startswith("on") for _, a in tags.tags for name in a)
        assert "<script>alert(1)" in tags.text  # shown, as text
        assert "\x1b" not in page


def test_colours_and_type_of_a_figure_are_the_pages(tmp_path: Path) -> None:
    run = read(finished(tmp_path / "a"))
    drawn = inline(plots.score([Group("fedkf", [run])]), "accuracy", 'says "this" & <that>')
    assert "var(--c0)" in drawn and "var(--muted)" in drawn
    assert "<text" in drawn and not re.search(r"font-family|font:|DejaVu", drawn)
    assert not re.search(r"#[0-9a-f]{6}\b", drawn)
    assert drawn.startswith('<svg role="img" aria-label="says &quot;this&quot; &amp; &lt;that&gt;"')


def test_bars_are_as_high_as_accuracies_and_unexplained_time_is_other(tmp_path: Path) -> None:
    run = read(finished(tmp_path / "a"))
    bars: list[Any] = plots.clients(run).axes[0].patches
    assert sorted({round(bar.get_height(), 6) for bar in bars}) == [0.25, 0.5, 0.75]
    figure = plots.seconds_by_round(run)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["clients", "step", "other"]
    bars = figure.axes[0].patches
    at_one = [bar.get_height() for bar in bars if abs(bar.get_x() + 0.36 - 1) < 1e-6]
    assert sum(at_one) == pytest.approx(2.0)
    for i, counts in enumerate(([1], [-1, 2], [])):
        ragged = read(write_run(tmp_path / str(i), [census(counts=counts)]))
        assert plots.partition(ragged) is None


def test_a_long_run_is_drawn_as_areas_of_the_same_height(tmp_path: Path) -> None:
    entries = [census(), *(entry(t, 0.5) for t in range(1, 301))]
    run = read(write_run(tmp_path / "a", entries, rounds=300))
    axes = plots.seconds_by_round(run).axes[0]
    assert len(axes.patches) == 0 and len(axes.collections) == 3
    top = max(c.get_datalim(axes.transData).ymax for c in axes.collections)
    assert top == pytest.approx(2.0)
    assert len(plots.bytes_by_round(run).axes[0].patches) == 0
    assert len(inline(plots.seconds_by_round(run), "phases", "")) < 80_000


@pytest.mark.full
def test_a_flood_of_metrics_is_cut_and_counted(tmp_path: Path) -> None:
    flood = entry(1, 0.5, metrics={f"m{i}": float(i) for i in range(100)})
    tags = Tags(page_of(write_run(tmp_path / "a", [census(), flood])))
    assert "m23" in tags.text and "m24" not in tags.text
    assert "76 more are in the journal." in tags.text


def test_compared_runs_are_labelled_by_what_tells_them_apart(tmp_path: Path) -> None:
    by_method = [read(finished(tmp_path / n, method=n)) for n in ("fedkf", "fedavg")]
    assert labels(by_method) == ["fedkf", "fedavg"]
    by_rounds = [by_method[0], read(finished(tmp_path / "c", rounds=3, seed=2))]
    assert labels(by_rounds) == ["fedkf, rounds=2, seed=1", "fedkf, rounds=3, seed=2"]
    assert differences([[run] for run in by_rounds]) == {"rounds": [2, 3], "seed": [1, 2]}
    three = [by_method[1], *by_rounds]
    assert labels(three) == ["fedavg", *labels(by_rounds)]
    legend = plots.score(grouped(three)).legends[0]
    shown = [text.get_text().split() for text in legend.get_texts()]
    assert shown == [label.split() for label in labels(three)]
    alike = [by_method[0], read(finished(tmp_path / "d"))]
    assert labels(alike) == ["fedkf (fedkf)", "fedkf (d)"]


def test_axes_of_clients_accuracies_reach_a_little_beyond_their_range() -> None:
    models = {"own": ([0.9, 0.95, 1.0], [1, 1, 1]), "global": ([0.91, 0.92, 0.93], [1, 1, 1])}
    for draw in (plots.distribution, plots.mixtures):
        low, high = draw(models).axes[0].get_xlim()
        assert 0.88 < low < 0.9 and 1.0 < high < 1.02
    low, high = plots.distribution({"own": ([0.5, 0.5], [1, 1])}).axes[0].get_xlim()
    assert low < 0.5 < high


def labels(runs: list[Run]) -> list[str]:
    return [group.label for group in grouped(runs)]


def test_runs_that_differ_by_seed_alone_are_a_mean_with_a_band(tmp_path: Path) -> None:
    two = write_run(tmp_path / "b", [census(), entry(1, 0.8), entry(2, 0.6)], seed=2, summary={})
    other = finished(tmp_path / "c", method="fedavg")
    runs = [read(finished(tmp_path / "a")), read(two), read(other)]
    groups = grouped(runs)
    assert [group.label for group in groups] == ["fedkf, 2 seeds", "fedavg"]
    axes = plots.score(groups).axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.1, 0.7, 0.5])
    (band,) = axes.collections  # of 0.6 and 0.8: deviations ±0.1, variance (0.01 + 0.01) / 1
    highest = band.get_paths()[0].vertices[:, 1].max()  # type: ignore[index, union-attr]
    assert highest == pytest.approx(0.7 + 0.02**0.5)
    drawn = inline(plots.score(groups), "accuracy", "")
    assert "<title>fedkf, 2 seeds, round 1: 70.00 % ± 14.14 %</title>" in drawn
    tags = Tags(page_of(tmp_path / "a", two, other))
    assert "50.00 % ± 127.06" in tags.text and "fedkf, seed 2" not in tags.text
    assert differences([group.runs for group in groups])["seed"] == ["1, 2", 1]


def test_places_tell_no_runs_apart(tmp_path: Path) -> None:
    runs = [finished(tmp_path / "a"), finished(tmp_path / "b", method="fedavg")]
    for run, where in zip(runs, ("loopback", "ray"), strict=True):
        config = (run / "config.toml").read_text()
        (run / "config.toml").write_text(f'runtime = "{where}"\nout = "{run}"\n{config}')
    found = differences([[read(run)] for run in runs])
    assert found == {"method": ["fedkf", "fedavg"]}
    assert "/somewhere" not in page_of(*runs)


def test_every_row_of_clients_says_whose_model_it_is_and_a_mean_is_weighted(tmp_path: Path) -> None:
    a = finished(tmp_path / "a")
    shared = [census(), entry(1, 0.6), entry(2, 0.4, scores=GLOBAL)]
    b = write_run(tmp_path / "b", shared, method="fedavg", summary={})
    figure = plots.spread(grouped([read(a), read(b)]))
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == ["fedkf\nown models", "fedavg\nglobal model"]
    alone = plots.clients(read(b))
    assert "own" not in inline(alone, "clients", "") and len(alone.axes[0].patches) == 2
    assert "<title>client 1, global model: 80.0 %" in inline(alone, "clients", "")
    text = Tags(page_of(b)).text
    # (1 · 0.4 + 3 · 0.8) / 4; each client alike it would be 60 %
    assert "weighted by their test samples: global model 70.0 %" in text
    assert "70.00 %" in text and "models 60.0" not in text
    both = Tags(page_of(b, a)).text
    assert "70.00 % global model" in both and "50.00 % own models" in both


def test_a_score_of_a_client_that_was_busy_says_how_old_it_is(tmp_path: Path) -> None:
    scores = [SCORES[0] | {"age": 3}, SCORES[1]]
    folder = write_run(tmp_path / "a", [census(), entry(1, 0.6, scores=scores)], summary={})
    run, old = read(folder), "(measured 3 rounds before)"
    rows = of_clients(run, parameters=False).rows
    assert [[str(cell) for cell in row[3:]] for row in rows] == [
        *([f"25.0 % {old}", f"50.0 % {old}"], ["75.0 %", "50.0 %"])
    ]
    for figure in (plots.clients(run), plots.spread(grouped([run]))):
        svg = inline(figure, "clients", "")
        assert f"25.0 % {old}</title>" in svg and "75.0 %</title>" in svg
    assert str(scored(0.5, ClientScore(k=0, age=1))) == "50.0 % (measured 1 round before)"
    assert str(scored(None, ClientScore(k=0, age=1))) == "–"


def test_asynchronous_rounds_have_their_settings_and_the_staleness_of_the_last(
    tmp_path: Path,
) -> None:
    text = Tags(page_of(buffered(tmp_path / "a"))).text
    assert re.search(r"Staleness\s*1\.5\s*at most 2; 2 jobs in flight", text)
    assert "teachers" not in text
    with_teachers = Tags(page_of(buffered(tmp_path / "c", method="fedorion"))).text
    assert "in flight; the server's teachers are of several versions" in with_teachers
    shown = re.findall(r"\d / \d", text)
    assert shown == ["2 / 2", "2 / 2", "2 / 4"], "clients of which the update is in the round"
    assert "max-staleness" in text and "modebuffered" in "".join(text.split())
    text = Tags(page_of(clocked(tmp_path / "b"))).text
    assert "taleness" not in text, "[buffer] has no effect on it"


def test_settings_are_shown_as_the_method_resolves_them(tmp_path: Path) -> None:
    where = finished(tmp_path / "a", method="fedavg")
    with (where / "config.toml").open("a") as file:
        file.write('[average]\nweights = "auto"\nacross = "none"\n')
    text = Tags(page_of(where)).text
    assert text.split()[-2:] == ["weightssamples", "acrossnone"]


@pytest.mark.full
def test_a_comparison_marks_the_best_run(tmp_path: Path) -> None:
    better = [census(), entry(1, 0.7), entry(2, 0.7)]
    other = write_run(tmp_path / "b", better, method="fedavg", summary={})
    page = page_of(finished(tmp_path / "a"), other)
    marked = re.findall(r'<td class="n best">([^<]*)</td>', page)
    assert marked == ["70.00 %"] * 3


@pytest.mark.full
def test_points_bars_and_bubbles_say_their_values_on_hover(tmp_path: Path) -> None:
    run = read(finished(tmp_path / "a"))
    line = inline(plots.score([Group("fedkf", [run])]), "accuracy", "")
    assert "<title>round 1: 60.00 %</title>" in line and "<title>round 2: 40.00 %" in line
    both = inline(plots.score([Group("fedkf", [run]), Group("other", [run])]), "accuracy", "")
    assert "<title>other, round 2: 40.00 %</title>" in both
    bars = inline(plots.clients(run), "clients", "")
    assert "<title>client 1, own model: 75.0 %</title>" in bars
    bubbles = plots.partition(run)
    assert bubbles is not None
    assert "<title>client 1, class one: 4</title>" in inline(bubbles, "data", "")
    sent = inline(plots.bytes_by_round(run), "bytes", "")
    assert "<title>round 2, up 500 B</title>" in sent
    assert "<title>round 2, step 0.50 s</title>" in inline(plots.seconds_by_round(run), "time", "")


def test_as_many_texts_as_marks_or_none_at_all() -> None:
    figure = Figure()
    (dots,) = figure.add_subplot().plot([1, 2], [1, 2], "o")
    set_hover_texts(dots, ["one", "<two>"])
    assert "<title>one</title>" in inline(figure, "a", "")
    assert "<title>&lt;two&gt;</title>" in inline(figure, "a", "")
    set_hover_texts(dots, ["one"])
    assert "<title>" not in inline(figure, "a", "")


def test_amounts_read_as_one_writes_them() -> None:
    sizes = [0, 999, 1000, 1_234_567, 99_960_000, 73_728 * 4, 5e12, None]
    shown = "0 B, 999 B, 1.00 kB, 1.23 MB, 100 MB, 295 kB, 5.00 TB, –"
    assert ", ".join(map(tables.size, sizes)) == shown
    times = [0.424, 59.97, 200, 7260, 3599.9, float("nan")]
    shown = "0.42 s, 1 min 00 s, 3 min 20 s, 2 h 01 min, 1 h 00 min, –"
    assert ", ".join(map(tables.duration, times)) == shown
    assert (tables.percent(0.9312), tables.percent(None)) == ("93.1 %", "–")


def test_clean_keeps_one_printable_line_of_the_length_asked_for() -> None:
    assert tables.clean("a\x1b[31m\tb\r\nc\u202e") == "a�[31m b c�"
    assert tables.clean("x" * 300, 10) == "x" * 9 + "…"


def test_a_cell_is_the_mean_over_seeds_and_half_of_its_interval_and_says_what_is_missing() -> None:
    cell = TABLE.cell("FedAvg", "α = 1")  # deviations −2, 0, 2: variance (4 + 0 + 4) / 2 = 4
    assert (cell.mean, cell.std) == (82.0, 2.0)
    assert cell.interval == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-6)  # t of 2 at 0.975
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.776445 * 0.5**0.5, rel=1e-6)
    assert half_width([1.0]) is half_width([1.0, math.inf]) is None
    assert TABLE.ours("FedAvg", "α = 1") == "82.00 ± 4.97"
    assert "Mean of 3 seeds ± half of its 95 % interval (Student's t)." in TABLE.footnotes()
    assert TABLE.theirs("FedAvg", "α = 1") == "(83.78)"
    assert TABLE.ours("FedAvg", "α = 0.1") == TABLE.ours("Fed|KF", "α = 0.1") == "–"
    assert TABLE.theirs("Fed|KF", "α = 0.1") == "(82.94)"
    assert TABLE.ours("Fed|KF", "α = 1") == "85.00 [1]"
    assert "– not run, or not measured." in TABLE.footnotes()
    cells = {("a", "c"): Measured((18.0, 20.0, math.inf))}
    some = Comparison("t", ("a",), ("c",), cells, better="lower")
    assert some.ours("a", "c") == "∞ (1 of 3)"
    assert "∞ (n of m): n of m seeds never reach it." in some.footnotes()


def test_the_best_of_a_column_is_marked_where_there_is_a_choice() -> None:
    assert TABLE.best("α = 1") == {"Fed|KF"} and TABLE.best("α = 0.1") == set()
    cells = {(row, "c"): Measured((v,)) for row, v in (("a", 1.001), ("b", 1.002), ("d", 2.0))}
    lower = Comparison("t", ("a", "b", "d"), ("c",), cells, better="lower")
    assert lower.best("c") == {"a", "b"}  # both print as 1.00
    assert Comparison("t", ("a", "b", "d"), ("c",), cells, better="").best("c") == set()


def runs_of(numbers: list[int]) -> list[list[int]]:
    """Split ascending numbers where one is missing."""
    starts = [i for i, n in enumerate(numbers) if not i or n - numbers[i - 1] > 1]
    return [numbers[a:b] for a, b in pairwise([*starts, len(numbers)])]


def test_every_rendering_holds_the_same_cells(tmp_path: Path) -> None:
    console = Console(width=120, record=True, file=(tmp_path / "t.txt").open("w"))
    table = TABLE.table()
    console.print(*tables.terminal(table))
    texts = [console.export_text(), tables.markdown(table), tables.html(table), tables.csv(table)]
    texts.append(tables.latex(table).replace(r"$\pm$", "±").replace("{[}", "[").replace(r"\%", "%"))
    for text in texts:
        for cell in ("82.00 ± 4.97", "(83.78)", "85.00 [1]", "(82.94)"):
            assert cell in text
    assert all("Table 1 (%)" in text for text in (*texts[:3], texts[4]))
    assert "| Fed\\|KF | **85.00 [1]** |" in texts[1]
    assert "<b>" not in texts[2] and "&lt;b&gt;note" in texts[2]
    png(table, tmp_path / "t.png")
    dark = imread(tmp_path / "t.png")[..., :3].mean(axis=2) < 0.6
    rules = [y for y, row in enumerate(dark) if row.mean() > 0.6]
    top, middle, bottom = (group[0] for group in runs_of(rules))
    assert (bottom - middle) / (middle - top) == pytest.approx(len(table.rows), rel=0.1)


def test_each_rendering_prints_a_text_as_it_stands() -> None:
    rows = [["x_1", tables.Cell("50 %", best=True)], ["[y]", "<i>, \\"]]
    odd = tables.Table(("", "a|b"), rows, notes=("# $n$",))
    assert "| x\\_1 | **50 %** |" in tables.markdown(odd) and "a\\|b" in tables.markdown(odd)
    assert "<i>" not in tables.html(odd) and '<td class="n best">50 %</td>' in tables.html(odd)
    assert r"x\_1 & \textbf{50 \%} \\" in tables.latex(odd) and "\\\\\n[" not in tables.latex(odd)
    assert r"\textless{}i\textgreater{}, \textbackslash{}" in tables.latex(odd)
    assert r"\# \$n\$" in tables.latex(odd)
    assert tables.csv(odd) == ',a|b\nx_1,50 %\n[y],"<i>, \\"\n'


def test_the_spreadsheet_has_a_line_for_each_cell_and_numbers_alone() -> None:
    assert tables.csv(TABLE.numbers()).splitlines() == [
        "row,column,mean,std,interval,seeds,paper",
        "FedAvg,α = 1,82,2,4.968275424,3,83.78",
        "FedAvg,α = 0.1,,,,0,",
        "Fed|KF,α = 1,85,,,1,",
        "Fed|KF,α = 0.1,,,,0,82.94",
    ]


def test_a_table_too_wide_for_the_terminal_goes_on_below() -> None:
    columns = tuple(f"column {c}" for c in range(6))
    cells = {("a", c): Measured((0.5, 1.5)) for c in columns}
    wide = Comparison("t", ("a",), columns, cells, notes=("the end",))
    assert len(tables.terminal(wide.table(), 200)) == 1
    parts = tables.terminal(wide.table(), 50)
    console = Console(width=50, record=True, file=io.StringIO())
    console.print(*parts, sep="\n")
    text = console.export_text()
    assert len(parts) == 2 and text.count("1.00 ± 6.35") == 6 and "…" not in text
    assert text.index("t (%)") < text.index("column 0") < text.index("column 5")
    assert text.count("t (%)") == text.count("the end") == 1
    assert text.index("the end") > text.index("column 5")
