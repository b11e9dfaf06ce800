"""Asynchronous rounds of methods that train on the server or combine class tables, and CA2FL."""

from pathlib import Path
from typing import Any

import pytest
import torch

from common.data import noise
from common.parse import parse
from common.techniques.class_table import TableReply
from server_app.aggregation.calibration import Cache
from server_app.aggregation.staleness import Discount
from server_app.buffered.rounds import Buffered
from server_app.method import Replies
from server_app.methods import fedftg_noise
from tests.support import battery
from tests.support.asynchronous import (
    EQUAL,
    GROUPS,
    PROFILES,
    RECALIBRATED,
    SMALL,
    Killed,
    Mortal,
    Worse,
    buffered,
    config,
    same,
    steps,
)
from tests.support.halves import client, server
from tests.support.scaled import LIAR, SIX
from tests.support.tiny import flat, listed, play

ON_SERVER = [*GROUPS["training"], *GROUPS["models"], *GROUPS["tables"]]
ON_SERVER += ["dafl", "fedin", "fedkf", "fedl2g"]
CACHED = {"buffer__cache": True, "buffer__staleness": "constant"}


def replies(*tables: tuple[int, list[float]]) -> Replies[TableReply]:
    """Return replies of clients with one row of two numbers, for class 0."""
    rows = {k: torch.tensor([row, [0.0, 0.0]]) for k, row in tables}
    counts = torch.tensor([1, 0])
    made = [
        (client(k), TableReply.model_construct(table=w, counts=counts)) for k, w in rows.items()
    ]
    return Replies.of(made)


# Methods that train on the server, and class tables.


@pytest.mark.parametrize("method", battery.tiers(ON_SERVER, ("fedftg-noise", "fedproto")))
def test_a_buffer_of_all_clients_with_equal_times_is_the_synchronous_run(
    method: str, tmp_path: Path
) -> None:
    """Bit for bit: the server trains for all its steps, and the newest tables are of the round."""
    own = {"score__bn": "batch"} if method in RECALIBRATED else {}
    equal = {**EQUAL, "profile__fast__step-overhead": 0.0, "profile__fast__flops": 1e18, **own}
    run, sync = (
        play(battery.config(method, tmp_path / name, **equal, **more, rounds=3))
        for name, more in (
            ("run", {"mode": "buffered", "buffer__size": 4, "buffer__concurrency": 4}),
            ("sync", {}),
        )
    )
    assert run.weights == sync.weights
    assert [entry["metrics"] for entry in run.journal[1:]] == [
        entry["metrics"] for entry in sync.journal[1:]
    ]


def test_a_step_has_the_share_of_the_servers_steps(tmp_path: Path) -> None:
    per_round = {"per_round": 10, "clients": 20, **PROFILES}
    for changes, wanted in (
        ({**per_round, "buffer__size": 5}, (0, 1, 1, 50)),
        ({**per_round, "buffer__size": 2}, (0, 1, 1, 20)),
        ({**per_round, "per_round": 0, "buffer__size": 5}, (0, 1, 1, 25)),
        ({"clients": 20}, (0, 1, 2, 100)),
    ):
        half = server(**changes)
        half.roster = dict.fromkeys(range(20), "mlp")
        assert tuple(half.server_steps(n) for n in (0, 1, 2, 100)) == wanted


@pytest.mark.parametrize("method", ["fedorion", "hetfedfl"])
def test_a_smaller_buffer_distils_in_fewer_steps(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, real = [], noise.batches

    def counted(kind: Any, count: int, *rest: Any) -> Any:
        counts.append(count)
        return real(kind, count, *rest)

    monkeypatch.setattr(noise, "batches", counted)
    own = {"score__bn": "batch"} if method in RECALIBRATED else {}
    small = {"noise__epochs": 2, "noise__batches": 6, "buffer__size": 1, **own}
    buffered(tmp_path, method=method, fleet="mlp@0.25,cnn2@0.5", rounds=2, **small)
    assert counts == [3, 3], "a quarter of 12: one of four clients"


def test_a_teacher_is_the_model_that_the_client_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the mean has the same model as an update of the newest version."""
    taught, rebased, trained = [], list[Any](), list[Any]()
    real, replies = fedftg_noise.distil, Buffered.replies

    def distil(method: Any, t: int, teachers: Any, transfer: Any) -> float:
        taught.append([w for _, w in teachers])
        return real(method, t, teachers, transfer)

    def seen(self: Buffered) -> Any:
        result = replies(self)
        trained.append([reply.w for _, reply in self.run.good])
        rebased.append([reply.w for _, reply in result])
        return result

    monkeypatch.setattr(fedftg_noise, "distil", distil)
    monkeypatch.setattr(Buffered, "replies", seen)
    run = buffered(tmp_path, method="fedftg-noise")

    def equal(some: Any, others: Any) -> list[bool]:
        pairs = zip(some, others, strict=True)
        return [all(torch.equal(a[n], b[n]) for n in a) for a, b in pairs]

    ages = [step["staleness"] for step in steps(run)]
    assert any(map(any, ages))
    assert all(all(equal(*models)) for models in zip(taught, trained, strict=True))
    for t, step in enumerate(steps(run)):
        fresh = dict(
            zip((k for k, _ in step["arrived"]), (not age for age in ages[t]), strict=True)
        )
        assert equal(trained[t], rebased[t]) == [fresh[k] for k in sorted(fresh)]


def test_a_table_has_the_newest_reply_of_every_member() -> None:
    half = server(method="fedproto", feature_dim=2, **PROFILES, **SMALL)
    half.clients = [client(k) for k in range(3)]
    half.step(1, replies((0, [2.0, 0.0])))
    assert half.rows[0].tolist() == [2, 0] and half.present.tolist() == [True, False]
    half.step(2, replies((1, [4.0, 2.0])))
    assert half.rows[0].tolist() == [3, 1]
    half.step(3, replies((0, [0.0, 0.0]), (2, [5.0, 1.0])))
    assert half.rows[0].tolist() == [3, 1], "client 0 counts once, with its newest row"
    half.clients = [client(1)]
    assert half.newest(replies()).clients == half.clients
    half.clients = [client(k) for k in range(2)]
    half.step(4, replies((1, [1.0, 1.0])))
    assert half.rows[0].tolist() == [0.5, 0.5], "client 2 has left"
    other = server(method="fedproto", feature_dim=2, **PROFILES, **SMALL)
    other.restore(dict(half.state()))
    other.clients = [client(2)]
    other.step(5, replies())
    assert other.rows[0].tolist() == [5, 1], "it is back, and its table was in the checkpoint"
    sync = server(method="fedproto", feature_dim=2)
    sync.step(1, replies((0, [2.0, 0.0])))
    sync.step(2, replies((1, [4.0, 2.0])))
    assert sync.rows[0].tolist() == [4, 2] and sync.tables == {}


def test_fedssa_has_the_newest_rows_of_every_member_also_without_stale(tmp_path: Path) -> None:
    runs = [
        buffered(tmp_path / str(stale), method="fedssa", fedssa__stale=stale)
        for stale in (False, True)
    ]
    assert runs[0].weights == runs[1].weights


def test_a_gradient_of_fedl2g_counts_once_with_its_weight() -> None:
    half = server(method="fedl2g", rounds=60, **PROFILES, **SMALL)
    ((_, reply),) = replies((0, [2.0, 4.0]))
    assert half.rebased(client(), reply, Discount(0.5, mixes=False)).table[0].tolist() == [1, 2]


# CA2FL.


def test_a_cache_by_hand(tmp_path: Path) -> None:
    """Two clients in a roster of four; integers and BatchNorm's statistics have no change."""

    def w(value: float) -> dict[str, torch.Tensor]:
        one = torch.tensor([value])
        return {"w": one, "b.running_mean": one, "b.num_batches_tracked": torch.tensor(3)}

    cache = Cache(tmp_path, keep=2)
    assert cache.correction(0, 4) == {}
    cache.put(1, {0: (w(1.0), w(3.0)), 1: (w(1.0), w(-3.0))})
    assert [float(cache.correction(k, 4)["w"]) for k in range(3)] == [-2.5, 3.5, -0.5]
    assert cache.correction(0, 4).keys() == {"w"} and float(cache.correction(2, 8)["w"]) == -0.25
    before = cache.state({"x": 1})
    cache.retain({0, 2})
    assert [float(cache.correction(k, 4)["w"]) for k in range(3)] == [-1.5, 0.5, 0.5]
    cache.put(2, {0: (w(0.0), w(1.0))})
    cache.retain({0})
    assert [float(cache.correction(k, 4)["w"]) for k in range(3)] == [-0.75, 0.25, 0.25]
    other = Cache(tmp_path, keep=2)
    assert other.restore(dict(before)) == {"x": 1}
    assert [float(other.correction(k, 4)["w"]) for k in range(3)] == [-2.5, 3.5, -0.5]


@pytest.mark.parametrize("last", [4, 8, 11])
@pytest.mark.parametrize("method", battery.tiers(["fedper", "scaffold"], ("fedper",)))
def test_a_killed_run_with_a_cache_goes_on_to_the_same_bits(
    method: str, last: int, tmp_path: Path
) -> None:
    more = {**CACHED, "method": method, "clock__jitter": 0.3, "clock__loss": 0.2, "keep": 3}
    whole = buffered(tmp_path / "whole", **more)
    assert any(age for step in steps(whole) for age in step["staleness"])
    assert (
        whole.weights != buffered(tmp_path / "fedbuff", **{**more, "buffer__cache": False}).weights
    )
    Mortal.last = last
    with pytest.raises(Killed):
        play(config(tmp_path / "part", **more), Mortal)
    assert same(buffered(tmp_path / "part", **more, resume=True), whole)
    again = buffered(tmp_path / "part", **more, resume=True, from_round=3)
    assert again.weights == whole.weights and steps(again) == steps(whole)


def test_the_update_of_a_client_that_left_is_zero_until_it_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run goes back to before it left."""
    events = '[[event]]\nround = 4\nclient = 0\nkind = "left"\n'
    events += '[[event]]\nround = 7\nclient = 0\nkind = "returned"\n'
    more = {**CACHED, "membership": listed(tmp_path, events), "rounds": 10, "keep": 10}
    known, put = dict[int, set[int]](), Cache.put

    def seen(self: Cache, t: int, trained: Any) -> None:
        put(self, t, trained)
        known[t] = {k for k in range(4) if self._change(k)}

    monkeypatch.setattr(Cache, "put", seen)
    whole = buffered(tmp_path / "run", **more)
    assert 0 in known[3] and not any(0 in known[t] for t in (4, 5, 6)) and 0 in known[10]
    again = buffered(tmp_path / "run", **more, resume=True, from_round=2)
    assert again.weights == whole.weights


def test_an_undone_step_takes_its_updates_out_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {**SIX, **PROFILES, **CACHED, "rounds": 8, "buffer__size": 5, "buffer__concurrency": 6}
    totals, put = dict[int, float](), Cache.put

    def seen(self: Cache, t: int, trained: Any) -> None:
        put(self, t, trained)
        kept = [self._change(k) for k in sorted(self._updates.rounds)]
        for name, total in self._total.items():
            apart = sum(h[name].double() for h in kept if h) - total
            assert float(apart.abs().max()) < 1e-12
        totals[t] = max(float(total.abs().max()) for total in self._total.values())

    monkeypatch.setattr(Cache, "put", seen)
    run = play(flat(tmp_path / "run", **more, clock__jitter=0.3, keep=10), Worse)
    (undone,) = [u for entry in run.journal[1:] for u in entry.get("undone", [])]
    assert undone["suspects"] == [LIAR] and max(totals.values()) < 50


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"buffer__staleness": "sqrt"},
            'buffer.staleness = "sqrt" is not allowed with buffer.cache',
        ),
        ({"buffer__mixing": 0.6}, "buffer.mixing = 0.6 is not allowed with buffer.cache = true"),
        (
            {"average__robust": "median"},
            'average.robust = "median" is not allowed with buffer.cache',
        ),
        ({"average__across": "same"}, 'average.across = "same" is not allowed with buffer.cache'),
        (
            {"privacy__mode": "central", "privacy__sampling": "public", "train__steps": 1},
            'privacy.mode = "central" is not allowed with buffer.cache = true; allowed: "off"',
        ),
        ({"method": "qffl"}, 'buffer.cache = true is not allowed with method = "qffl"'),
        ({"method": "fednova"}, 'buffer.cache = true is not allowed with method = "fednova"'),
        ({"method": "fedkd"}, 'buffer.cache = true is not allowed with method = "fedkd"'),
        ({"method": "lg-fedavg"}, 'buffer.cache = true is not allowed with method = "lg-fedavg"'),
        ({"method": "fedproto"}, 'buffer.cache = true is not allowed with method = "fedproto"'),
        ({"method": "fedl2g"}, 'buffer.cache = true is not allowed with method = "fedl2g"'),
        ({"method": "fedkf", "oca__aggregate": "on"}, 'oca.aggregate = "on" is not allowed with'),
        ({"mode": "synchronous", "profiles": ""}, 'needs mode = "buffered"'),
    ],
)
def test_a_cache_is_for_plain_means_of_one_architecture(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=line):
        parse(config(tmp_path, **{**CACHED, **changes}))


def test_a_weight_by_age_is_refused_where_replies_count_as_they_are(tmp_path: Path) -> None:
    for method in ("fedproto", "fedkemf", "lwn"):
        for key, value in (("staleness", "constant"), ("mixing", 0.5)):
            more = {"method": method, f"buffer__{key}": value, "data__public": 0.2}
            with pytest.raises(
                ValueError, match=f"buffer.{key} = .* replies of all ages count the"
            ):
                parse(config(tmp_path, **more))
    line = 'fedorion.stale-broadcast = true is not allowed with mode = "buffered"'
    with pytest.raises(ValueError, match=line):
        parse(config(tmp_path, method="fedorion", fedorion__stale_broadcast=True))
