"""Names from elsewhere: what they stand for, and what is said of those that stand for nothing."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import client_app.methods
import server_app.methods
from common import methods
from common.data import load, source
from common.data.partition import rule
from common.models import architecture, parameters
from common.names import check_brought, shadowed, version_of
from common.parse import defaults, parse, tables
from common.settings import plugins
from common.settings.config import MethodOptions, Value
from common.settings.version import code_version
from deploy.report.listing import LISTINGS, described
from deploy.run.loopback import Loopback
from server_app.selection import find as find_rule
from server_app.stopped import Stopped
from tests.support.battery import EXAMPLE, config
from tests.support.halves import TASK, check_peers, info
from tests.support.own_modules import ONE_MODULE, distribution, importing_from, module, package
from tests.support.recorded_calls import refusal
from tests.support.tiny import TinyRun, flat, play

LOOK_UPS: dict[str, Callable[[str], object]] = {
    **{"methods": methods.contract, "models": architecture, "datasets": source, "partitions": rule},
    **{"trackers": lambda name: plugins.find("trackers", name), "selections": find_rule},
}


NOT_FOUND = {
    "nosuch:x": ": no module named 'nosuch'",
    "nosuch.inner:x": ": no module named 'nosuch'",
    "lab.nosuch:x": ": no module named 'lab.nosuch'",
    "lab.nets:Shalow": ": module 'lab.nets' has no attribute 'Shalow'; did you mean 'S",
    "lab:haflway": ": module 'lab' has no attribute 'haflway'; did you mean 'halfway'?",
    "os:abort": ": 'os' is not allowed; it is Python's own name",
    "common.exchange.tree:mean": ": 'common' is not allowed; it is fedmosaic's own name",
    **dict.fromkeys(
        ("two words:x", "../up:x", ":x"), " is not allowed; it should be module:attribute"
    ),
}
OPTIONS = "from common.settings.config import MethodOptions\nclass Options(MethodOptions):\n    "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules can be imported."""
    importing_from(tmp_path, monkeypatch)
    return tmp_path


@pytest.mark.parametrize("kind", LOOK_UPS)
def test_what_cannot_be_found_is_one_line(kind: str) -> None:
    for name, line in NOT_FOUND.items():
        refused = refusal(LOOK_UPS[kind], name)
        assert refused.startswith(f"{plugins.WORDS[kind]} {name!r}{line}"), refused


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nosuchdependency", "ModuleNotFoundError: No module named 'nosuchdependency'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("def f(:", "SyntaxError: "),
    ],
)
def test_a_module_that_fails_is_named_with_why(text: str, reason: str, folder: Path) -> None:
    name = module(folder, text)
    line = f"model '{name}:x': module {name!r} cannot be imported: {reason}"
    assert refusal(plugins.find, "models", f"{name}:x").startswith(line)


def test_the_nearest_name_is_shown() -> None:
    for kind, name, near in (
        ("methods", "fedavgg", "fedavg"),
        ("models", "resnet9", "resnet8"),
        ("datasets", "minst", "mnist"),
        ("partitions", "label_dirichlt", "label_dirichlet"),
    ):
        assert f"; did you mean '{near}'" in refusal(LOOK_UPS[kind], name)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("methods", "a package with contract, server and client"),
        ("models", "a class or function that makes an nn.Module"),
        ("datasets", "a Dataset or a function that gives one"),
        ("partitions", "a function"),
    ],
)
def test_a_plugin_of_the_wrong_kind_is_refused(kind: str, expected: str, folder: Path) -> None:
    name = f"{module(folder, 'x = 3')}:x"
    line = f"{plugins.WORDS[kind]} '{name}' is of type int; it should be {expected}"
    assert refusal(LOOK_UPS[kind], name).startswith(line)


def test_an_installed_plugin_is_found_by_its_name_and_listed(folder: Path) -> None:
    own = package(folder, {"__init__": "", "far": ONE_MODULE})
    more = f"[fedmosaic.models]\n{own}-net = lab.nets:Shallow\n"
    distribution(folder, own, f"[fedmosaic.methods]\n{own}-far = {own}.far\n{more}")
    name = f"{own}-far"
    assert issubclass(methods.options(name), MethodOptions)
    assert f"{name}.factor" in defaults(name) and tables(name)[name] is methods.options(name)
    assert parse(defaults(name) | {"method": name, f"{name}.factor": 2.0}).method.factor == 2.0  # type: ignore[attr-defined]
    assert parameters(f"{own}-net", (1, 8, 8), 3) == 64 * 16 + 16 + 16 * 3 + 3
    listed = {kind: LISTINGS[kind]().rows for kind in ("methods", "models")}
    assert any(row[0] == name and f"plug-in of {own}" in str(row) for row in listed["methods"])
    assert any(row[0] == f"{own}-net" for row in listed["models"])
    assert any(row[0] == f"{name}.factor" for row in described())


def test_a_name_that_two_packages_offer_is_refused(folder: Path) -> None:
    distribution(folder, "one", "[fedmosaic.datasets]\ntwice = a:b\n")
    distribution(folder, "other", "[fedmosaic.datasets]\ntwice = c:d\n")
    with pytest.raises(ValueError, match="'twice' is offered by several packages; .* a:b, c:d"):
        source("twice")


def test_an_installed_plugin_with_a_name_of_ours_changes_nothing_and_is_told(folder: Path) -> None:
    distribution(folder, "hostile", "[fedmosaic.datasets]\ntoy = lab.data:stripes\n")
    assert source("toy").description.startswith("random patterns")
    (line,) = shadowed({"data.name": "toy", "method": "fedavg"})
    assert line.startswith("data set 'toy' is fedmosaic's own") and "lab.data:stripes" in line
    assert shadowed({"data.name": "digits"}) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Options = 3", "Options must be a subclass of MethodOptions"),
        (OPTIONS + "x: int", "its setting 'x' must be a bool, int, float, str or a choice"),
        (OPTIONS + "x: list[int] = []", "its setting 'x' must be a bool, int, float, str or a"),
        (OPTIONS + "uses = ('nosuch',)", "uses [nosuch]; there are: data, train"),
    ],
)
def test_settings_that_cannot_be_a_table_are_refused(text: str, reason: str, folder: Path) -> None:
    name = f"{package(folder, {'far': text})}:far"
    line = refusal(parse, defaults() | {"method": name})
    assert line.startswith(f"method '{name}'") and reason in line


@pytest.mark.parametrize("last", ["fedavg", "data", "node", "Far"])
def test_a_method_cannot_have_the_table_of_another_or_an_odd_one(last: str, folder: Path) -> None:
    name = f"{package(folder, {last: ONE_MODULE})}:{last}"
    line = f"its settings cannot be the table [{last}]"
    assert line in refusal(parse, defaults() | {"method": name})


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ("", "must define one complete Method; it has 0"),
        ("from server_app.method import Method\nclass A(Method): ...", "A lacks model, request, s"),
        (None, "no module named"),
    ],
)
def test_a_half_that_is_not_whole_is_refused(server: str | None, reason: str, folder: Path) -> None:
    halves = {} if server is None else {"server": server}
    name = package(folder, {"__init__": "", "contract": OPTIONS + "pass", **halves})
    top = package(folder, {"__init__": f"import {name} as far"})
    with pytest.raises(ValueError, match=reason):
        server_app.methods.half(f"{top}:far")


def test_a_half_may_have_a_base_class_beside_it_and_takes_its_types_from_its_parameters(
    folder: Path,
) -> None:
    text = """
from abc import ABC
from common.exchange.protocol import Reply as Base
from server_app.global_model import Averaged
class Reply(Base, kind="far.Reply"):
    x: int
class Common(Averaged, ABC): ...
class Far(Common, Averaged["Options", Reply]): ...
"""
    name = package(folder, {"__init__": "", "contract": OPTIONS + "pass", "server": text})
    top = package(folder, {"__init__": f"import {name} as far"})
    half = server_app.methods.half(f"{top}:far")
    assert half.__name__ == "Far" and half.reply_type.__name__ == "Reply"


def test_a_method_in_one_module_shares_a_half_of_ours(folder: Path, tmp_path: Path) -> None:
    name = f"{package(folder, {'factor': ONE_MODULE})}:factor"
    assert server_app.methods.half(name) is server_app.methods.half("fedavg")
    assert client_app.methods.half(name).__name__ == "Factor"
    one, fedavg = (play(flat(tmp_path / m[:3], method=m, rounds=1)) for m in (name, "fedavg"))
    assert one.weights == fedavg.weights and one.summary["method"] == name
    twice = play(flat(tmp_path / "2", method=name, rounds=1, factor__factor=2.0))
    assert twice.weights != one.weights


def test_a_wrong_key_in_a_plugins_table_is_refused_with_the_nearest() -> None:
    given: dict[str, Value] = defaults(EXAMPLE) | {"method": EXAMPLE}
    line = refusal(parse, given | {"halfway.stepp": 1.0})
    assert "'halfway.stepp' is unknown; did you mean 'halfway.step'" in line
    line = refusal(parse, given | {"halfway.step": 2.0})
    assert line.startswith("halfway.step = 2.0 is not allowed; ") and "less than or eq" in line


# The code version, and the census.
def test_the_code_version_has_a_fingerprint_of_every_plugin(tmp_path: Path) -> None:
    ours = parse(flat(tmp_path))
    assert version_of(ours) == code_version()
    named = version_of(parse(config(EXAMPLE, tmp_path)))
    assert named == f"{code_version()}+lab.{plugins.digest('lab')}"


def test_the_fingerprint_ignores_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for i, files in enumerate(({}, {"test_it": "1"}, {"more": "1"})):
        folder = tmp_path / str(i) / "fingerprinted"
        folder.mkdir(parents=True)
        for name, text in {"__init__": "", "inner": "x = 1", **files}.items():
            (folder / f"{name}.py").write_text(text)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path, str(folder.parent)])
            plugins.digest.cache_clear()
            found.append(plugins.digest("fingerprinted"))
    assert found[0] == found[1] != found[2]


def test_a_plugins_version_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client_app.handler.version_of", lambda config: f"{code_version()}+lab.0")
    with pytest.raises(Stopped, match=r"client 0 has code version '.*lab\.0', the server '.*lab\."):
        play(config(EXAMPLE, tmp_path))


def test_a_plugin_that_is_missing_at_a_client_is_named_by_the_census(tmp_path: Path) -> None:
    settings = flat(tmp_path)
    grid = Loopback(4, settings, workers=0, node_configs={2: {"model": "nosuch:Net"}})
    with pytest.raises(Stopped, match=r"client 2: .*model 'nosuch:Net': no module named 'nosuch'"):
        play(settings, grid)


def test_a_client_makes_the_server_import_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="client 0: its model .* is a module that the run does not"):
        check_peers([info(model="lab.nets:Shallow@1")], 1, "e", TASK)
    check_brought("lab.nets:Shallow", parse(flat(tmp_path, fleet="mlp,lab.nets:Shallow")))
    check_brought("torchvision:resnet18", TASK.config)


def test_a_plugins_data_set_is_used_and_all_that_is_written_names_it(tmp_path: Path) -> None:
    data = parse(config(EXAMPLE, tmp_path)).data
    assert load(data).classes == ("rows", "columns", "checks")
    assert rule(data.partition).description == "Equal random shares."
    result: Any = play(config(EXAMPLE, tmp_path, rounds=1))
    assert result.summary["method"] == EXAMPLE and result.summary["dataset"] == "lab.data:stripes"
    assert TinyRun(tmp_path).journal[0]["clients"][0]["model"] == "lab.nets:Shallow"
