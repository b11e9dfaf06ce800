"""Results on the virtual clock: sections of a report, and measured times beside virtual ones."""

import json
import shutil
from pathlib import Path

import pytest

from common.journal import Arrivals, ClockTime
from deploy.report import clock, plots
from deploy.report.groups import grouped
from deploy.report.pages import write_report
from deploy.report.read import read
from deploy.report.style import Section, inline
from deploy.report.table import Table
from deploy.study.clock import compare
from tests.support.commandline import typed
from tests.support.run_folder import buffered, census, clocked, entry, finished, write_run


def section_of(*folders: Path) -> Section:
    section = clock.section(grouped([read(folder) for folder in folders]))
    assert section is not None
    return section


def table_of(section: Section) -> Table:
    table = section.cards[-1].table
    assert table is not None
    return table


def test_a_run_has_its_times_its_course_and_the_jobs_of_its_last_round(tmp_path: Path) -> None:
    section = section_of(clocked(tmp_path / "run"))
    # of 10 s the clients wait 8, 6, 4, 2 and 0 s, and the late one 0 s
    assert list(table_of(section).rows[0]) == [
        *("fedavg", "30.0 s", "client 5, phone-low: 12.0 s a job", "33.3 %", "3 of 18", "4.50 kJ")
    ]
    course, jobs, _ = section.cards
    assert course.figure is not None and jobs.figure is not None and jobs.title == "Jobs of round 3"
    (line, *_), (axes,) = course.figure.axes[0].lines, jobs.figure.axes
    assert list(zip(*line.get_data(), strict=True)) == [
        *((0.0, 0.1), (10.0, pytest.approx(0.2)), (20.0, 0.6)),
        (30.0, pytest.approx(1 - 0.8 / 3)),
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("5, phone-low", "4, phone-high", "3, phone-low", "2, phone-high", "1, pi4"),
        "0, phone-high",
    ]
    assert [bar[0].get_width() for bar in axes.containers] == [12, 10, 8, 6, 4, 2]
    colours = [bar[0].get_facecolor() for bar in axes.containers]
    assert len(set(colours)) == 2 and colours.count(colours[0]) == 1, "the first one is late"
    assert axes.lines[0].get_xdata() == [10, 10], "the end of the round"
    assert course.behind is not None and jobs.behind is not None
    assert course.behind.rows[1] == (
        *("2", "60.00 %", "10.0 s", "20.0 s", "client 5, phone-low", "1"),
    )
    assert list(jobs.behind.rows[0]) == [
        *("5", "phone-low", "?", "late or not needed", "12.0 s", "4.00 kB", "2.00 kB")
    ]


def test_asynchronous_rounds_without_a_clock_show_staleness_and_lost_jobs(tmp_path: Path) -> None:
    folder = buffered(tmp_path / "run")
    entries = [e.model_copy(update={"clock": None}) for e in read(folder).entries]
    assert entries[2].buffer is not None
    entries[2].buffer.events.append(("lost", 2, 0))
    section = section_of(write_run(tmp_path / "real", entries))
    assert section.title == "Asynchronous rounds"
    picture, table = section.cards
    assert picture.figure is not None
    (line, *_), (axes,) = picture.figure.axes[0].lines, picture.figure.axes
    assert list(line.get_xdata()) == [6.0, 10.0, 15.0] and list(line.get_ydata()) == [0, 0.5, 1.5]
    assert axes.get_xlabel() == "seconds since the run began"
    assert table.table is not None and table.table.rows[0][2] == "1 of 8"
    other = finished(tmp_path / "other")
    assert clock.section(grouped([read(other)])) is None


def test_many_jobs_are_the_slowest_and_quantiles(tmp_path: Path) -> None:
    count = clock.SINGLE + 1
    section = section_of(clocked(tmp_path / "run", clients=count))
    assert section.cards[1].figure is not None
    (axes,) = section.cards[1].figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == clock.SLOWEST + 5
    assert labels[0] == f"{count - 1}, phone-high" and labels[clock.SLOWEST + 2] == "median"
    assert axes.containers[clock.SLOWEST + 2][0].get_width() == 2 * (count // 2 + 1)


def test_runs_are_compared_by_time_on_the_clock_where_one_has_it(tmp_path: Path) -> None:
    """A run without a clock has no line and no row; runs without one have no such picture."""
    runs = [clocked(tmp_path / "a"), clocked(tmp_path / "b", rounds=2, seed=7, name="b")]
    plain = [finished(tmp_path / "c"), finished(tmp_path / "d", seed=4, method="local")]
    assert [row[1] for row in table_of(section_of(*runs, plain[0])).rows] == ["30.0 s", "20.0 s"]
    page = tmp_path / "report.html"
    write_report([*runs, plain[0]], page)
    text = page.read_text()
    assert "Accuracy by time on the clock" in text and "round 2, 20.0 s: 60.00 %" in text
    write_report(runs[:1], page)
    assert "<pattern" in page.read_text() and 'fill="#' not in page.read_text(), "as the scheme"
    for some in (plain, plain[:1]):
        write_report(some, page)
        assert "clock" not in page.read_text()
    assert not plots.CLOCK.known(read(plain[0]))


def test_an_asynchronous_run_has_its_staleness_and_its_jobs_on_the_clock(tmp_path: Path) -> None:
    """Staleness 0 and 0, 1 and 0, 2 and 1: a mean of 4/6; nobody waits for a round's end."""
    section = section_of(buffered(tmp_path / "run"))
    (row,) = table_of(section).records()
    slowest = "client 2, phone-high: 14.0 s a job"
    assert row == {
        **{"run": "fedavg", "time": "15.0 s", "slowest client": slowest},
        **{"staleness": "0.7 (at most 2)", "dropped": "2 of 8", "energy": "4.50 kJ"},
    }
    assert "Idle" not in section.lead and "Staleness: steps of the server" in section.lead
    course, staleness, jobs, _ = section.cards
    assert course.behind is not None and staleness.figure is not None
    assert course.behind.header[-3:] == ["dropped", "staleness", "in flight"]
    assert [row[-3:] for row in course.behind.rows] == [
        *(("0", "0.0 (at most 0)", "2"), ("0", "0.5 (at most 1)", "2")),
        ("2", "1.5 (at most 2)", "2"),
    ]
    (axes,) = staleness.figure.axes
    means = [(6.0, 0.0), (10.0, 0.5), (15.0, 1.5)]
    assert list(zip(*axes.lines[0].get_data(), strict=True)) == means
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {*means, (10.0, 1.0), (15.0, 2.0)}
    assert "<title>round 3, 15.0 s: staleness 1.5 (at most 2)" in inline(staleness.figure, "s", "")
    assert jobs.figure is not None and jobs.behind is not None
    (axes,) = jobs.figure.axes
    bars = [(bar[0].get_x(), bar[0].get_width()) for bar in axes.containers]
    assert bars == [(0.0, 14.0), (9.0, 6.0)], "from 0 s to 14 s, and from 9 s to 15 s"
    assert axes.lines[0].get_xdata() == [15, 15], "the step"
    assert axes.get_xlabel() == "seconds on the virtual clock; dashed: the step"
    assert "2, phone-high: 14.0 s, staleness 2</title>" in inline(jobs.figure, "j", "")
    assert [(row[0], row[3]) for row in jobs.behind.rows] == [
        *(("2", "staleness 2"), ("1", "staleness 1"), ("3", "dropped"), ("0", "dropped")),
    ]


def test_a_job_without_a_time_of_its_own_has_no_bar(tmp_path: Path) -> None:
    """Client 1 has a dropped job and an update in one step; client 2's job was lost."""
    times = ClockTime(start=10.0, end=20.0, clients={0: 4.0, 1: 9.0}, late=[1, 2])
    buffer = Arrivals(arrived=[(0, 0), (1, 1)], times=[15.0, 20.0], staleness=[1, 0])
    entries = [census(), entry(2, 0.5, clock=times, buffer=buffer)]
    section = section_of(write_run(tmp_path / "run", entries))
    assert table_of(section).records()[0]["dropped"] == "2 of 4"
    assert section.cards[2].figure is not None
    (bars,) = section.cards[2].figure.axes[0].containers
    assert (bars[0].get_x(), bars[0].get_width()) == (11.0, 4.0)
    assert section.cards[2].alt == "Bars: time of 1 jobs in round 2, up to 4.00 s."


def test_many_jobs_of_an_asynchronous_round_are_the_slowest_alone(tmp_path: Path) -> None:
    """Quantiles are no times on the clock."""
    count, run = clock.SINGLE + 1, read(buffered(tmp_path / "run"))
    times = ClockTime(start=90.0, end=100.0, clients={k: 10.0 + k for k in range(count)})
    arrived = [(k, 0) for k in range(count)]
    buffer = Arrivals(arrived=arrived, times=[100.0] * count, staleness=[0] * count)
    (axes,) = clock.jobs(run, times, buffer).axes
    bars = [(bar[0].get_x(), bar[0].get_width()) for bar in axes.containers]
    assert bars == [(40.0 + i, 60.0 - i) for i in range(clock.SLOWEST)]


def test_asynchronous_and_synchronous_runs_stand_beside_each_other(tmp_path: Path) -> None:
    folders = [clocked(tmp_path / "a", name="a"), buffered(tmp_path / "b", name="b")]
    section = section_of(*folders)
    first, second = table_of(section).records()
    names = ("time", "idle", "staleness", "late or not needed", "dropped")
    assert [first[name] for name in names] == ["30.0 s", "33.3 %", "–", "3 of 18", "–"]
    assert [second[name] for name in names] == ["15.0 s", "–", "0.7 (at most 2)", "–", "2 of 8"]
    write_report(folders, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<title>b, round 2, 10.0 s: 60.00 %" in page, "beside a, round 2, 20.0 s"


def test_a_private_asynchronous_run_has_neither_idle_clients_nor_staleness(tmp_path: Path) -> None:
    folder = buffered(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["clock"] = {"start": line["clock"]["start"], "end": line["clock"]["end"]}
        del line["buffer"]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = section_of(folder)
    texts = {"run": "fedavg", "time": "15.0 s", "slowest client": "–", "staleness": "–"}
    assert table_of(section).records() == [{**texts, "dropped": "–", "energy": "–"}]
    assert [card.title for card in section.cards] == ["Accuracy by time on the clock", ""]
    assert section.cards[0].behind is not None
    assert section.cards[0].behind.rows[0][-2:] == ("–", "–")


def test_a_private_run_has_its_time_and_no_client(tmp_path: Path) -> None:
    folder = clocked(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["clock"] = {"start": line["clock"]["start"], "end": line["clock"]["end"]}
        del line["measured"]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = section_of(folder)
    assert list(table_of(section).rows[0]) == ["fedavg", "30.0 s", *["–"] * 4]
    assert [card.title for card in section.cards] == ["Accuracy by time on the clock", ""]
    with pytest.raises(ValueError, match="has no measured seconds of clients"):
        compare(folder)


def test_measured_times_stand_beside_virtual_ones(tmp_path: Path) -> None:
    """10⁹ operations take 1.96 of client 0's 2 s at .51 GFLOP/s, and .14 s of client 1's 4 s."""
    slow = {"profile.own.flops": 0.51e9, "profile.own.down": 1e8, "profile.own.up": 1e8}
    folder = clocked(tmp_path / "run", **slow, **{"node.0.profile": "own"})
    times = compare(folder)
    assert times.energy == 4500
    first, second = times.clients[:2]
    assert (first.k, first.profile, first.architecture, first.jobs) == (0, "own", "resnet8", 3)
    assert (first.virtual, first.measured, first.ratio) == (2.0, 1.0, 0.5)
    assert first.efficiency is not None and second.efficiency is None
    rest = 2 - 1e9 / 0.51e9
    assert rest + 1e9 / (0.51e9 * first.efficiency) == pytest.approx(1.0)
    assert second.profile == "pi4" and second.ratio == 0.5
    two = clocked(tmp_path / "two", clients=2, **slow, **{"node.1.profile": "own"})
    assert compare(two).clients[1].efficiency is None, "the late job's operations are unknown"
    drawn = clocked(tmp_path / "drawn", **slow, **{"node.0.profile": "own", "clock.jitter": 0.1})
    assert compare(drawn).clients[0].efficiency is None
    shown, answer = typed("clock", folder), typed("clock", folder, "--json")
    assert "resnet8" in shown.stdout and "for ranking runs, no measurement" in shown.stdout
    assert json.loads(answer.stdout)["clients"][0]["efficiency"] == first.efficiency


def test_a_run_without_a_clock_or_measured_times_is_one_line(tmp_path: Path) -> None:
    folder = clocked(tmp_path / "run")
    plain = shutil.copytree(folder, tmp_path / "plain")
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    for name, where in (("measured", folder), ("clock", plain)):
        kept = [{key: value for key, value in line.items() if key != name} for line in lines]
        (where / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    for where, reason in ((folder, "no measured seconds of clients"), (plain, "no virtual clock")):
        done = typed("clock", where)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and reason in done.stderr
