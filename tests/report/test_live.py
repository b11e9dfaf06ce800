"""``fedmosaic watch``: a page on this machine follows a run, and nothing else is served; and the
pages of a comparison, a report and a table in a browser: sorting, contrast, the width of a phone.
"""

import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from common.journal import VERSION, Entry
from deploy.report.live import POLICY, SCRIPT, LivePage, check
from deploy.report.pages import write_report
from deploy.report.serve import MOST, Server
from deploy.settings import EXPERIMENTS
from deploy.study import paper_table
from tests.papers import RESULTS
from tests.support.adversary import note
from tests.support.browser import PROGRAM, Browser, check_look
from tests.support.commandline import command_line, typed
from tests.support.run_folder import census, entry, finished, write_run
from tests.support.waiting import until

TABLE = EXPERIMENTS / "averaging_small.toml"
RECORD = RESULTS / "averaging_small" / "cells.jsonl"
Answer = tuple[int, dict[str, str], bytes]


def ask(url: str, method: str = "GET", path: str = "/", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read()


def add(folder: Path, one: Entry) -> None:
    with open(folder / "journal.jsonl", "a", encoding="utf-8") as file:
        file.write(one.line() + "\n")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, Server]]:
    """A run after its first round, and a server of its page."""
    folder = write_run(tmp_path / "run", [census(), entry(1, 0.5)], rounds=5)
    with Server("127.0.0.1", 0, {"/": LivePage(folder).route}, ["fed.example.org"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, server
        server.shutdown()


def test_only_the_page_is_served_by_get_to_local_names(served: tuple[Path, Server]) -> None:
    _, server = served
    status, headers, page = ask(server.url)
    assert status == 200 and server.local and b"unfinished: round 1 of 5" in page
    policy = headers["Content-Security-Policy"]
    assert policy.startswith(POLICY) and "frame-ancestors 'none'" in policy
    assert f"<script>{SCRIPT}</script>" in page.decode() and page.count(b"<script") == 1
    assert not re.search(r"(src|href)=\"(?!#)", page.decode()), "nothing is loaded"
    again, _, nothing = ask(server.url, **{"If-None-Match": headers["ETag"]})
    assert (again, nothing) == (304, b"")
    for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
        status, headers, _ = ask(server.url, method)
        assert (status, headers["Allow"]) == (405, "GET")
    for path in ("/journal.jsonl", "/../run/journal.jsonl", "/?x", "/metrics"):
        assert ask(server.url, path=path)[0] == 404, path
    names = {"127.0.0.1:1": 200, "[::1]": 200, "LOCALHOST": 200, "fed.example.org:8080": 200}
    names |= {"evil.example": 403, "": 403, "127.0.0.1.evil.example:80": 403}
    assert {name: ask(server.url, Host=name)[0] for name in names} == names


@pytest.mark.parametrize("more", [3, pytest.param(500, marks=pytest.mark.hostile)])
def test_clients_that_send_for_ever_keep_nobody_away(
    more: int, served: tuple[Path, Server]
) -> None:
    _, server = served
    address, before = server.server_address[:2], threading.active_count()
    with contextlib.ExitStack() as stack:
        slow = []
        for _ in range(MOST + more):
            slow.append(stack.enter_context(socket.create_connection(address)))
            slow[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        assert slow[0].recv(1) == b"", "the oldest connection is closed"
        assert ask(server.url)[0] == 200
        until("threads to end", lambda: threading.active_count() <= before + MOST)
        slow[-1].sendall(b"y\r\n\r\n")
        assert slow[-1].recv(12) == b"HTTP/1.0 200"
    attempt = f"{MOST + more} connections to watch send their requests for ever"
    note(attempt, "completed, undisturbed", f"the page answers; at most {MOST} are open")


def test_the_page_follows_the_files_and_drawing_takes_a_fifth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now, spent = tmp_path / "run", [0.0], iter(range(0, 1000, 10))
    monkeypatch.setattr("deploy.report.live.monotonic", lambda: now[0])
    monkeypatch.setattr("deploy.report.live.thread_time", lambda: next(spent))
    live = LivePage(folder)
    assert b"waiting for the run" in live.page()  # drawing took 10 s of the processor
    write_run(folder, [census()], rounds=5)
    now[0] = 39.0
    assert b"waiting for the run" in live.page()
    now[0] = 41.0
    assert b"unfinished: round 0 of 5" in live.page()
    now[0] = 99.0
    (folder / "journal.jsonl").write_text(f'{{"version": {VERSION + 1}, "round": 0}}\n')
    page = live.page()
    assert b"cannot be read" in page and f"reads version {VERSION}" in page.decode()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "not a run's directory; it has no journal.jsonl"),
        ("absent", "not a directory"),
        ("run --port 70000", "70000 is not in the range 0<=x<=65535"),
        ("run --host nowhere.invalid", "nowhere.invalid, port 0: "),
        ("run --port TAKEN", "of 127.0.0.1 is in use; choose another one, or 0 for a free one"),
    ],
)
def test_a_mistake_is_one_line(
    words: str, line: str, tmp_path: Path, served: tuple[Path, Server]
) -> None:
    name, *options = words.replace("TAKEN", served[1].url.rpartition(":")[2]).split(" ")
    done = typed("watch", tmp_path / name, *options)
    assert done.returncode > 0 and line in done.stderr and done.stderr.count("\n") == 1


def test_runs_that_just_started_or_have_finished_are_served(tmp_path: Path) -> None:
    (tmp_path / ".running").touch()
    check(tmp_path)
    check(tmp_path / "later", wait=True)
    assert b"waiting for the run" in LivePage(tmp_path).page()
    folder = finished(tmp_path / "run")
    check(folder)
    assert b'<span class="pill done">2 rounds</span>' in LivePage(folder).page()


@pytest.mark.full
@pytest.mark.skipif(not find_spec("prometheus_client"), reason="pip install 'fedmosaic[metrics]'")
def test_the_command_follows_a_run_from_before_its_start_until_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    follow = command_line("watch", folder, "--wait", "--metrics", 0)
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)  # not so under nohup
    with subprocess.Popen(follow, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as watch:
        try:
            assert watch.stdout is not None
            url, metrics = (watch.stdout.readline().split()[1] for _ in range(2))
            url, metrics = url.rstrip("/"), metrics.removesuffix("/metrics")
            write_run(folder, [census(), entry(1, 0.5)], rounds=5)
            for t in (1, 2):
                text = f"unfinished: round {t} of 5"
                until(text, lambda text=text: text.encode() in ask(url)[2])
                add(folder, entry(t + 1, 0.75))
            scraped = ask(metrics, path="/metrics")[2].decode()
            assert re.findall(r"^fedmosaic_round (.*)", scraped, re.M) == ["3.0"]
            assert ask(metrics)[0] == 404, "the page is on the other port"
            watch.send_signal(signal.SIGINT)
            assert watch.wait() == 0
        finally:
            watch.kill()


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_a_browser_shows_new_rounds(served: tuple[Path, Server], tmp_path: Path) -> None:
    folder, server = served
    pictures = os.environ.get("PICTURES")  # a folder for a look at the page
    rounds = "document.querySelector('.pill').textContent"
    with Browser(server.url, tmp_path / "profile") as page:
        status = "document.getElementById('live').textContent"
        until("the script", lambda: page.value(status) == "This page follows the run.")
        page.value("window.mark = 1; document.querySelector('details').open = true")
        scores = [{"k": k, "n": 3, "accuracy": 0.5, "accuracy_global": 0.25} for k in (0, 1)]
        add(folder, entry(2, 0.75, scores=scores))
        until("round 2", lambda: page.value(rounds) == "unfinished: round 2 of 5")
        headings = page.value("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        assert {"Learning", "Clients", "Fairness"} <= set(headings), "new sections are added"
        order = re.findall(r'<h2 id="s\d+">([^<]*)<', ask(server.url)[2].decode())
        assert headings == [text.replace("&#39;", "'") for text in order]
        assert page.value("window.mark") == 1, "the page was not reloaded"
        assert page.value("document.querySelector('details').open"), "an open table stays open"
        for width in (1280, 375):
            picture = Path(pictures) / f"live-{width}.png" if pictures else None
            assert page.width(width, picture) <= width, "nothing is wider than the page"
        assert page.errors == []
        server.shutdown()
        server.server_close()
        until("the loss", lambda: "No connection" in page.value(status))
        assert page.value(rounds) == "unfinished: round 2 of 5", "the last page stays"


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    """A report, a comparison of three runs, and a recorded table as pages."""
    methods = ("fedkf", "fedavg", "fedprox")
    runs = [finished(tmp_path / m, method=m, seed=i) for i, m in enumerate(methods, start=1)]
    write_report(runs[:1], tmp_path / "one.html")
    write_report(runs, tmp_path / "several.html")
    shutil.copy(RECORD, tmp_path)
    file = paper_table.read(TABLE)
    paper_table.write(paper_table.collect(file, tmp_path), file, tmp_path, "table")
    return [tmp_path / name for name in ("one.html", "several.html", "table.html")]


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_readable(pages: list[Path], tmp_path: Path, scheme: str) -> None:
    addresses = {f"report-{page.stem}": page.as_uri() for page in pages}
    check_look(addresses, tmp_path / "profile", scheme)


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_the_results_of_a_comparison_can_be_sorted(pages: list[Path], tmp_path: Path) -> None:
    rows = "[...document.querySelectorAll('table')[0].tBodies[0].rows]"
    names = f"{rows}.map(row => row.cells[0].textContent)"
    with Browser(pages[1].as_uri(), tmp_path / "profile") as shown:
        assert shown.value(names) == ["fedkf", "fedavg", "fedprox"]
        button = "document.querySelector('thead button')"
        shown.value(f"{button}.click()")
        assert shown.value(names) == ["fedprox", "fedkf", "fedavg"]
        shown.value(f"{button}.click()")
        assert shown.value(names) == ["fedavg", "fedkf", "fedprox"]
        texts = ["4.58 MB", "900 kB", "3 min 20 s", "–", "93.1 %", "1,234", "2 / 3"]
        cell = "cellValue({cells: [{textContent: '%s'}]}, 0)"
        values = [shown.value(cell % text) for text in texts]
        assert values == [4.58e6, 9e5, 200, None, 93.1, 1234, 2] and shown.errors == []
