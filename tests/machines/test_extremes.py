"""Over gRPC with TLS, registered keys and sealed messages: client 1 sends the largest numbers.

It is who it says it is, and its message is well formed (``tests/support/extreme_client.py``).
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.machines import certificates
from deploy.run.grpc import Federation, start_federation
from deploy.run.settings import app_folder
from tests.support.adversary import LIAR, ROUND, note, settings
from tests.support.stand_in import standing_in
from tests.support.tiny import TinyRun

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(sys.platform != "linux", reason="warm starts need Linux"),
]
CLIENTS = 4


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    work = tmp_path_factory.mktemp("extremes")
    keys = certificates.make(work / "certs", ["127.0.0.1"], clients=CLIENTS)
    with (
        standing_in("extreme_client.py", LIAR),
        start_federation(
            app=app_folder(),
            clients=CLIENTS,
            work=work / "federation",
            env={"OMP_NUM_THREADS": "1"},
            certificates=keys,
            warm_start=True,
        ) as started,
    ):
        yield started


@pytest.mark.parametrize(
    ("method", "of"),
    [("fedavg", "weights"), ("fedin", "weights and features"), ("dl-sh", "probabilities")],
)
def test_the_largest_numbers_are_refused_and_named(
    federation: Federation, method: str, of: str, tmp_path: Path
) -> None:
    status = federation.control.follow(federation.submit(settings(method, tmp_path)))
    assert status.completed, status.details
    run = TinyRun(tmp_path)
    failures = [failure for entry in run.journal for failure in entry["failures"]]
    assert [(f["k"], f["round"]) for f in failures] == [(LIAR, ROUND)], failures
    assert run.journal[ROUND]["replied"] == [0, 2, 3]
    assert run.journal[ROUND + 1]["replied"] == [0, 1, 2, 3]
    name = f"{method}: a client with its own key sends {of} of the largest size"
    note(name, "completed; the client is back in the next round", failures[0]["reason"])
