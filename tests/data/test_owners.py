"""Data that belong to clients: who gets what, and on what nobody trained."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from common.data import DATASETS, Dataset, Source, divide, load
from common.data.embedded import toy
from common.data.shares import for_testing, share
from common.settings.config import Data

OWNERS = torch.arange(360) % 5  #: owner k has 72 training samples
TESTERS = torch.arange(120) // 40  #: owners 0, 1 and 2 have 40 test samples each, 3 and 4 none

CALLS = itertools.count()

Owned = Callable[..., Data]


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch, options: Callable[..., Data]) -> Owned:
    """``owned(owner_test=None, test="own")``: options of a data set whose samples have owners.

    Image i of all has the number i in its first two pixels.
    """

    def make(**changes: object) -> Data:
        known = {"owner": OWNERS, "owner_test": TESTERS}
        given = {name: changes.pop(name) for name in known if name in changes}
        name = f"owned {next(CALLS)}"  # a name is loaded once
        source = Source(lambda _: numbered(**known | given), "", None, 3)
        monkeypatch.setitem(DATASETS, name, source)
        return options(**{"name": name, "partition": "natural", **changes})

    return make


def numbered(**owners: torch.Tensor | None) -> Dataset:
    base = toy()
    for first, x in ((0, base.x), (len(base.x), base.x_test)):
        i = torch.arange(first, first + len(x))
        x[:, 0, 0, 0], x[:, 0, 0, 1] = (i // 256).byte(), (i % 256).byte()
    return replace(base, name="owned", **owners)


def numbers(x: torch.Tensor) -> list[int]:
    return (x[:, 0, 0, 0].long() * 256 + x[:, 0, 0, 1]).tolist()


def rows(data: Data, clients: int = 5) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """The images that each client trains and is tested on, and the server's."""
    shares = [share(data, k, clients, 1) for k in range(clients)]
    train, test = (
        [numbers(part[0]) for part in parts]
        for parts in ([s.train_set for s in shares], [s.test_set for s in shares])
    )
    return train, test, numbers(for_testing(data, clients, 1).x_test)


def test_natural_gives_each_client_what_is_its_own_also_for_tests(owned: Owned) -> None:
    train, test, server = rows(owned(test_fraction=0.25))
    assert [len(each) for each in train] == [54] * 5
    for k in range(5):
        assert sorted(train[k] + test[k]) == [i for i in range(360) if i % 5 == k]
    assert server == list(range(360, 480))
    train, test, server = rows(owned(test="own"))
    assert [len(each) for each in train] == [72] * 5
    assert test == [list(range(360 + 40 * k, 400 + 40 * k)) for k in range(3)] + [[], []]
    assert server == sorted(i for each in test for i in each)


@pytest.mark.parametrize("changes", [{}, {"public": 0.2}, {"samples": 200, "test_samples": 60}])
def test_merged_data_are_cut_anew_and_nobody_is_tested_on_what_anybody_trains_on(owned, changes):
    data = owned(test="merge", test_fraction=0.25, **changes)
    train, test, server = rows(data)
    owner = [*OWNERS.tolist(), *TESTERS.tolist()]
    for k in range(5):
        assert {owner[i] for i in train[k] + test[k]} == {k}
        assert len(train[k]) == int(0.75 * (len(train[k]) + len(test[k])))
    assert server == sorted(i for each in test for i in each)
    assert not set(server) & {i for each in train for i in each}
    assert any(i >= 360 for each in train for i in each), "test samples are merged too"
    public = divide(data, 1).public
    if public is not None:
        assert not set(numbers(public)) & {i for each in train + test for i in each}
    elif not changes:
        assert sorted(i for each in train + test for i in each) == list(range(480))


def test_merging_needs_no_owners_where_samples_are_dealt_out_or_all_ones_own(options) -> None:
    data = options(partition="iid", test="merge", test_fraction=0.25)
    shares = [share(data, k, 4, 1) for k in range(4)]
    assert [(len(s.train), len(s.test)) for s in shares] == [(90, 30)] * 4
    assert len(for_testing(data, 4, 1).y_test) == 120
    drawn = options(partition="niid1", niid_scale="adapt", test="merge", per_client=150)
    shares = [share(drawn, k, 3, 1) for k in range(3)]
    trained = torch.cat([s.train for s in shares]).unique()
    assert len(for_testing(drawn, 3, 1).y_test) <= 480 - len(trained)
    own = {test: share(options(partition="own", test=test), 3, 9, 1) for test in ("own", "merge")}
    assert (len(own["own"].train), len(own["own"].test)) == (360, 120)
    assert own["own"].test_set[1].equal(load(options()).y_test)
    assert (len(own["merge"].train), len(own["merge"].test)) == (384, 96)
    # the server has one of its own, too
    assert len(for_testing(options(partition="own", test="merge"), 9, 1).y_test) == 120


def test_subsets_resizing_and_the_public_set_keep_owners_with_their_samples(owned: Owned) -> None:
    data = owned(samples=200, test_samples=60, public=0.25)
    pool = divide(data, 1).pool
    assert len(pool.y) == 150 and pool.owner is not None and pool.owner_test is not None
    assert [i % 5 for i in numbers(pool.x)] == pool.owner.tolist()
    assert [(i - 360) // 40 for i in numbers(pool.x_test)] == pool.owner_test.tolist()
    small = load(owned(image_size=4, samples=200))
    assert small.shape == (1, 4, 4) and small.owner is not None and len(small.owner) == 200


@pytest.mark.parametrize(
    ("changes", "clients", "line"),
    [
        ({}, 6, "the samples of 'owned' belong to 5 owners, but clients = 6"),
        ({}, 4, "the samples of 'owned' belong to 5 owners, but clients = 4"),
        ({"owner": None, "owner_test": None}, 5, "has no owners of samples"),
        ({"owner": OWNERS * 2}, 9, "'natural' leaves client 1 without training samples"),
        ({"owner_test": None, "test": "own"}, 5, "has no owners of test samples; set"),
        ({"owner_test": None, "test": "merge"}, 5, "has no owners of test samples; set"),
        (
            {"owner_test": None, "test": "merge", "partition": "auto"},
            5,
            "has no owners of test samples; set",
        ),
        ({"test": "own", "partition": "iid"}, 5, "not allowed with data.partition = 'iid'"),
        ({"owner": OWNERS[:300]}, 5, r"owner is int64 \(300,\); .* int64 \(360,\)"),
        ({"owner": OWNERS - 1}, 5, "owner is -1"),
        ({"owner": OWNERS.int()}, 5, "owner is int32"),
        ({"test": "merge", "partition": "iid_draw", "per_client": 4000}, 12, "no sample is outs"),
        ({"test": "merge"}, 0, '"merge" needs clients'),
    ],
)
def test_what_cannot_be_followed_is_one_line(owned, changes, clients, line) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        rows(owned(**changes), clients) if clients else for_testing(owned(**changes), 0, 1)
    assert "\n" not in str(refused.value)


def test_the_servers_folder_is_called_server(options: Callable[..., Data], tmp_path) -> None:
    data = options(name="toy", dir=str(tmp_path / "{k}"), partition="own")
    with pytest.raises(ValueError, match="needs test data of its own in .*server") as refused:
        load(data)
    assert "{k}" in str(refused.value)
    (tmp_path / "server").mkdir()
    assert len(load(data).y) == 360


@pytest.mark.parametrize(("test", "validation"), [("own", 0.0), ("split", 0.0), ("merge", 0.5)])
def test_owners_with_too_few_samples_are_left_out_if_asked(owned: Owned, test, validation) -> None:
    owner, tester = OWNERS.clone(), OWNERS[:120].clone()
    owner[owner == 1], tester[tester == 1] = 2, 2
    owner[:1] = 1  # owner 1 has one training sample
    settings = {"owner": owner, "owner_test": tester, "test": test, "validation": validation}
    with pytest.raises(ValueError, match="client 1 has 1 training samples.* 'leave-out' leaves"):
        rows(owned(**settings))
    with pytest.raises(ValueError, match="client 1 has 1 training samples.* 'leave-out' leaves"):
        rows(owned(**settings, partition="auto"))
    data = owned(**settings, small_owners="leave-out")
    automatic = owned(**settings, small_owners="leave-out", partition="auto")
    assert load(data).owners == load(automatic).owners == 4
    assert rows(data, 4) == rows(automatic, 4)
    assert "left out: 1" in load(data).account.notes[0]
    train, *_ = rows(data, 4)
    whole = owned(**settings, small_owners="leave-out", partition="iid")
    assert load(whole).owners == 5
    assert not {0} & {i for one in train for i in one}


def test_chosen_owners_are_numbered_anew_and_their_samples_alone_are_used(owned: Owned) -> None:
    """Also for a partition that does not follow owners, and for the server."""
    whole, (train, test, server) = rows(owned()), rows(owned(owners="4, 1", test="own"), 2)
    assert train == [[i for i, k in enumerate(OWNERS) if k == owner] for owner in (1, 4)]
    tested = [360 + i for i, k in enumerate(TESTERS) if k == 1]
    assert test == [tested, []] and server == tested
    data = owned(owners="1,4", partition="iid")
    train, test, _ = rows(data, 3)
    used = {i for part in (*train, *test) for i in part}
    assert used == {i for k in (1, 4) for part in (whole[0][k], whole[1][k]) for i in part}
    assert load(data).owners == 2 and load(data).account.owners == ("1", "4")
    assert load(data).account.notes[-1] == "only samples of data.owners = 1,4"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"owners": "1,9"}, r"unknown owner '9' in data.owners = '1,9': .* are 0, 1, 2, 3, 4$"),
        ({"owners": " , "}, "data.owners = ' , ': .* its owners are 0, 1"),
        ({"owners": "3"}, "data.owners = '3': no samples for testing"),
        ({"owners": "1", "owner": None, "owner_test": None}, "its samples have no owners"),
    ],
)
def test_owners_that_cannot_be_chosen_are_one_line(owned: Owned, changes, line) -> None:
    with pytest.raises(ValueError, match=line) as refused:
        load(owned(**changes))
    assert "\n" not in str(refused.value)
