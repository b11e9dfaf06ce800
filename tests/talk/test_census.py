"""The server refuses a federation that does not fit, naming the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from server_app.talk.census import check_peers
from tests.support.peers import TASK, peer
from tests.support.tiny import flat, play


def test_a_federation_that_fits_is_welcome() -> None:
    check_peers([peer(k=1), peer()], 2, "e", TASK)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"k": 0}, "2 nodes claim to be client 0"),
        ({"k": 7}, "client 7 in a federation of 2"),
        ({"experiment": "x"}, "client 1 has experiment 'x', the server 'e'"),
        ({"version": "0.0.9"}, "client 1 has code version '0.0.9'"),
        ({"task": "u"}, "client 1 has task"),
        ({"public": "q"}, "client . has another public set"),
    ],
)
def test_a_client_that_does_not_fit_is_named(second: dict[str, Any], reason: str) -> None:
    with pytest.raises(Stopped, match=reason):
        check_peers([peer(), peer(**{"k": 1, **second})], 2, "e", TASK)


def test_missing_clients_are_waited_for_and_then_counted(tmp_path: Path) -> None:
    settings = flat(tmp_path, clients=4, wait=0.3)
    with pytest.raises(Stopped, match=r"3 of 4 clients connected within wait = 0.3 s"):
        play(settings, Loopback(3, settings, workers=0))


def test_too_many_clients_are_refused(tmp_path: Path) -> None:
    settings = flat(tmp_path, clients=2)
    with pytest.raises(Stopped, match="3 clients are connected, but clients = 2"):
        play(settings, Loopback(3, settings, workers=0))


def test_a_node_that_claims_another_ones_partition_is_refused(tmp_path: Path) -> None:
    settings = flat(tmp_path)
    grid = Loopback(4, settings, workers=0, node_configs={2: {"partition-id": 1}})
    with pytest.raises(Stopped, match="2 nodes claim to be client 1"):
        play(settings, grid)


def test_a_node_brings_its_own_model(tmp_path: Path) -> None:
    settings = flat(tmp_path, method="fedorion", rounds=1)
    result = play(settings, Loopback(4, settings, workers=0, node_configs={1: {"model": "lenet5"}}))
    models = [client["model"] for client in result.summary["clients"]]
    assert models == ["mlp@0.25", "lenet5", "mlp@0.25", "cnn2@0.5"]


def test_a_node_with_an_impossible_model_is_refused_by_name(tmp_path: Path) -> None:
    settings = flat(tmp_path)
    grid = Loopback(4, settings, workers=0, node_configs={3: {"model": "resnet99"}})
    with pytest.raises(Stopped, match="no architecture 'resnet99'"):
        play(settings, grid)


class Flickering(Loopback):  # type: ignore[misc]
    """Its first node has left again when it is asked for the first ``times`` times."""

    def __init__(self, *given: Any, times: int, reason: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.left, self.reason, self.asked = times, reason, list[int]()

    def pull_messages(self, message_ids: Any) -> Any:
        for reply in super().pull_messages(message_ids):
            self.asked.append(reply.metadata.src_node_id)
            if self.asked[-1] == 1 and self.left > 0:
                self.left -= 1
                failed = Message(Error(code=5, reason=self.reason), reply_to=reply)
                names = failed.metadata.__dict__
                names["_reply_to_message_id"] = reply.metadata.reply_to_message_id
                yield failed
            else:
                yield reply


UNAVAILABLE = "Error: Node Unavailable — The destination node failed to report a heartbeat"


def test_a_node_that_leaves_while_it_starts_is_asked_again(tmp_path: Path) -> None:
    settings = flat(tmp_path, rounds=1)
    grid = Flickering(4, settings, workers=0, times=2, reason=UNAVAILABLE)
    assert play(settings, grid).summary["status"] == "completed"
    assert grid.asked[:6] == [1, 2, 3, 4, 1, 1], "the others are asked once"


@pytest.mark.parametrize(
    ("times", "reason", "said"),
    [(10_000, UNAVAILABLE, "Node Unavailable"), (1, "out of memory", "out of memory")],
    ids=["it stays away", "it fails for another reason"],
)
def test_a_node_that_does_not_answer_the_census_stops_the_run(
    times: int, reason: str, said: str, tmp_path: Path
) -> None:
    settings = flat(tmp_path, wait=0.3)
    grid = Flickering(4, settings, workers=0, times=times, reason=reason)
    with pytest.raises(Stopped, match=f"census: node 1 answered: .*{said}"):
        play(settings, grid)
