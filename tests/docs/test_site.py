"""The documentation as a site: equations, what a method's page says, and a strict build."""

import functools
import http.server
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import client_app.methods
import server_app.methods
from common.methods import contract, facts, names, options
from common.parse import parse
from common.settings.facts import NOT_STATED, Facts
from common.settings.version import ROOT
from deploy.leaderboard import page as leaderboard_page
from deploy.leaderboard.board import Board
from deploy.leaderboard.ranking import sections
from deploy.report import chooser
from deploy.report.listing import described
from deploy.report.table import markdown, size
from deploy.settings import DEFAULT, resolve
from deploy.study import paper_table
from docs.tools import equations, generate, measure, method_page, paper_page, reference_page
from server_app.distillation.public_set import ServerPublicSet, SharedPublicSet
from tests.papers import RESULTS, place
from tests.papers.claims_page import stem
from tests.papers.judging import read
from tests.support.battery import EXAMPLE
from tests.support.board import chosen, fill
from tests.support.browser import PROGRAM, Browser, check_look
from tests.support.commandline import completed, error_of, typed
from tests.support.engine import Quiet
from tests.support.waiting import until

pytestmark = pytest.mark.docs

NO_MKDOCS = "mkdocs is not installed: pip install '.[docs]'"
SHOWN = ("index", "start", "comparison", "methods/fedin", "methods/dense", "methods/chooser")
SHOWN += ("results/papers", "results/fedin", "results/fedin-comparisons", "reference/settings")
SHOWN += ("results", "speed", "results/records/fedkf_small", "results/records/fedorion_toy")
SHOWN += ("reference/errors", "reference/api", "leaderboard", "write-a-method")
SHOWN += ("leaderboard-results", "results/records/leaderboard_fashion")


def test_an_equation_becomes_mathml_and_its_words_stay_text() -> None:
    shown = str(equations.line("client: w ← Σ_{k∈S_t} p_k w_k for each round"))
    assert shown.startswith("client: <math>") and shown.endswith("</math> for each round")
    assert "<msub><mo>∑</mo><mrow><mi>k</mi><mo>∈</mo><msub><mi>S</mi><mi>t</mi></msub>" in shown
    assert "<msub><mi>p</mi><mi>k</mi></msub><msub><mi>w</mi><mi>k</mi></msub>" in shown


def test_scripts_accents_and_marks_of_html_are_kept() -> None:
    assert equations.inline("x̂") == "<math><mover><mi>x</mi><mo>^</mo></mover></math>"
    squared = "<msubsup><mi>σ</mi><mi>k</mi><mn>2</mn></msubsup>"
    assert equations.inline("σ²_k") == equations.inline("σ_k²") == f"<math>{squared}</math>"
    assert "<mo>&lt;</mo>" in equations.inline("a < b")


def test_every_part_of_a_contract_is_on_its_page() -> None:
    for name in names():
        source, body, deviations = method_page.sections_of(contract(name))
        text = " ".join((contract(name).__doc__ or "").split())
        assert source and body, name
        for part in (source, body[:80], body[-80:], deviations[:80], deviations[-80:]):
            assert " ".join(part.split()) in text, name
        assert bool(deviations) == ("\n\nDeviations" in (contract(name).__doc__ or "")), name


def test_facts_that_code_decides_are_those_of_the_code() -> None:
    """The public set by the halves' bases, the networks by what a client trains."""
    bases = {"everybody": SharedPublicSet, "server": ServerPublicSet}
    for name in names():
        stated, server = facts(name), server_app.methods.half(name)
        public = [who for who, base in bases.items() if issubclass(server, base)]
        assert stated.public == (public or ["none"])[0], name
        config = parse(resolve(DEFAULT, [f"method={name}", *method_page.needed(name)]))
        trains_own = client_app.methods.half(name).trains_own(config)
        if stated.networks == "own":
            assert trains_own, name
        if {"width", "depth", "layerwise"} & {*getattr(options(name), "schemes", ())}:
            assert stated.networks == "parts", name


def test_no_fact_of_a_built_in_method_is_left_out_and_a_plug_in_need_not_state_any() -> None:
    for name in names():
        stated = {key: value for key, value in vars(facts(name)).items() if key != "paper"}
        assert NOT_STATED not in stated.values(), name
    assert facts(EXAMPLE) == Facts()


def test_generated_texts_are_those_of_the_contracts() -> None:
    for path, text in generate.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python -m docs.tools.generate"
    assert chooser.recorded() == {name: facts(name).answers for name in names()}


def test_the_command_and_the_page_choose_the_same_methods() -> None:
    page = method_page.chooser([method_page.known(name) for name in names()])
    items = re.findall(r'<li (data-[^>]*)><a href="([\w-]+).html">', page)
    shown = {name: dict(re.findall(r'data-(\w+)="([^"]*)"', data)) for data, name in items}
    assert [*shown] == [*names()] == [*chooser.recorded()]
    single = [{key: one} for key, (_, answers) in chooser.QUESTIONS.items() for one in answers]
    for first, second in itertools.product(single, single):
        wanted = first | second
        fit = [n for n in shown if all(v in shown[n][k].split() for k, v in wanted.items())]
        assert chooser.fitting(wanted) == fit, wanted


def test_a_wrong_answer_is_refused_in_a_line_with_the_allowed_ones() -> None:
    listed = typed("list", "methods", "--public", "none", "--rounds", "one", "--json")
    found = json.loads(listed.stdout)
    assert [row["method"] for row in found] == ["co-boosting", "dense"]
    error = error_of("list", "methods", "--public", "maybe")
    assert "'maybe' is not one of 'none', 'server', 'everybody'" in error
    other = typed("list", "models", "--rounds", "one")
    assert other.stderr == "error: --rounds is for list methods, not list models\n"


def test_each_page_has_the_bytes_and_operations_of_a_round() -> None:
    recorded = measure.read()
    assert [*recorded] == [*names()], f"run {measure.COMMAND}"
    page = method_page.page(method_page.known("fedavg"))
    one = recorded["fedavg"]
    assert one["down"] > 0 and one["up"] > 0 and one["operations"] > 0
    assert f"A client receives {size(one['down'] / measure.CLIENTS)}, sends " in page
    assert f"`{measure.COMMAND} fedavg` repeats the" in page


def check_measured(name: str) -> None:
    known, measured = measure.read()[name], measure.measure(name)
    for way in ("down", "up"):  # compressed numbers differ in length where another CPU rounds
        assert abs(measured.pop(way) - (whole := known.pop(way))) <= max(200, whole // 1000), way
    assert measured == known, f"run {measure.COMMAND} {name}"


def test_a_measured_round_has_the_recorded_bytes_and_operations() -> None:
    check_measured("fedavg")
    check_measured("dl-sh")


@pytest.mark.exhaustive
def test_every_measured_round_has_the_recorded_bytes_and_operations() -> None:
    for name in names():
        check_measured(name)


def test_a_page_has_the_methods_rows_of_the_leaderboard(tmp_path: Path) -> None:
    board = chosen(tmp_path)
    assert method_page.standing("fedprox", list(sections(board))) == ""
    fill(board, paper_table.cells(board.board()), {"local": 0.5, "FedProx": 0.7})
    board = Board(tmp_path, board.protocol)
    found = list(sections(board))
    text = method_page.standing("fedprox", found)
    (line,) = [line for line in text.splitlines() if line.startswith("| FedProx")]
    table = leaderboard_page.table(found[0], False)
    expected = markdown(replace(table, rows=[[*table.rows[0][:-2]]], header=table.header[:-2]))
    _, *cells = expected.splitlines()[-1].split(" | ")
    assert line == " | ".join(["| FedProx, points, one, α = 0.5", *cells]) and "71.5 %" in line
    assert method_page.standing("fedavg", found) == ""
    assert {one.protocol.name for one in method_page.recorded()} >= {"fashion"}


def test_each_paper_has_a_page_with_every_claim_and_its_verdict() -> None:
    pages = paper_page.pages()
    for paper in read():
        text = pages[f"results/{stem(paper)}.md"]
        details = pages[f"results/{stem(paper)}-comparisons.md"]
        assert paper.conclusion in text and paper.ran in text and paper.differs in text
        for claim in paper.claim:
            assert claim.says in text and f"(`{claim.name}`)" in text
            assert f"## {claim.name}\n" in details
            for test in claim.test:
                assert re.search(rf"^\| \[?`?{test.table}\b", text, re.MULTILINE)
        for name in paper.records:
            assert f"| [{name}](records/{name}.md) |" in text


def test_each_record_has_a_page_with_its_numbers_and_protocol() -> None:
    pages = paper_page.pages()
    linked = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    folders = [path.parent for path in RESULTS.glob("*/*.md") if path.parent.name == path.stem]
    for folder in (folder for folder in folders if folder.name != "claims"):
        name, text = folder.name, pages[f"results/records/{folder.name}.md"]
        title, blank, sentence = text.split("\n")[:3]
        assert title.startswith("# ") and not blank and sentence.startswith("This page ")
        assert f"](../tests/papers/results/{name}/{name}.md)" in linked
        if (folder / "cells.jsonl").exists() and not name.startswith("leaderboard_"):
            rows = (folder / f"{name}.md").read_text(encoding="utf-8").splitlines()
            assert [row for row in rows if row.startswith("|") and row not in text] == []
            assert f"\npython -m tests.papers table {name} --out FOLDER\n" in text
            assert paper_table.read(place(name)).remarks.strip() in text


def test_the_page_of_a_record_has_the_differences_and_the_protocol_of_its_table() -> None:
    text = paper_page.pages()["results/records/fedorion_small.md"]
    assert "\n| FedORION less without distillation | **1.8 ± 1.4** | **1.6 ± 1.3** |" in text
    assert "\n| FedORION less FedAvg of the smallest | 0.9 ± 1.9 | 1.1 ± 2.7 |" in text
    assert "\n| clients | 10, 5 in a round |\n" in text
    assert "\n| partition | `label_dirichlet`, α = 0.6 |\n" in text
    assert "\n| local training, with its rate | 2 epochs, batches of 32, SGD at 0.05 |\n" in text
    assert "\n| seeds | 1 to 5; 1 to 10: FedORION, without distillation |\n" in text
    assert "(../fedorion-comparisons.md#fedorion-distillation)" in text


def test_the_site_links_to_the_pages_of_papers_and_records_instead_of_their_files() -> None:
    hooks = pytest.importorskip("docs.tools.hooks", reason=NO_MKDOCS)
    text = "### Claims of DL-MH\n[a_b](../tests/papers/results/a_b/a_b.md)"
    shown = "### Claims of [DL-MH](results/dl-mh.md)\n[a_b](results/records/a_b.md)"
    assert hooks.with_generated_links(text) == shown
    other = "[x](../tests/papers/results/a_b/c.md)"
    assert hooks.with_generated_links(other) == other


def test_the_reference_has_each_command_setting_and_message() -> None:
    pages = reference_page.pages()
    assert "\n## fedmosaic study regions\n" in pages["reference/commands.md"]
    assert "| `--workers` |" in pages["reference/commands.md"]
    for setting in described():
        assert f"\n| `{setting.key}` |" in pages["reference/settings.md"]
    message = "| plugins = … is not a folder | `deploy/settings.py` |"
    assert message in pages["reference/errors.md"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", names())
def test_the_command_on_a_methods_page_runs(name: str, tmp_path: Path) -> None:
    fewer = ("rounds=1", "clients=3", "train.epochs=1", "data.samples=300", "data.test-samples=60")
    chosen = (*fewer, f"method={name}", *method_page.needed(name))
    options = [word for setting in chosen for word in ("-s", setting)]
    completed("run", *options, "--workers", "0", "--out", tmp_path / "run")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of the files in ``folder``."""
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. The build is strict: a broken link or a missing page ends it."""
    pytest.importorskip("mkdocs", reason=NO_MKDOCS)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


def test_the_site_has_a_page_for_each_method_and_each_document(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {f"methods/{name}.html" for name in names()} <= pages
    assert {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= pages
    page = (site / "methods" / "fedavg.html").read_text(encoding="utf-8")
    assert re.search(r"<math><mi>w</mi><mo>←</mo><msub><mo>∑</mo>", page)


def test_a_search_finds_a_method_by_a_word_of_its_page(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "methods/fedproto.html" in index and "federated averaging" in index


@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_readable_in_a_browser(site: Path, tmp_path: Path, scheme: str) -> None:
    with served(site) as address:
        addresses = {name.replace("/", "-"): f"{address}/{name}.html" for name in SHOWN}
        check_look(addresses, tmp_path / "profile", scheme)


@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_one_search_and_the_chooser_find_a_method(site: Path, tmp_path: Path) -> None:
    with served(site) as address:
        with Browser(f"{address}/index.html", tmp_path / "search") as page:
            page.width(1280)
            field = "document.querySelector('[data-md-component=search-query]')"
            page.value(f"{field}.focus()")
            page.call("Input.insertText", text="class prototypes")
            found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
            until("results", lambda: len(page.value(found)) > 0)
            assert any("methods/fedproto.html" in link for link in page.value(found))
            assert page.errors == []
        with Browser(f"{address}/methods/chooser.html", tmp_path / "chooser") as page:
            page.value("document.querySelector('[name=rounds][value=one]').click()")
            page.value("document.querySelector('[name=public][value=none]').click()")
            left = "[...document.querySelectorAll('#fitting li:not([hidden])')]"
            names_left = page.value(f"{left}.map(item => item.querySelector('a').textContent)")
            assert names_left == ["Co-Boosting", "DENSE"]
            count = page.value("document.getElementById('count').textContent")
            assert count == f"2 of {len(names())} methods fit"
