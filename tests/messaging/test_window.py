"""However many clients an exchange has, only so many messages are out at once."""

from collections.abc import Iterable

import pytest
from flwr.app import Error, Message, RecordDict

from client_app.app import CLIENT_FAILED
from common.flower.rpc import HALFWAY
from deploy.flower.messages import nameless_run
from server_app.messaging import exchange as module
from server_app.messaging.exchange import exchange, kind_of


class Slow:
    """Grid whose nodes answer the three oldest messages at every look; ``deaf`` ones never do."""

    run = property(lambda _: nameless_run(1))

    def __init__(self, deaf: frozenset[int] = frozenset()) -> None:
        self.deaf = deaf
        self.out: dict[str, Message] = {}
        self.most = self.looks = 0

    def get_node_ids(self) -> Iterable[int]:
        return []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"m{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = name
            self.out[name] = message
            names.append(name)
        self.most = max(self.most, len(self.out))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = list(message_ids)
        self.looks += len(asked)
        ready = [n for n in asked if self.out[n].metadata.dst_node_id not in self.deaf][:3]
        return [Message(RecordDict(), reply_to=self.out.pop(name)) for name in ready]


class Raising(Slow):
    """Nodes whose ClientApp raises an exception, in Flower's words."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        error = Error(
            CLIENT_FAILED, "<class 'deploy.flower.owner.rules.Refused'>:<'rounds = 9 is not'>"
        )
        return [Message(error, reply_to=self.out.pop(name)) for name in list(message_ids)]


class Clock:
    """A clock that only ``sleep`` moves, so that a timeout does not depend on the machine."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock())


def letters(count: int) -> dict[int, Message]:
    return {k: Message(RecordDict(), k + 1, "train") for k in range(count)}


def test_no_more_than_the_window_is_out_and_the_looks_grow_with_the_clients_alone() -> None:
    looks = {}
    for count in (50, 100, 200):
        grid = Slow()
        replies, failures = exchange(grid, letters(count), 60, 1, 10)
        assert list(replies) == list(range(count)) and not failures
        assert all(reply.metadata.src_node_id == k + 1 for k, reply in replies.items())
        assert grid.most == 10
        looks[count] = grid.looks
    assert looks[200] - looks[100] < 2.2 * (looks[100] - looks[50])


@pytest.mark.usefixtures("clock")
def test_silent_clients_take_their_places_until_the_time_is_over() -> None:
    grid = Slow(frozenset({1, 2}))
    replies, failures = exchange(grid, letters(6), 0.2, 3, 2)
    assert replies == {}
    reasons = {failure.k: failure.reason for failure in failures}
    assert list(reasons) == list(range(6)) and {failure.round for failure in failures} == {3}
    assert reasons[0] == reasons[1] == "no reply within 0.2 s"
    assert reasons[5] == "not asked within 0.2 s, window = 2 others were waited for"
    assert {failure.kind for failure in failures} == {"late"}
    assert (failures[0].released, failures[5].released) == (reasons[0], "not asked within 0.2 s")


@pytest.mark.usefixtures("clock")
def test_one_silent_client_holds_nobody_up() -> None:
    replies, failures = exchange(Slow(frozenset({1})), letters(6), 0.3, 1, 2)
    assert list(replies) == [1, 2, 3, 4, 5]
    assert [failure.k for failure in failures] == [0]


def test_an_exception_of_a_client_is_its_name_and_message() -> None:
    replies, failures = exchange(Raising(), letters(1), 60, 1)
    assert not replies and [f.reason for f in failures] == ["Refused: rounds = 9 is not"]
    assert failures[0].kind == "client error"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Error: Node Unavailable", "unreachable"),
        ("Error: Reply Message Unavailable", "unreachable"),
        (f"{HALFWAY}, without 3f", "late"),
        ("FloatingPointError: training diverged: mean loss nan over 3 steps", "diverged"),
        ("NoSession: this client does not have the session of the message", "no session"),
        ("ValueError: x holds numbers that are not finite", "client error"),
        ('evil"}\n refused: x', "client error"),
    ],
)
def test_texts_of_error_replies_have_a_kind_in_one_place(reason: str, kind: str) -> None:
    assert kind_of(reason)[0] == kind
