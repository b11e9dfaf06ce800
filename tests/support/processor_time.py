"""What the tests cost: seconds of processor time, of each test, each file and each method.

    python -m pytest -n 2 --dist worksteal --processor-time=costs.json

prints the whole, every file and every method, dearest first; ``costs.json`` has that and every
test. A second is one of user or system time, of the process of the tests and of all that it
started; not counted are only children of a process that ignores their end (SIGCHLD), as Ray's do.
What tests share, a fixture of the session, say, is counted with the first that asks for it. A
method's sum is that of all tests that have a parameter ``method``; ``CEILING`` bounds it.

Wall time says little where other work shares the processors; this hardly depends on it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CEILING = 6.0
"""Seconds that one more method may add. Today's add 4 on average where nothing else runs, DAFL 9;
tests of its own, in ``tests/methods``, are not among them."""
PR_SET_CHILD_SUBREAPER = 36  #: whose parent has ended is then a child of the tests' process
TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor-time", metavar="FILE", help="record what the tests cost")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--processor-time"):
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        config.pluginmanager.register(Recorder(config))


def seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def used() -> float:
    """Seconds that this process and all below it have used by now."""
    ended = seconds(resource.RUSAGE_SELF) + seconds(resource.RUSAGE_CHILDREN)
    return ended + sum(unwaited(os.getpid()))


def unwaited(root: int) -> Iterator[float]:
    """The seconds of each process below ``root`` that was not waited for; none without /proc."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it is gone
            continue
        cost = sum(map(int, fields[11:15])) / TICKS  # its own and that of those it waited for
        children[int(fields[1])].append((int(stat.parent.name), cost))
    found = children[root]
    while found:
        pid, cost = found.pop()
        yield cost
        found += children[pid]


class Recorder:
    """Measures in each process that runs tests; the process that was started adds up."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.outside: Counter[str] = Counter()  # imports, collection, the workers' master

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = used()
        result = yield
        cost = max(0.0, used() - before)
        self.tests[item.nodeid] += cost
        method = getattr(item, "callspec", None) and item.callspec.params.get("method")
        if isinstance(method, str):
            self.methods[method] += cost
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self.config.getoption("numprocesses", None) and not hasattr(self.config, "workerinput"):
            self.outside["imports and collection"] += seconds(resource.RUSAGE_SELF)
        else:
            self.outside["imports and collection"] += used() - self.tests.total()
        if hasattr(self.config, "workeroutput"):
            sums = [dict(each) for each in (self.tests, self.methods, self.outside)]
            self.config.workeroutput["processor_time"] = sums

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        sums = getattr(node, "workeroutput", {}).get("processor_time", [{}, {}, {}])
        for mine, theirs in zip((self.tests, self.methods, self.outside), sums, strict=True):
            mine.update(theirs)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files = Counter(self.outside)
        for test, cost in self.tests.items():
            files[test.partition("::")[0]] += cost
        whole = files.total()
        terminalreporter.section("processor time")
        terminalreporter.line(f"{whole:9.1f} s = {whole / 60:.1f} minutes")
        for title, sums in (
            ("by file", files),
            (f"by method, at most {CEILING:g} s for a further one", self.methods),
        ):
            terminalreporter.line(title)
            for name, cost in sums.most_common():
                terminalreporter.line(f"{cost:9.1f} s  {name}")
        sums = {"files": files, "methods": self.methods, "tests": self.tests}
        recorded = {name: dict(each.most_common()) for name, each in sums.items()}
        Path(self.config.getoption("--processor-time")).write_text(
            json.dumps({"seconds": whole, **recorded}, indent=1) + "\n"
        )
