"""Sealed messages over real processes: a SuperLink that lies and a registered client that forges.

One federation with TLS and node authentication, as ``docs/deployment.md`` starts it. Between its
ServerApp and its SuperLink stands a relay (``tests/support/relay.py``); a third party uses client
1's key.
"""

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import make_message

from deploy.flower import warm
from deploy.flower.certificates import make
from deploy.flower.control import Control, superlink_command
from deploy.flower.processes import Processes, environment, free_ports
from deploy.run.grpc import node_config, supernode_command
from deploy.settings import app_folder
from tests.support.impostor import Impostor
from tests.support.keys import altered
from tests.support.relay import Relay, parts, serving
from tests.support.tiny import TinyRun, flat, play

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="warm starts need Linux")
pytestmark = [pytest.mark.full, LINUX]
CLIENTS = 2
FORGED = "client {k}'s reply is not authentic: the SuperLink or a registered node"


class Attacks:
    """On the first training reply of a client in a round.

    Round 2: client 1 forges for client 0. Round 3: a bit of client 0's is altered. Round 4: client
    0's is replaced by that of round 1, and client 1's is kept back. Round 5: what was kept back
    comes in the place of client 1's. Round 6: the second one to come has the first one's content.
    """

    def __init__(self, impostor: Impostor) -> None:
        self.impostor = impostor
        self.nodes: dict[int, int] = {}  # by k
        self.replies: dict[tuple[str, int], RecordDict] = {}  # the first by round and k
        self.done: dict[tuple[str, int], bool] = {}  # attacks, by round and k
        self.pulled: list[bytes] = []

    def sent(self, about: Any, name: str) -> None:
        first = about.message_type == "train" and about.group_id == "2" and not self.done
        if first and about.dst_node_id == self.nodes[0]:
            own = self.replies["1", 1]
            self.done["2", 0] = self.impostor.answer(about, name, own)

    def reply(self, honest: Message) -> Message | None:
        about, node, content = honest.metadata, honest.metadata.src_node_id, honest.content
        if about.message_type == "query.hello":
            self.nodes[int(content.config_records["seal"]["k"])] = node
            self.impostor.node = self.nodes.get(1, 0)
        if about.message_type != "train":
            return honest
        (k,) = (k for k, each in self.nodes.items() if each == node)
        t, before = about.group_id, len(self.replies)
        self.replies.setdefault((t, k), content)
        if len(self.replies) == before:
            return honest
        if (t, k) == ("3", 0):
            self.pulled = [self.impostor.pull(about.run_id, part) for part in parts(honest)]
            return self.struck(honest, k, altered(content))
        if (t, k) == ("4", 0):
            return self.struck(honest, k, self.replies["1", 0])
        if (t, k) == ("4", 1):
            self.done["4", 1] = True
            return None
        if (t, k) == ("5", 1):
            return self.struck(honest, k, self.replies["4", 1])
        if t == "6" and (t, 1 - k) in self.replies:
            return self.struck(honest, k, self.replies["6", 1 - k])
        return honest

    def struck(self, honest: Message, k: int, content: RecordDict) -> Message:
        self.done[honest.metadata.group_id, k] = True
        return make_message(metadata=honest.metadata, content=content)


def test_nothing_forged_enters_and_no_honest_reply_is_lost(tmp_path: Path) -> None:
    settings = {"method": "fedavg", "clients": CLIENTS, "fleet": "mlp@0.25", "rounds": 6}
    plain = play(flat(tmp_path / "plain", **settings))
    work, keys = tmp_path / "federation", make(tmp_path / "certs", ["127.0.0.1"], CLIENTS)
    database = tmp_path / "superlink.db"
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(Processes(work))
        folder = stack.enter_context(warm.stand_ins())
        own = {"OMP_NUM_THREADS": "1"}
        full = environment(own, work / "home" / "warm")
        own |= warm.start(processes, folder, full)
        at, fleet, apps = (f"127.0.0.1:{port}" for port in free_ports(3))
        command = [*superlink_command(at, fleet, simulation=False, certificates=keys)]
        command += ["--serverappio-api-address", apps, "--isolation", "process"]
        before = os.umask(0o077)  # as the documented steps begin
        try:
            home = environment(own, work / "home" / "superlink")
            processes.start("superlink", [*command, "--database", str(database)], home, last=True)
        finally:
            os.umask(before)
        impostor = Impostor(fleet, keys, 1)
        stack.callback(impostor.close)
        attacks = Attacks(impostor)
        relayed = stack.enter_context(serving(Relay(apps, attacks.sent, attacks.reply)))
        control = stack.enter_context(Control(at, keys.ca, work, home, processes.check))
        processes.wait(lambda: not control.silent(), "the SuperLink", 300.0)
        processes.wait(lambda: warm.ready(processes, folder), "the warm process", 300.0)
        beside = ["flower-superexec", "--insecure", "--plugin-type", "serverapp"]
        trusted = {**own, "FEDMOSAIC_TRUST": str(keys.folder)}
        env = environment(trusted, work / "home" / "serverapp")
        processes.start("superexec", [*beside, "--appio-api-address", relayed], env)
        for k in range(CLIENTS):
            control.register(keys.public(k))
            node = supernode_command(fleet, node_config(k, CLIENTS, {}, keys), keys, k)
            processes.start(f"supernode-{k}", node, environment(own, work / "home" / str(k)))
        processes.wait(lambda: control.online() >= CLIENTS, "the SuperNodes", 300.0)
        run = control.submit(app_folder(), flat(tmp_path / "out", **settings), {})
        status = control.follow(run)
        assert status.completed, status.details
        for path in tmp_path.glob("superlink.db*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    last = max(attacks.done)  # the swap's: of the client whose reply came second
    struck = [("2", 0), ("3", 0), ("4", 0), ("4", 1), ("5", 1), last]
    assert attacks.done == dict.fromkeys(struck, True)
    assert last[0] == "6"
    result = TinyRun(tmp_path / "out")
    assert result.weights == plain.weights
    assert [entry["replied"] for entry in result.journal[1:]] == [[0, 1]] * 6
    failures = [(str(entry["round"]), f) for entry in result.journal for f in entry["failures"]]
    said = {(t, failure["k"]): failure["reason"] for t, failure in failures}
    assert said.keys() == attacks.done.keys()
    assert said.pop(("4", 1)).startswith("no reply within")
    for (_, k), reason in said.items():
        assert reason.startswith(FORGED.format(k=k)), reason
    # a registered node gets what another one sent, and it is of no use
    assert max(map(len, attacks.pulled)) > 1000
    assert not any(b"NUMPY" in part or b"protocol.Trained" in part for part in attacks.pulled)
