"""What a client keeps is durable, and a repeated round starts where it started."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from client_app.store import STORED_REPLIES, Ledger, NotAnswered, Store
from common.exchange import model_file
from common.exchange.protocol import ModelReply, ModelRequest, ToServer
from common.exchange.records import Records, StateDict
from common.files import Damaged, write_atomically
from common.techniques.privacy import gaussian_epsilon, local_cost


class Memory(Records):
    w: StateDict


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "e", 0)


def saved(store: Store, *rounds: int) -> Store:
    """Save the number of each round as its state."""
    for t in rounds:
        store.save_state(t, memory(t))
    return store


def memory(value: float) -> Memory:
    return Memory(w={"w": torch.tensor([value])})


def recalled(store: Store, t: int) -> float | None:
    found = store.load_state(t, Memory)
    return None if found is None else found.w["w"].item()


def test_a_round_reads_the_newest_state_before_it_also_if_it_is_repeated(store: Store) -> None:
    assert recalled(store, 1) is None
    saved(store, 2, 5)
    assert (recalled(store, 2), recalled(store, 5), recalled(store, 9)) == (None, 2.0, 5.0)
    assert [store.newest(t) for t in (1, 2, 4, 9)] == [0, 2, 2, 5]
    assert recalled(saved(store, 1, 2, 3), 3) == 2.0
    store.save_state(3, memory(33.0))
    assert (recalled(store, 3), recalled(store, 4)) == (2.0, 33.0)
    assert store.rounds() == [2, 3]


def test_a_round_that_is_named_is_kept_beside_the_newest_two(store: Store) -> None:
    for t in (1, 2, 3, 4):
        store.save_state(t, memory(t), also=1)
    assert store.rounds() == [1, 3, 4] and store.load_state_of(1, Memory).w["w"].item() == 1.0
    store.save_state(5, memory(5), also=4)
    assert store.rounds() == [4, 5]
    with pytest.raises(ValueError, match=r"/e/0/3/.*Memory.safetensors is missing: .* of round 3"):
        store.load_state_of(3, Memory)


def test_an_earlier_run_under_the_same_name_is_not_remembered(store: Store) -> None:
    assert recalled(saved(store, 8, 9), 1) is None
    saved(store, 1)
    assert store.rounds() == [1] and recalled(store, 2) == 1.0


def test_clients_and_experiments_are_apart_and_a_damaged_file_is_named(store, tmp_path) -> None:
    saved(store, 1)
    assert recalled(Store(tmp_path, "e", 1), 2) is None
    assert recalled(Store(tmp_path, "f", 0), 2) is None
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"Memory.safetensors cannot be read"):
        store.load_state(2, Memory)
    with pytest.raises(ValueError, match="state-dir .* cannot be written"):
        Store(path, "e", 0).load_state(1, Memory)


def test_a_full_disk_is_one_line_and_leaves_the_last_state_whole(store, tmp_path, monkeypatch):
    saved(store, 1)
    (kept,) = store.folder.glob("1/*")
    before = kept.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match=r"state-dir .* cannot be written: No space left"):
            store.save_state(2, memory(2.0))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    assert kept.read_bytes() == before
    assert store.rounds() == [1] and recalled(store, 3) == 1.0
    assert recalled(saved(store, 2), 3) == 2.0


def test_a_round_that_was_never_written_does_not_push_out_the_state_before_it(store: Store) -> None:
    saved(store, 1, 2)
    (store.folder / "3").mkdir()  # as after a kill between making the folder and filling it
    (store.folder / "3" / ".Memory.safetensors.99").write_bytes(b"half")
    saved(store, 4)
    assert recalled(store, 4) == 2.0 and store.rounds() == [2, 4]
    assert not (store.folder / "3").exists()


@pytest.mark.parametrize("t", [2, 3])
def test_a_process_that_comes_too_late_changes_nothing(t: int, tmp_path: Path) -> None:
    """One that slept while its successor went on, or that was asked the same round again."""
    late = saved(Store(tmp_path, "e", 0), 1)
    for done in range(2, t + 1):
        saved(Store(tmp_path, "e", 0), done)
    with pytest.raises(ValueError, match="written by another process .* is discarded"):
        late.save_state(2, memory(-1.0))
    assert recalled(Store(tmp_path, "e", 0), 4) == float(t)


def test_a_killed_writer_leaves_nothing_that_fills_the_disk(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    for writer in (dead.pid, os.getppid()):
        (tmp_path / f".file.{writer}").write_bytes(b"half")
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".file.{os.getppid()}", "file"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file beyond ``size`` bytes; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_write_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model_file.write(path, {"w": torch.ones(3)})
    for write, content in (
        (write_atomically, bytes(5000)),
        (model_file.write, {"w": torch.ones(5000)}),
    ):
        with largest_file(1000), pytest.raises(OSError) as raised:
            write(path, content)
        assert f"File too large: '{path}'" in str(raised.value)
    assert torch.equal(model_file.load(path)["w"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_nobody_else_can_read_what_a_client_keeps(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = saved(Store(tmp_path / "state", "e", 0), 1)
    finally:
        os.umask(before)
    (kept,) = store.folder.glob("*/*.safetensors")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_store_keeps_what_a_server_that_goes_back_asks_for(tmp_path: Path) -> None:
    store = saved(Store(tmp_path, "e", 0, keep=3), 1, 2, 5, 6, 7)
    assert store.rounds() == [2, 5, 6, 7]  # back to 4 at most: that reads round 2's
    assert recalled(Store(tmp_path, "e", 0, keep=3), 5) == 2.0
    store.save_state(5, memory(55.0))
    assert store.rounds() == [2, 5] and recalled(store, 6) == 55.0


# The ledger of what a client has answered.
class Answering:
    """A client that has trained ``trained`` times, the number in its reply."""

    def __init__(self) -> None:
        self.trained = 0

    def ask(
        self,
        ledger: Ledger,
        t: int,
        w: float = 0.0,
        z: float = 1.0,
        experiment: str = "e",
        kind: str = "train",
        lr: float = 0.1,
    ) -> float:
        """Return the number in the reply to a request with the weight ``w``."""
        request = ModelRequest(w={"w": torch.tensor([w])}).stamped(experiment, t)

        def work() -> ToServer:
            self.trained += 1
            w = {"w": torch.tensor([float(self.trained)])}
            return ModelReply(w=w).stamped(request, 0, kept=t)

        reply = ledger.answer(kind, request, z, work, {"train.lr": lr})
        assert isinstance(reply, ModelReply) and (reply.t, reply.kept) == (t, t)
        assert reply.experiment == experiment
        return float(reply.w["w"])


@pytest.fixture
def client() -> Answering:
    return Answering()


def test_a_round_that_was_answered_gets_the_stored_bytes_or_nothing(
    tmp_path: Path, client: Answering
) -> None:
    assert client.ask(Ledger(tmp_path), 1) == 1.0
    for _ in range(3):  # each message may have a process of its own
        assert client.ask(Ledger(tmp_path), 1, lr=0.5) == 1.0 and client.trained == 1
    with pytest.raises(ValueError, match="'e': round 1 was answered before, and this is another"):
        client.ask(Ledger(tmp_path), 1, w=1e-6)
    assert client.ask(Ledger(tmp_path), 3) == 2.0
    for t in (1, 2):
        with pytest.raises(ValueError, match=f"round {t} is before round 3, which was answered"):
            client.ask(Ledger(tmp_path), t)
    assert client.ask(Ledger(tmp_path), 1, experiment="f") == 3.0, "a name that the server chooses"
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o600
    assert "3 rounds, with noise: ε = " in Ledger(tmp_path).check("g", 0, 1.0)


def test_a_request_without_noise_opens_no_round_with_noise_again(
    tmp_path: Path, client: Answering
) -> None:
    ledger = Ledger(tmp_path, max_rounds=9)
    client.ask(ledger, 5)
    client.ask(ledger, 1, z=0.0)
    with pytest.raises(NotAnswered, match="round 2 is before round 5"):
        client.ask(ledger, 2)
    assert client.ask(ledger, 5) == 1.0


def test_two_processes_with_the_same_request_send_one_reply(
    tmp_path: Path, client: Answering
) -> None:
    ledger, request = Ledger(tmp_path), ModelRequest(w={"w": torch.zeros(1)}).stamped("e", 1)

    def work() -> ToServer:
        assert client.ask(Ledger(tmp_path), 1) == 1.0  # the other process is faster
        return ModelReply(w={"w": torch.ones(1) * 99}).stamped(request, 0)

    reply = ledger.answer("train", request, 1.0, work)
    assert isinstance(reply, ModelReply) and float(reply.w["w"]) == 1.0


def test_few_replies_are_stored_and_the_others_are_refused(
    tmp_path: Path, client: Answering
) -> None:
    for i in range(STORED_REPLIES + 1):
        client.ask(Ledger(tmp_path), 1, experiment=f"e{i}")
        client.ask(Ledger(tmp_path), 2, experiment=f"e{i}")
    assert len(list(tmp_path.glob("*.reply"))) == STORED_REPLIES
    assert client.ask(Ledger(tmp_path), 2, experiment="e1") == 4.0
    with pytest.raises(ValueError, match="round 2 was answered before, and its reply is not stor"):
        client.ask(Ledger(tmp_path), 2, experiment="e0")


def test_the_owners_rounds_are_those_of_all_runs(tmp_path: Path, client: Answering) -> None:
    def ask(*where: int, **how: object) -> float:
        return client.ask(Ledger(tmp_path, max_rounds=5), *where, z=0.0, **how)  # type: ignore[arg-type]

    ask(1), ask(1, kind="train.second"), ask(1)  # the same again after a crash
    ask(2), ask(1, w=0.5)  # round 2 was undone, and round 1 is repeated
    assert Ledger(tmp_path, max_rounds=5).check("e", 2, 0.0) == ""
    ask(1, experiment="f"), ask(1, experiment="f", lr=0.5)  # another request
    line = "max-rounds = 5 of this client's owner: it has answered 5 rounds, over all runs"
    for how in ({"w": 0.7}, {"experiment": "g"}):
        with pytest.raises(ValueError, match=line):
            ask(1, **how)
    with pytest.raises(ValueError, match=line):
        Ledger(tmp_path, max_rounds=5).check("g", 0, 0.0)
    assert ask(1, experiment="f", lr=0.5) > 0, "a repetition is no further round"
    assert not list(tmp_path.glob("*.reply"))


def test_the_owners_epsilon_is_that_of_all_runs(tmp_path: Path, client: Answering) -> None:
    limit = gaussian_epsilon(local_cost(2.0) * 3) + 1e-9
    ledger = Ledger(tmp_path, max_epsilon=limit)
    for t, name in ((1, "e"), (2, "e"), (1, "f")):
        client.ask(ledger, t, z=2.0, experiment=name)
    line = f"max-epsilon = {limit:g} of this client's owner: another round makes ε = "
    with pytest.raises(ValueError, match=line):
        client.ask(ledger, 2, z=2.0, experiment="f")
    with pytest.raises(ValueError, match=line):
        ledger.check("g", 0, 2.0)
    assert ledger.check("f", 0, 2.0), "its last round may be repeated"
    assert client.ask(ledger, 1, z=2.0, experiment="f") == 3.0
    with pytest.raises(ValueError, match='privacy.mode = "local" is required'):
        client.ask(ledger, 1, z=0.0, experiment="g")


@pytest.mark.parametrize("damage", [b"", b"{}\n", b'{"rounds": 0}\n0123\n', b"\xff\n\n\n"])
def test_a_damaged_ledger_answers_nothing(tmp_path: Path, client: Answering, damage: bytes) -> None:
    client.ask(Ledger(tmp_path), 1)
    (tmp_path / "ledger").write_bytes(damage)
    line = "ledger is damaged; without it this client does not know what it has answered, so"
    for t in (1, 2):
        with pytest.raises(Damaged, match=line) as told:
            client.ask(Ledger(tmp_path), t)
        assert "\n" not in str(told.value)
    with pytest.raises(Damaged, match=line):
        Ledger(tmp_path).check("e", 1, 1.0)
    assert client.trained == 1


def test_a_reply_that_cannot_be_recorded_does_not_leave(tmp_path: Path, client: Answering) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Damaged, match=r"ledger .*/file/0 cannot be written: Not a directory"):
        client.ask(Ledger(tmp_path / "file" / "0"), 1)
    assert client.trained == 0
    client.ask(Ledger(tmp_path), 1)
    (reply,) = tmp_path.glob("*.reply")
    flipped = bytearray(reply.read_bytes())
    flipped[-1] ^= 1
    reply.write_bytes(flipped)
    with pytest.raises(Damaged, match=r"\.reply cannot be read"):
        client.ask(Ledger(tmp_path), 1)


def test_a_run_goes_on_where_the_ledger_is_or_takes_another_name(
    tmp_path: Path, client: Answering
) -> None:
    for t in (1, 2, 3):
        client.ask(Ledger(tmp_path), t)
    assert Ledger(tmp_path).check("e", 3, 1.0) and Ledger(tmp_path).check("e", 2, 1.0)
    line = "experiment = 'e': this client has answered its round 3, and the run goes on after round"
    with pytest.raises(ValueError, match=f"{line} 0; choose another name"):
        Ledger(tmp_path).check("e", 0, 1.0)


def test_without_noise_and_limits_there_is_no_ledger(tmp_path: Path, client: Answering) -> None:
    for w in (0.0, 0.5):
        client.ask(Ledger(tmp_path / "none"), 1, w=w, z=0.0)
    assert client.trained == 2 and not (tmp_path / "none").exists()


def test_the_node_alone_chooses_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Ledger.of({}, 3, state).folder == state / "ledger", "of a simulation"
    monkeypatch.delenv("FEDMOSAIC_LEDGER")
    assert Ledger.of({}, 3, state).folder == tmp_path / ".fedmosaic" / "ledger" / "3"
    assert Ledger.of({"ledger": "/var/x"}, 3, state).folder == Path("/var/x/3")
