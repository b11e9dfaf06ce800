"""What a node's owner allows: the policy file, its rules, and where they are enforced."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supernode.runtime import run_clientapp as flower

from common.exchange.seal import files
from common.settings.config import Value
from common.settings.section import kebab
from common.settings.version import ROOT
from deploy.flower.certificates import make
from deploy.flower.owner import pinned, policy, rules
from deploy.flower.owner.rules import Refused
from deploy.machines import node
from deploy.run.grpc import node_config
from deploy.settings import resolve
from tests.support.commandline import error_of, typed
from tests.support.own_modules import distribution, importing_from, module

Flat = dict[str, Value]
NODE = ["node", "--superlink", "h:1", "--clients", "2", "--insecure", "--k", "0"]
PIN = "ab" * 32
SERVER_KEY = f"SHA256:{43 * 'A'}"
INSIDE = ("{}/images", "{}/images/0/../0", "{}/alias/0", "{}/images/{{k}}")
OUTSIDE = ("{}/secret", "{}/images/../secret", "{}/images/link", "{}/images-2", "{}/state", "~/x")
OUTSIDE += ("images", "{}/images/\0", "{}/{{k}}")
OTHER_KEYS = ("node.0.data-dir", "node.0.data_dir", "data.public-dir", "node.0.public-dir")
OTHER_KEYS += ("node.0.state-dir", "node.0.weights")
FOLDERS = {"data": "images", "state": "state"}  #: a node's own


@pytest.fixture(scope="module")
def run() -> Flat:
    return {**resolve(None), "method": "fedavg", "state-dir": "", "out": "/srv/out"}


def refusal(allowed: policy.Policy | None, run: Flat, own: Flat | None = None) -> str:
    """Return why client 0 refuses the run; empty if it does not."""
    own = {"partition-id": 0, **(own or {})}
    try:
        rules.check(policy.rules(allowed, own), run, own)
    except Refused as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


def owner(folder: Path, text: str) -> policy.Policy:
    (folder / "policy.toml").write_text(text)
    return policy.read(folder / "policy.toml")


@pytest.mark.parametrize("strict", [False, True])
def test_a_run_of_built_in_names_is_allowed(run: Flat, strict: bool) -> None:
    assert refusal(policy.Policy() if strict else None, run) == ""
    for fleet in ("h-het", "resnet8@0.5,resnet10-exits2,torchvision:resnet18", "timm:resnet18"):
        assert refusal(policy.Policy(), {**run, "fleet": fleet}) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": "fedkf"}, "method = 'fedkf' is not allowed on client 0; its policy (methods)"),
        ({"method": "lab:halfway"}, "method = 'lab:halfway' … (modules) allows lab.data:load"),
        ({"fleet": "mlp,lab:Net@0.5"}, "fleet = 'lab:Net@0.5' … (modules)"),
        ({"fleet": "resnet10@0.25,my:net"}, "fleet = 'my:net' … (modules)"),
        ({"fleet": " installed@0.5"}, "fleet = 'installed@0.5' … (plugins) allows none"),
        ({"fleet": "installed-lora4@0.5"}, "'installed-lora4@0.5' … (plugins) allows none"),
        ({"fleet": "mlp,lab:Net-lora4"}, "fleet = 'lab:Net-lora4' … (modules)"),
        ({"global-model": "lab:Net"}, "global-model = 'lab:Net' … (modules)"),
        ({"node.3.model": "lab:Net"}, "node.3.model = 'lab:Net' … (modules)"),
        ({"data.name": "lab.data:save"}, "data.name = 'lab.data:save' … (modules)"),
        ({"data.name": "timm:save"}, "data.name = 'timm:save' … (modules)"),
        ({"data.public-name": "lab:load"}, "data.public-name = 'lab:load' … (modules)"),
        ({"data.public_name": "lab:load"}, "data.public-name = 'lab:load' … (modules)"),
        ({"data.partition": "lab:split"}, "data.partition = 'lab:split' … (modules)"),
        ({"data.download": True}, "data.download = true … (download) allows false"),
        ({"pretrained": True}, "pretrained = true … (download) allows false"),
        ({"rounds": 21}, "rounds = 21 … (max-rounds) allows at most 20"),
        ({"train.epochs": 4}, "train.epochs = 4 … (max-epochs) allows at most 3"),
        ({"train.steps": 1}, "train.steps = 1 … (max-steps) allows at most 0"),
        ({"privacy.mode": "off"}, "privacy.mode = 'off' … (privacy.mode) allows local"),
        ({"privacy.mode": "central"}, "privacy.mode = 'central' … (privacy.mode) allows local"),
        ({"privacy.noise-multiplier": 0.5}, "0.5 … (privacy.noise-multiplier) allows at least 1.0"),
        ({"data.newer": "/etc"}, "data.newer = '/etc' … (unknown keys) allows no paths and modul"),
    ],
)
def test_a_rule_refuses_in_one_line_with_what_is_allowed(
    run: Flat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Flat, said: str
) -> None:
    name = module(tmp_path, "raise SystemExit('imported')\n")
    distribution(tmp_path, "other", f"[fedmosaic.models]\ninstalled = {name}:Net\n")
    importing_from(tmp_path, monkeypatch)
    text = 'methods = ["fedavg", "lab:halfway"]\nmodules = ["lab.data:load", "ours"]\n'
    text += "max-rounds = 20\nmax-epochs = 3\n"
    text += '[privacy]\nmode = "local"\nnoise-multiplier = 1.0\n'
    allowed = owner(tmp_path, text)
    good = {**run, "train.epochs": 3, "privacy.mode": "local", "data.name": "lab.data:load"}
    good |= {"fleet": "mlp,ours:Net,ours:Other@0.5"}
    assert refusal(allowed, good) == ""
    if any("_" in key for key in change):
        good.pop("data.public-name")
    for part in said.split("…"):
        assert part.strip() in refusal(allowed, {**good, **change})
    assert name not in sys.modules


def test_epochs_are_those_that_the_method_reads(run: Flat, tmp_path: Path) -> None:
    allowed = owner(tmp_path, "max-epochs = 2\nmax-steps = 9\n")
    few: Flat = {**run, "train.epochs": 2, "train.steps": 9}
    assert refusal(allowed, few) == ""
    assert "public.epochs = 5 is" in refusal(allowed, {**few, "method": "ds-fl"})
    assert refusal(allowed, {**few, "method": "ds-fl", "public.epochs": 2}) == ""
    assert "fedmd.first-epochs = 5" in refusal(allowed, {**few, "method": "fedmd"})
    assert "'data_dir' in two spellings" in refusal(None, {**run, "data-dir": "a", "data_dir": "b"})


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("images/0", "images/server", "state", "secret", "weights"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "images" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "images" / "1").symlink_to(tmp_path / "secret")
    (tmp_path / "alias").symlink_to(tmp_path / "images")
    (tmp_path / "weights" / "mlp@0.5.pt").symlink_to(tmp_path / "secret")
    return tmp_path


@pytest.mark.parametrize("with_policy", [False, True])
@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        *(({"data.dir": place}, True) for place in INSIDE),
        *(({"data.dir": place}, False) for place in OUTSIDE),
        ({"data.tokenizer": "hash"}, True),
        ({"data.tokenizer": "{}/images/words.txt"}, True),
        ({"data.tokenizer": "{}/secret"}, False),
        *(({key: "{}/secret"}, False) for key in OTHER_KEYS),
        ({"data.dir": "{}/secret", "node.0.data-dir": "{}/images"}, True),
        ({"node.1.data-dir": "{}/secret"}, True),
        ({"state-dir": "{}/state/a"}, True),
        ({"state-dir": "{}/images"}, False),
        ({"weights": "{}/weights/{{model}}.pt"}, True),
        ({"weights": "{}/secret/{{model}}.pt"}, False),
        ({"weights": "{}/weights/{{model}}/../../x.pt"}, False),
        ({"weights": "{}/weights/{{model}}", "fleet": "torchvision:a/../../x"}, False),
        ({"weights": "{}/weights/{{model}}.pt", "fleet": "mlp-lora4@0.5"}, False),
        ({"weights": "{}/secret", "node.0.weights": "{}/weights/a.pt"}, True),
        ({"node.0.weights": "", "weights": "{}/secret"}, False),
        ({"adapter.base": "{}/weights/net"}, True),
        ({"adapter.base": "{}/secret"}, False),
        ({"node.0.base": "{}/weights/net"}, True),
        ({"node.0.base": "{}/secret"}, False),
        ({"adapter.base": "{}/weights/net", "node.0.base": "{}/secret"}, False),
        ({"node.1.weights": "{}/secret"}, True),
    ],
)
def test_folders_of_a_run_are_inside_those_of_the_owner(
    run: Flat, folders: Path, change: dict[str, str], allowed: bool, with_policy: bool
) -> None:
    filled = {k: v.format(folders) if k != "fleet" else v for k, v in change.items()}
    text = 'data-dirs = ["images"]\nstate-dirs = ["state"]\nweights = ["weights"]\n'
    places: Flat = {f"{k}-dir": str(folders / of) for k, of in FOLDERS.items()}
    own = policy.rules(owner(folders, text), {}) if with_policy else policy.rules(None, places)
    if not with_policy:
        own["weights"].append(str(folders / "weights"))
    try:
        rules.check(own, {**run, **filled}, {"partition-id": 0})
        said = ""
    except Refused as error:
        said = str(error)
    assert (said == "") is allowed, said
    if said:
        key = [key for key in filled if key != "fleet"][-1].replace("_", "-")
        assert said.startswith(f"{key} = ") and "allows absolute paths inside /" in said


def test_each_path_of_a_node_replaces_one_of_the_run() -> None:
    paths = policy.settings()["paths"]
    assert {key for key in paths if key.startswith("node.K.")} == {
        f"node.K.{leaf}" for leaf in rules.PLACES
    }
    assert all(paths[key] == paths[f"node.K.{leaf}"] for leaf, key in rules.PLACES.items())


def test_texts_of_a_method_that_is_not_installed_on_the_node_must_have_no_path(
    run: Flat, tmp_path: Path
) -> None:
    allowed = owner(tmp_path, 'methods = ["lab:way"]\nmodules = ["lab"]\n')
    own: Flat = {**run, "method": "lab:way", "way.note": "a text"}
    assert refusal(allowed, own) == ""
    assert "way.note = '../x' is not allowed" in refusal(allowed, {**own, "way.note": "../x"})


@pytest.mark.parametrize("lacking", ["settings", "paths", "texts"])
def test_without_the_tables_of_settings_no_run_is_allowed(run: Flat, lacking: str) -> None:
    received = policy.rules(None, {})
    received.get("settings", {}).pop(lacking, None), received.pop(lacking, None)
    with pytest.raises(Refused, match="did not receive its tables of settings"):
        rules.check(received, run, {"partition-id": 0})


def test_a_nodes_own_folders_replace_those_of_the_run(run: Flat, folders: Path) -> None:
    theirs: Flat = {**run, "data.dir": "/srv/test-set", "state-dir": "/srv/state"}
    theirs |= {"data.public-dir": "/srv/public"}
    own: Flat = {"data-dir": str(folders / "images"), "state-dir": str(folders)}
    own["public-dir"] = str(folders / "images")
    theirs["weights"], own["weights"] = "/srv/base.pt", "/opt/base.pt"
    assert refusal(None, theirs, own) == "" == refusal(policy.Policy(), theirs, own)
    assert "data.dir = '/srv/test-set'" in refusal(None, theirs)
    assert "weights = '/srv/base.pt' is not" in refusal(None, theirs, {**own, "weights": ""})
    del own["state-dir"]
    assert "state-dir = '/srv/state' is not allowed" in refusal(None, theirs, own)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'metods = ["a"]',
            "key 'metods' is unknown; did you mean 'methods'?; allowed: methods,",
        ),
        ("max_rounds = 3", "did you mean 'max-rounds'?"),
        ('methods = "fedavg"', 'methods = "fedavg" is not allowed; it should be list'),
        ('methods = ["fedvg"]', "'fedvg', which is no method; did you mean 'fedavg'?"),
        ("data-dirs = [1]", "data-dirs.0 = 1 is not allowed; it should be string"),
        ("max-rounds = 0", "max-rounds = 0 is not allowed; it should be greater than"),
        ('download = "no"', 'download = "no" is not allowed; it should be boolean'),
        (
            '[privacy]\nmodes = "off"',
            "'privacy.modes' is unknown; did you mean 'mode'?; allowed: mode, noise-",
        ),
        ("[privacy]\nnoise-multiplier = 1", "noise-multiplier = 1 needs privacy.mode"),
        ("[privacy]\nmax-epsilon = 2", "privacy.max-epsilon = 2 needs privacy.mode = local"),
        ('[privacy]\nmode = "local"\nmax-epsilon = 0', "max-epsilon = 0 is not allowed; it should"),
        ("server-keys = []", "server-keys = [] is not allowed; it should"),
        ('server-keys = ["no.crt"]', "server-keys has 'no.crt': No such file or directory; it"),
        ("x", "policy.toml is not TOML: Expected '='"),
        (None, "policy.toml: No such file or directory"),
    ],
)
def test_a_wrong_policy_is_one_line_at_once(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "policy.toml"
    if text is not None:
        file.write_text(text)
    error = error_of(*NODE, "--policy", file, "--app-digest", PIN, "--home", tmp_path / "home")
    assert said in error and not (tmp_path / "home").exists()


def test_the_example_policies_are_policies(tmp_path: Path) -> None:
    example = (ROOT / "deploy" / "policy.toml").read_text()
    assert owner(tmp_path, example) == policy.Policy()
    make(tmp_path / "certs", [], 0).app.rename(tmp_path / "serverapp.crt")
    changed = re.sub(r"^([\w-]+) = .*\n# (\1 = )", r"\2", example, flags=re.MULTILINE)
    changed = re.sub(r"^# (?=[\w-]+ = )", "", changed, flags=re.MULTILINE)
    full = owner(tmp_path, changed)
    assert full.model_fields_set - {"download"} == policy.Policy.model_fields.keys() - {"download"}
    assert full.privacy.mode == "local" and full.server_keys is not None
    assert files.FINGERPRINT.fullmatch(full.server_keys[0])
    page = (ROOT / "docs" / "owner.md").read_text()
    keys = {kebab(name) for name in policy.Policy.model_fields} - {"privacy"}
    for key in (*keys, *(f"privacy.{kebab(name)}" for name in policy.LeastPrivacy.model_fields)):
        assert f"| `{key}` | " in page, key
    docker = policy.read(ROOT / "deploy" / "docker" / "policy.toml")
    assert docker.data_dirs == ["/data"]


@pytest.mark.skipif(not (which("openssl") and which("ssh-keygen")), reason="not installed")
def test_the_command_of_the_docs_prints_the_fingerprint_of_server_keys(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "owner.md").read_text()
    command = re.findall("`(openssl x509 -in serverapp.crt .*)`", page)
    make(tmp_path, [], 0)
    shown = subprocess.run(*command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    key = shown.stdout.split()[1]
    assert owner(tmp_path, 'server-keys = ["serverapp.crt"]').server_keys == [key]
    assert owner(tmp_path, f'server-keys = ["{key}"]').server_keys == [key]


def test_a_policy_needs_a_pinned_digest_and_server_keys_need_tls(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(f'server-keys = ["{SERVER_KEY}"]\n')
    for more, said in (
        ([], f"--policy {file} needs --app-digest: code that is not pinned could ignore it"),
        (["--app-digest", PIN], "server-keys needs --ca, not --insecure"),
    ):
        assert said in error_of(*NODE, "--policy", file, *more)
    masks = tmp_path / "masks.toml"
    masks.write_text('require = "secure"\n')
    line = error_of(*NODE, "--policy", masks, "--app-digest", PIN)
    assert 'require = "secure" needs roster.pub beside --ca, or --set roster=FILE' in line
    assert node.guards(PIN, masks, {}, sealed=True, roster=True)
    own: Flat = {}
    guard = node.guards(PIN, file, own, sealed=True)
    assert guard[pinned.PIN] == PIN and json.loads(guard[rules.RULES])["policy"] is True
    assert own == {"server-keys": SERVER_KEY}
    assert "--policy" in typed("node", "--help").stdout


def test_the_limits_of_the_ledger_reach_the_client(tmp_path: Path) -> None:
    text = 'max-rounds = 9\n[privacy]\nmode = "local"\nmax-epsilon = 2.5\n'
    (tmp_path / "policy.toml").write_text(text)
    own: Flat = {}
    node.guards(PIN, tmp_path / "policy.toml", own, sealed=False)
    assert own == {"max-rounds": 9, "max-epsilon": 2.5}
    assert node_config(0, 2, own).endswith("max-rounds=9 max-epsilon=2.5")
    typed_in = node.settings(["max-rounds=9", "max-epsilon=2.5", "ledger=here"])
    assert typed_in == {**own, "ledger": str(Path("here").absolute())}
    with pytest.raises(ValueError, match="max-rounds = 0 is not allowed; it should be greater"):
        node.settings(["max-rounds=0"])


def test_code_that_is_not_pinned_is_warned_of_and_the_rules_hold_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(node, "become", lambda line, home, guard: started.append(guard))
    for function in ("check_tls", "await_admission"):
        monkeypatch.setattr(f"deploy.flower.owner.admission.{function}", lambda *_: None)
    line = [*NODE, "--cold-start", "-s", f"state-dir={tmp_path}"]
    said = typed(*line).stdout
    assert "warning: this node runs any code that the SuperLink sends; --app-digest in" in said
    assert "warning" not in typed(*line, "--app-digest", PIN).stdout
    assert json.loads(started[0][rules.RULES])["state-dirs"] == [str(tmp_path)]
    assert pinned.PIN not in started[0] and started[1][pinned.PIN] == PIN


@pytest.mark.parametrize("pin", ["", PIN])
def test_a_refused_run_config_leaves_the_bundle_packed_and_one_line_in_the_log(
    run: Flat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pin: str,
) -> None:
    done: list[str] = []
    steps: dict[str, Callable[..., Any]] = {
        "pull_task_input": lambda stub: ("message", stub, "run", "fab"),
        "install_from_fab": lambda fab, **_: done.append("installed") or tmp_path,
        "get_load_client_app_fn": lambda **_: lambda *_: done.append("loaded"),
    }
    monkeypatch.setattr(pinned, "check", lambda fab, pin: None)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv(pinned.PIN, pin)
    monkeypatch.setenv(rules.RULES, json.dumps(policy.rules(policy.Policy(), {})))
    log = logging.getLogger("flwr")
    monkeypatch.setattr(log, "filters", [])
    monkeypatch.setattr(log, "propagate", True)

    def serve(settings: Flat) -> None:
        context = SimpleNamespace(run_config=settings, node_config={"partition-id": 0})

        def real() -> None:  # as in Flower's run_clientapp
            _, given, _, fab = flower.pull_task_input(context)
            assert given is context
            try:
                flower.install_from_fab(fab, skip_prompt=True)
                named = {"default_app_ref": "", "app_path": None, "multi_app": True}
                load = flower.get_load_client_app_fn(**named)
                load("us/tiny", "1.0.0", "")
            except Exception as error:
                log.error("%s raised an exception", "ClientApp", exc_info=error)

        with monkeypatch.context() as patch:
            for name, step in steps.items():
                patch.setattr(flower, name, step)
            pinned.main(real)

    serve({**run, "data.download": True})
    assert done == []
    (record,) = caplog.records
    line = "refused: data.download = true is not allowed on client 0; its policy (download) allows "
    assert record.getMessage() == f"{line}false"
    assert record.exc_info is None
    serve(run)
    assert done == ["installed", "loaded"]


def test_a_policy_requires_secure_sums(run: Flat, tmp_path: Path) -> None:
    allowed = owner(tmp_path, 'require = "secure"')
    on: Flat = {**run, "secure.mode": "on"}
    assert refusal(allowed, run).startswith("secure.mode = 'off' is not allowed on client 0")
    assert not refusal(allowed, on) and not refusal(owner(tmp_path, ""), run)
    without = {key: value for key, value in run.items() if not key.startswith("secure.")}
    assert "secure.mode" in refusal(allowed, without)
    for key, value in (("secure.threshold", "majority"), ("secure.fewest", 2)):
        assert key in refusal(allowed, {**on, key: value})
    with pytest.raises(ValueError, match="require"):
        owner(tmp_path, 'require = "masks"')
