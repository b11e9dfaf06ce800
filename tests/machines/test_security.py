"""Over real TLS and with SuperNode authentication: who gets in, what a liar can do, who is named.

One federation for all of it: three registered SuperNodes, of which the second runs a ClientApp that
answers garbage (``garbage_client.py``), and intruders that try to connect while the registered ones
work.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.settings.config import Value
from common.settings.version import ROOT
from deploy.flower import certificates
from deploy.flower.certificates import Certificates
from deploy.flower.processes import environment, plain
from deploy.run import grpc as runtime
from deploy.run.grpc import Federation, node_config, start_federation, supernode_command
from deploy.settings import app_folder
from tests.support.tiny import TinyRun, flat
from tests.support.waiting import until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="warm starts need Linux")
pytestmark = [pytest.mark.full, LINUX]
REGISTERED, UNKNOWN = 3, 3  #: SuperNodes; a key nobody registered


@dataclass(frozen=True)
class Scene:
    federation: Federation
    keys: Certificates
    work: Path

    def node(self, name: str, command: list[str]) -> None:
        """Start a further SuperNode."""
        env = environment({"OMP_NUM_THREADS": "1"}, self.work / "home" / name)
        processes = self.federation.processes
        processes.start(name, command, env)
        processes.spare(name)

    def command(self, k: int) -> list[str]:
        """A SuperNode that holds key k and says that it is client 2."""
        key: dict[str, Value] = {"key": str(self.keys.key(k)), "ca": str(self.keys.ca)}
        text = node_config(2, REGISTERED, key)
        return list(supernode_command(self.federation.fleet, text, self.keys, k))

    def log(self, name: str) -> str:
        return plain(self.federation.processes.log(name).read_text())

    def await_log(self, name: str, text: str) -> str:
        """The log of a process, once it has ``text``."""
        until(lambda: f"{text!r} in\n{self.log(name)}", lambda: text in self.log(name))
        return self.log(name)


def with_garbage(fleet: str, config: str, keys: Certificates, k: int) -> list[str]:
    """Return the command of client k's SuperNode; client 1's ClientApp is ``garbage_client.py``.

    A node starts no program but its installation's, so this client has changed its installation.
    """
    line = list(supernode_command(fleet, config, keys, k))
    program = [sys.executable, str(ROOT / "tests/support/garbage_client.py")]
    changed = f"supernode.client_app = lambda: {program!r}; supernode.program()"
    if k == 1:
        line = [part.replace("supernode.program()", changed) for part in line]
        assert line != list(supernode_command(fleet, config, keys, k))
    return line


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    work = tmp_path_factory.mktemp("security")
    keys = certificates.make(work / "certs", ["127.0.0.1"], clients=UNKNOWN + 1)
    strangers = certificates.make(work / "others", ["127.0.0.1"], clients=1)
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "supernode_command", with_garbage)
            own = {"env": {"OMP_NUM_THREADS": "1"}, "certificates": keys, "warm_start": True}
            start = start_federation(app_folder(), REGISTERED, work / "federation", **own)
            federation = stack.enter_context(start)
        scene = Scene(federation, keys, work)
        for name, command in intruders(scene, strangers).items():
            scene.node(name, [*command, "--max-retries", "1"])
        yield scene


def intruders(scene: Scene, strangers: Certificates) -> dict[str, list[str]]:
    """SuperNodes that must not get in, by name."""
    known = scene.command(0)
    at = known.index("--auth-supernode-private-key")
    return {
        "unregistered": scene.command(UNKNOWN),
        "keyless": [*known[:at], *known[at + 2 :]],
        "wrong-ca": [part.replace(str(scene.keys.ca), str(strangers.ca)) for part in known],
        "plaintext": [*supernode_command(scene.federation.fleet, node_config(2, REGISTERED, {}))],
        "twin": known,
    }


def test_the_run_goes_on_without_a_liar_and_the_journal_names_every_lie(scene: Scene) -> None:
    some = {"method": "fedavg", "clients": REGISTERED, "fleet": "mlp@0.25", "min_replies": 0.3}
    settings = flat(scene.work / "liar", rounds=6, wire__max_mb=2.0, **some)
    status = scene.federation.control.follow(scene.federation.submit(settings))
    assert status.completed, status.details
    result = TinyRun(scene.work / "liar")
    assert [entry["replied"] for entry in result.journal[1:]] == [[0, 2]] * 6
    reasons = [entry["failures"][0]["reason"] for entry in result.journal[1:]]
    for entry in result.journal[1:]:
        assert {failure["k"] for failure in entry["failures"]} == {1}
    lies = ("has values that are not finite", "schema exceeds", "it has 4.0 MB, wire.max-mb = 2")
    lies += ("it is for client 0, expected 1", "its change per step is ")
    lies += ("KeyError: 'arraychunk_ids'",)
    for reason, said in zip(reasons, lies, strict=True):
        assert said in reason, reasons
    last = result.journal[-1]
    assert "score refused: protocol.Score: field 'accuracy'" in last["failures"][1]["reason"]
    assert [score["k"] for score in last["scores"]] == [0, 2]


@pytest.mark.parametrize(
    ("name", "to_the_node", "to_the_superlink"),
    [
        (
            "unregistered",
            "No SuperNode found with the given public key.",
            "[Fleet.ActivateNode] Activation failed: No SuperNode found with the given public key.",
        ),
        (
            "keyless",
            "SuperNode authentication is enabled. All SuperNodes must be registered via the CLI.",
            "SuperNode registration is disabled through Fleet API.",
        ),
        ("wrong-ca", "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", ""),
        ("plaintext", "failed to connect to all addresses", ""),
        ("twin", "could not be activated.", "[Fleet.ActivateNode] Activation failed: SuperNode"),
    ],
)
def test_who_must_not_get_in_stays_outside_and_is_told_why(
    scene: Scene, name: str, to_the_node: str, to_the_superlink: str
) -> None:
    said = scene.await_log(name, to_the_node)
    # not that the process has ended: Flower's node was once seen to hang between refusal and exit
    scene.await_log("superlink", to_the_superlink)
    entered = "SuperNode ID"  # what Flower's node says once it is in
    assert entered in scene.log("supernode-0") and entered not in said
    assert scene.federation.control.online() == REGISTERED
