"""What the server does now, and which nodes are connected, in ``status.json``."""

from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest

from server_app.method import Client
from server_app.storage import status_file
from server_app.storage.status_file import NAME, ServerStatus, StatusFile
from tests.support.halves import info

CLIENTS = {k: Client(info(k=k, name=f"node of {k}"), 10 + k) for k in range(2)}


class Nodes:
    """A grid with the connected nodes ``online``; None: the SuperLink is lost."""

    def __init__(self) -> None:
        self.online: list[int] | None = [10, 11]
        self.looks = 0

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        if self.online is None:
            raise grpc.RpcError
        return self.online


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def begun(folder: Path, nodes: Nodes) -> StatusFile:
    file = StatusFile(folder, nodes, lambda: CLIENTS)  # type: ignore[arg-type]
    file.enter(3, "clients")
    return file


def online(folder: Path) -> list[bool]:
    return [node.online for node in ServerStatus.read(folder).nodes.values()]


def test_a_phase_and_the_connected_nodes_are_written(tmp_path: Path, nodes: Nodes) -> None:
    file = begun(tmp_path, nodes)
    first = ServerStatus.read(tmp_path)
    assert (first.round, first.phase) == (3, "clients")
    assert [(n.node, n.name) for n in first.nodes.values()] == [
        (10, "node of 0"),
        (11, "node of 1"),
    ]
    assert online(tmp_path) == [True, True]
    nodes.online = [10]
    file.renew()
    file.enter(3, "step")
    assert nodes.looks == 1, "the last look was less than ten seconds ago"
    second = ServerStatus.read(tmp_path)
    assert second.phase == "step" and second.nodes == first.nodes


def test_a_client_that_is_away_keeps_the_time_of_its_last_connection(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "PAUSE", -1.0)
    file = begun(tmp_path, nodes)
    seen = ServerStatus.read(tmp_path).nodes[1].seen
    for state in ([10], None):
        nodes.online = state
        file.renew()
        assert online(tmp_path) == [True, False]
        assert ServerStatus.read(tmp_path).nodes[1].seen == seen > 0
    nodes.online = []
    begun(tmp_path, nodes)  # the run resumes
    assert online(tmp_path) == [False, False]
    assert ServerStatus.read(tmp_path).nodes[1].seen == seen


def test_a_large_federation_and_a_damaged_file_have_no_nodes(
    tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "MOST", 1)
    begun(tmp_path, nodes)
    assert nodes.looks == 0 and ServerStatus.read(tmp_path) == ServerStatus(
        round=3, phase="clients"
    )
    (tmp_path / NAME).write_text("{")
    assert ServerStatus.read(tmp_path) == ServerStatus()
