"""The server refuses a federation that does not fit, naming the client."""

from pathlib import Path
from typing import Any

import pytest

from deploy.run.loopback import Loopback
from server_app.stopped import Stopped
from tests.support.battery import failed
from tests.support.halves import TASK, check_peers, info
from tests.support.tiny import flat, play

WITHOUT_A_NUMBER = {"clients": 0, "wait": 2.5}
UNAVAILABLE = "Error: Node Unavailable — The destination node failed to report a heartbeat"


def test_a_federation_that_fits_is_welcome() -> None:
    check_peers([info(k=1, n=1000, n_test=1000), info()], 2, "e", TASK, 1000)
    check_peers([info(), info(k=1, counts=[5, 0, 0])], 2, "e", TASK, 1000)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"k": 0}, "2 nodes claim to be client 0"),
        ({"k": 7}, "client 7 in a federation of 2"),
        ({"experiment": "x"}, "client 1 has experiment 'x', the server 'e'"),
        ({"version": "0.0.9"}, "client 1 has code version '0.0.9'"),
        ({"task": "u"}, "client 1 has task"),
        ({"public": "q"}, "client . has another public set"),
        ({"n": 2**39}, "client 1 claims 549755813888 training samples, max-samples = 1000"),
        ({"n": 1001}, "client 1 claims 1001 training samples"),
        ({"n_test": 1001}, "client 1 claims 1001 test samples"),
        ({"targets": 6}, "client 1 claims 6 tokens to learn in 5 samples"),
        ({"targets": 4}, "client 1 claims 4 tokens to learn in 5 samples"),
        ({"classes": [0, 3]}, r"client 1 claims classes \[0, 3\], allowed are 0 to 2"),
        ({"classes": [1, 0]}, "client 1 claims classes"),
        ({"classes": [0, 0]}, "client 1 claims classes"),
        ({"classes": []}, "client 1 claims classes"),
        ({"counts": [5, 0]}, "client 1 claims class counts that are not those of its 5"),
        ({"counts": [4, 0, 0]}, "client 1 claims class counts"),
        ({"counts": [4, 1, 0]}, "client 1 claims class counts"),
    ],
)
def test_a_client_that_does_not_fit_is_named(second: dict[str, Any], reason: str) -> None:
    with pytest.raises(Stopped, match=reason):
        check_peers([info(), info(**{"k": 1, **second})], 2, "e", TASK, 1000)


@pytest.mark.parametrize(
    ("size", "own", "settings", "reason"),
    [
        (3, {}, {"wait": 0.3}, r"3 of 4 clients connected within wait = 0.3 s"),
        (4, {2: {"partition-id": 1}}, {}, "2 nodes claim to be client 1"),
        (
            *(4, {2: {"partition-id": 7}}, {"wait": 0.3}),
            "3 of 4 clients connected within wait = 0.3 s; node 3: .* partition-id = 7, but",
        ),
        (4, {3: {"model": "resnet99"}}, {}, "no architecture 'resnet99'"),
        (4, {1: {"device": "cuda:99"}}, {}, 'device = "cuda:99" is not here'),
        (4, {}, {"max_samples": 10}, "client 0 claims .* training samples, max-samples = 10"),
        (
            *(3, {1: {"num-partitions": 4}}, WITHOUT_A_NUMBER),
            "client 1 expects 4 clients, client 0 3: start all nodes with the same --clients",
        ),
        (
            *(3, {k: {"num-partitions": 4} for k in range(3)}, WITHOUT_A_NUMBER),
            r"3 of 4 clients connected within",
        ),
        (3, {}, {**WITHOUT_A_NUMBER, "per_round": 4}, "per-round = 4 is more than the 3 clients"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused(
    size: int, own: dict[int, Any], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = flat(tmp_path, **settings)
    with pytest.raises(Stopped, match=reason) as error:
        play(config, Loopback(size, config, workers=0, node_configs=own))
    assert "\n" not in str(error.value)


def test_nodes_without_a_place_are_listed_and_ignored(tmp_path: Path) -> None:
    config = flat(tmp_path, clients=2, rounds=1)
    own = {2: {"partition-id": 7, "num-partitions": 9}, 3: {"model": "resnet99"}}
    run = play(config, Loopback(4, config, workers=0, node_configs=own))
    assert run.journal[1]["replied"] == [0, 1]
    why = "ValueError: partition-id = {0}, but the federation has 2"
    notes = [f"node {n} is ignored: client {k}: {why.format(k)}" for n, k in ((3, 7), (4, 3))]
    assert run.journal[0]["notes"] == notes


def test_without_a_number_the_connected_nodes_have_it(tmp_path: Path) -> None:
    config = flat(tmp_path / "all", clients=0, rounds=1)
    run = play(config, Loopback(3, config, workers=0))
    assert run.journal[1]["replied"] == [0, 1, 2]
    assert "clients = 3\n" in (run.folder / "config.toml").read_text()
    config = flat(tmp_path / "some", clients=0, min_clients=2, rounds=1)
    own = {k: {"num-partitions": 4} for k in range(3)}
    run = play(config, Loopback(3, config, workers=0, node_configs=own))
    assert run.journal[1]["replied"] == [0, 1, 2]
    assert "clients = 4\n" in (run.folder / "config.toml").read_text()
    resumed = flat(tmp_path / "some", clients=0, min_clients=2, rounds=2, resume=True)
    run = play(resumed, Loopback(4, resumed, workers=0))
    assert [(e["k"], e["kind"]) for e in run.journal[2]["events"]] == [(3, "joined")]


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
                yield failed(reply, 5, self.reason)
            else:
                yield reply


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
def test_a_silent_node_stops_the_census(times: int, reason: str, said: str, tmp_path: Path) -> None:
    settings = flat(tmp_path, wait=0.3)
    grid = Flickering(4, settings, workers=0, times=times, reason=reason)
    with pytest.raises(Stopped, match=f"census: node 1 answered: .*{said}"):
        play(settings, grid)
