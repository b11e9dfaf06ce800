"""Servers and clients that lie about a secure sum: what they get, and what refuses them."""

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from client_app import secure
from client_app.methods.fedavg import FedAvg
from client_app.participant import Participant
from client_app.secure import Masking, Secrets
from common.exchange.protocol import MaskedReply, ModelReply, UnmaskRequest
from common.exchange.seal import session
from common.exchange.secure import keys, shamir, sums
from common.exchange.secure.keys import Attempt
from common.files import Damaged
from common.methods.fedavg import Request
from common.settings.options import Secure
from deploy.flower.certificates import make
from tests.support.secure_sums import JOB, SIZE, Fleet, shares_for, told, words

N = SIZE + 1
FOUR = [0, 1, 2, 3]
MAJORITY = {"secure__threshold": "majority"}


def path(fleet: Fleet, k: int) -> Path:
    return fleet.folder / "ledger" / str(k) / "secure" / "test.json"


def request(uploads: Mapping[int, MaskedReply], survivors: list[int], j: int) -> UnmaskRequest:
    """What the server asks client j for, with these survivors."""
    kept = {k: uploads[k] for k in survivors}
    shares = shares_for(kept, j, sorted(uploads))
    return UnmaskRequest(experiment="test", t=1, survivors=survivors, shares=shares)


def counter_attack(fleet: Fleet, again: int, between: Callable[[], None]) -> np.ndarray:
    """Client 2 is lost in attempt 5, by the server's word, and survives in attempt ``again``.

    The server then has the keys of its masks with all peers, of attempt 5, and the key of its self
    mask in ``again``. Return its update of ``again`` without these masks.
    """
    first = fleet.text(FOUR, 5)
    uploads = {k: fleet.upload(k, first) for k in FOUR}
    others = [0, 1, 3]
    pair_keys = {
        j: fleet.unmask(j, request(uploads, others, j)).pair_keys[0].numpy().tobytes()
        for j in others
    }
    between()
    second = fleet.text(FOUR, again)
    uploads = {k: fleet.upload(k, second) for k in FOUR}
    shares = {
        j + 1: fleet.unmask(j, request(uploads, FOUR, j)).shares[2].numpy().tobytes()
        for j in others
    }
    y = words(uploads[2]) - sums.words(shamir.combine(shares), N)
    return y - sums.pair_masks(2, pair_keys, N)


def test_one_counter_for_two_attempts_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4, **MAJORITY)
    for again in (5, 4):
        with pytest.raises(ValueError, match=f"attempt {again} .* is not newer than attempt"):
            counter_attack(fleet, again, lambda: None)
        shutil.rmtree(tmp_path / "ledger")
        fleet.infos = {k: fleet.info(k) for k in FOUR}


def test_the_counter_attack_works_where_clients_forget_the_counter(tmp_path: Path) -> None:
    """So the attack is a real one: it finds the update of client 2 exactly."""
    fleet = Fleet(tmp_path, 4, **MAJORITY)

    def forget() -> None:
        for k in FOUR:
            own = Secrets.read(path(fleet, k))
            assert own is not None
            Secrets(own.key).write(path(fleet, k))

    secret = fleet.quantised(2, max(fleet.weights))
    assert (counter_attack(fleet, 5, forget) == secret).all()


def test_a_higher_counter_gives_other_masks(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4, **MAJORITY)
    found = counter_attack(fleet, 6, lambda: None)
    assert (found != fleet.quantised(2, max(fleet.weights))).mean() > 0.9


def test_a_copied_state_folder_takes_no_counter_back(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4, **MAJORITY)
    state, copy = tmp_path / "out" / "state", tmp_path / "copy"
    state.mkdir(parents=True, exist_ok=True)
    shutil.copytree(state, copy)

    def restore() -> None:
        shutil.rmtree(state)
        shutil.copytree(copy, state)
        fleet.infos = {k: fleet.info(k) for k in FOUR}  # clients that have just started

    with pytest.raises(ValueError, match="attempt 5 .* is not newer than attempt 5"):
        counter_attack(fleet, 5, restore)


def test_a_hello_in_the_middle_of_a_run_changes_neither_key_nor_counter(tmp_path: Path) -> None:
    """A sealed client that lost its session gets the first hello once more."""
    fleet = Fleet(tmp_path, 4)
    fleet.upload(0, fleet.text(FOUR, 5))
    assert fleet.info(0) == fleet.infos[0]
    with pytest.raises(ValueError, match="is not newer than attempt 5"):
        fleet.upload(0, fleet.text(FOUR, 5))


def test_the_counter_is_stored_before_the_update_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, 4)
    text = fleet.text(FOUR, 5)

    def crash(*_: object) -> bytes:
        own = Secrets.read(path(fleet, 0))
        assert own is not None and own.counter == 5
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(secure.sums, "words", crash)
        with pytest.raises(KeyboardInterrupt):
            fleet.upload(0, text)
    with pytest.raises(ValueError, match="is not newer"):
        fleet.upload(0, text)


def test_a_damaged_or_lost_file_of_secrets_is_an_error(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    path(fleet, 0).write_text("{}")
    path(fleet, 1).unlink()
    for k, why in ((0, "cannot be read"), (1, "was in no census")):
        with pytest.raises(Damaged, match=why):
            fleet.upload(k, fleet.text(FOUR, 5))
    assert path(fleet, 2).stat().st_mode & 0o777 == 0o600


# The server relays keys.


def in_the_middle(fleet: Fleet) -> np.ndarray:
    """The server gives client 0 its own shares for all peers, and plays these peers."""
    own = {k: X25519PrivateKey.generate() for k in (1, 2, 3)}
    forged = {k: session.public(key) for k, key in own.items()}
    text, share = fleet.text(FOUR, 6, forged), bytes.fromhex(fleet.infos[0].secure)
    reply = fleet.upload(0, text)
    context = Attempt.from_bytes(text).context("test", JOB, fleet.before)
    pairs = {k: keys.pair(key, k, share, 0, "test") for k, key in own.items()}
    shares = {
        k + 1: keys.decrypted(reply.shares[k].numpy().tobytes(), pairs[k], 6, context, 0, k)
        for k in own
    }
    masks = {k: keys.of_attempt(pairs[k], 6, context) for k in own}
    own_mask = sums.words(shamir.combine(shares), N)
    return words(reply) - own_mask - sums.pair_masks(0, masks, N)


def test_without_a_roster_the_server_can_play_all_peers(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet", 4, make(tmp_path / "certs", [], 4), **MAJORITY)
    assert (in_the_middle(fleet) == fleet.quantised(0, max(fleet.weights))).all()


def test_with_a_roster_forged_shares_are_refused(tmp_path: Path) -> None:
    certificates = make(tmp_path / "certs", [], 4)
    fleet = Fleet(tmp_path / "fleet", 4, certificates, roster=True)
    assert all(info.roster for info in fleet.infos.values())
    with pytest.raises(ValueError, match="client 1 has not signed its share"):
        in_the_middle(fleet)
    assert fleet.complete(FOUR) == ""
    # a signature for another client, another experiment, and a client that is not registered
    swapped = fleet.infos[1].model_copy(update={"signature": fleet.infos[2].signature})
    fleet.infos[1] = swapped
    with pytest.raises(ValueError, match="client 1 has not signed its share"):
        fleet.complete(FOUR)
    lines = certificates.roster.read_text().splitlines()
    certificates.roster.write_text("\n".join(line for line in lines if "client-3" not in line))
    fleet.infos[1] = fleet.info(1)
    with pytest.raises(ValueError, match="client 3 is not in this client's roster"):
        fleet.complete(FOUR)


def test_another_share_of_the_client_itself_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    forged = {0: session.public(X25519PrivateKey.generate())}
    with pytest.raises(ValueError, match="another X25519 share of this client"):
        fleet.upload(0, fleet.text(FOUR, 5, forged))


def test_requests_without_a_valid_attempt_are_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    good = fleet.text(FOUR, 5)
    twice = good[:16] + 2 * good[16 : 16 + keys.ROW]
    for bad in (b"", good[:16], good[:-1], good + b"0", good[:8] + bytes(8) + good[16:], twice):
        with pytest.raises(ValueError, match="no valid attempt"):
            fleet.upload(0, bad)


def test_sums_of_few_clients_and_wrong_weights_are_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    with pytest.raises(ValueError, match=r"secure.fewest = 3: the sum would be of 2 clients"):
        fleet.upload(0, fleet.text([0, 1], 5))
    with pytest.raises(ValueError, match="client 0 is no client of the secure sum"):
        fleet.upload(0, fleet.text([1, 2, 3], 5))
    with pytest.raises(ValueError, match="weight 10, the server says at most 7"):
        fleet.upload(3, fleet.text(FOUR, 5).replace((10).to_bytes(8), (7).to_bytes(8)))


# The server forwards shares, and says who survives.


def test_shares_of_an_earlier_attempt_are_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    old = {k: fleet.upload(k, fleet.text(FOUR, 5)) for k in FOUR}
    new = {k: fleet.upload(k, fleet.text(FOUR, 6)) for k in FOUR}
    for k in FOUR:
        with pytest.raises(ValueError, match="share of client 2 is not of this attempt"):
            fleet.unmask(k, request({**new, 2: old[2]}, FOUR, k))
    swapped = request(new, FOUR, 0).shares[[1, 0, 2, 3]]
    asked = request(new, FOUR, 0).model_copy(update={"shares": swapped})
    with pytest.raises(ValueError, match="share of client 0 is not of this attempt"):
        fleet.unmask(0, asked)
    fleet.unmask(0, request(new, FOUR, 0))  # a refused request is no answer


def test_lies_about_survivors_are_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    uploads = {k: fleet.upload(k, fleet.text(FOUR, 5)) for k in FOUR}
    lies = {
        "the survivors lack this client": [1, 2, 3],
        "2 clients survive, the sum needs 4": [0, 1],
        "each once": [0, 1, 1, 2],
    }
    for why, survivors in lies.items():
        with pytest.raises(ValueError, match=why):
            fleet.unmask(0, request(uploads, survivors, 0))
    good = request(uploads, FOUR, 0)
    for changes in ({"survivors": [0, 1, 2, 7]}, {"survivors": [3, 2, 1, 0]}):
        with pytest.raises(ValueError, match="not clients of the attempt, each once"):
            fleet.unmask(0, good.model_copy(update=changes))


def test_a_client_gives_one_kind_of_secret_of_a_peer_in_an_attempt(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    uploads = {k: fleet.upload(k, fleet.text(FOUR, 5)) for k in FOUR}
    answer = fleet.unmask(0, request(uploads, FOUR, 0))
    assert len(answer.shares) == 4 and len(answer.pair_keys) == 0
    for survivors in ([0, 1, 3], FOUR):
        with pytest.raises(ValueError, match="has not answered already"):
            fleet.unmask(0, request(uploads, survivors, 0))


def test_other_weights_for_one_client_give_no_sum(tmp_path: Path) -> None:
    """A server that sends one client another model learns nothing from the sum of the others."""
    fleet = Fleet(tmp_path, 4)
    requests = fleet.begin(FOUR)
    other = {"w": torch.zeros(SIZE)}
    members = {client.k: client for client in fleet.members(FOUR)}
    uploads = {k: fleet.upload(k, told(requests[k]), other if k == 0 else None) for k in FOUR}
    fleet.sums.survive([(members[k], reply) for k, reply in uploads.items()])
    with pytest.raises(ValueError, match="is not of this attempt"):
        fleet.unmask(1, fleet.sums.second()[1])


def test_other_work_for_one_client_gives_no_sum(tmp_path: Path) -> None:
    """A server that lets all but one client train hardly at all learns nothing from their sum."""
    fleet = Fleet(tmp_path, 4)
    requests = fleet.begin(FOUR)
    members = {client.k: client for client in fleet.members(FOUR)}
    jobs = {0: b"one step"}
    uploads = {k: fleet.upload(k, told(requests[k]), job=jobs.get(k, JOB)) for k in FOUR}
    fleet.sums.survive([(members[k], reply) for k, reply in uploads.items()])
    with pytest.raises(ValueError, match="is not of this attempt"):
        fleet.unmask(1, fleet.sums.second()[1])


def test_the_work_of_an_attempt_is_all_that_a_request_and_the_settings_say(tmp_path: Path) -> None:
    """Rounds, steps, further tensors and settings are in the context, and no weights."""
    fleet, jobs = Fleet(tmp_path, 4), list[bytes]()

    def masked(self: Masking, told: bytes, job: bytes, *_: object) -> MaskedReply:
        jobs.append(job)
        return MaskedReply(y=torch.zeros(2, dtype=torch.int32), shares=torch.zeros(1, 48).byte())

    plain, settings = Request(experiment="test", t=1, w=fleet.before), fleet.settings
    others = [plain.model_copy(update=change) for change in ({"t": 2}, {"steps": 1})]
    half = FedAvg(Participant(fleet.config, {"partition-id": 0}, "test"))
    reply = ModelReply(w=fleet.before, metrics={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Masking, "masked", masked)
        for asked in (plain, plain.model_copy(update={"w": {"w": torch.ones(1)}}), *others):
            half.add_masks(asked, reply, settings)
        half.add_masks(plain, reply, {**settings, "train.lr": 1e-30})
        half.add_masks(plain, reply, {**settings, "secure.clip": 1e9})
    assert jobs[0] == jobs[1] and len({*jobs}) == 5


def test_a_wrong_share_of_a_client_is_seen(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    honest = fleet.unmask
    fleet.unmask = lambda k, r: (  # type: ignore[method-assign]
        honest(k, r) if k else honest(k, r).model_copy(update={"shares": honest_zeros(r)})
    )
    assert fleet.complete(FOUR).startswith("masks are left in the sum")
    assert fleet.sums.mean is None


def honest_zeros(asked: UnmaskRequest) -> torch.Tensor:
    return torch.zeros(len(asked.survivors), 32, dtype=torch.uint8)


def isolated(options: Secure, n: int) -> set[frozenset[int]]:
    """All sets of fewer clients than the threshold whose sum a server can learn that tells each of
    n honest clients another list of survivors."""
    least, everyone = options.least(n), range(n)
    lists = [
        [{k, *rest} for m in range(least - 1, n) for rest in itertools.combinations(others, m)]
        for k in everyone
        if (others := [j for j in everyone if j != k])
    ]
    small = [frozenset(s) for m in range(1, least) for s in itertools.combinations(everyone, m)]
    found: set[frozenset[int]] = set()
    for views in itertools.product(*lists):
        for group in small:
            own = all(sum(i in view for view in views) >= least for i in group)
            if own and all(
                j not in views[i] or i not in views[j]
                for i in group
                for j in everyone
                if j not in group
            ):
                found.add(group)
    return found


def test_different_lists_of_survivors_give_no_sum_of_fewer_clients() -> None:
    for n in (3, 4, 5):
        assert all(len(group) >= 3 for group in isolated(Secure(), n))
    sizes = {len(group) for group in isolated(Secure(fewest=2), 4)}
    assert sizes == {2}, "2 ϑ − n with ϑ = 3"
    assert frozenset([0]) in isolated(Secure(threshold="majority"), 3)


@pytest.mark.parametrize(
    ("threshold", "least"),
    [("two-thirds", [3, 4, 4, 5, 5, 6, 7, 7]), ("majority", [2, 3, 3, 4, 4, 5, 5, 6])],
)
def test_thresholds(threshold: str, least: list[int]) -> None:
    options = Secure.model_validate({"threshold": threshold})
    assert [options.least(n) for n in range(3, 11)] == least


# Honest attempts.


@pytest.mark.parametrize(
    ("lost", "silent", "why"),
    [
        ([], [], ""),
        ([], [3], ""),
        ([], [1, 4], ""),
        ([2], [], ""),
        ([0, 4], [], ""),
        ([2], [3], "a client has the keys of a lost client's masks, and is lost too"),
        ([], [0, 1, 2], "2 of 5 clients helped to remove masks, of 3"),
    ],
)
def test_drop_outs_before_and_after_the_upload(
    tmp_path: Path, lost: list[int], silent: list[int], why: str
) -> None:
    ks = [0, 1, 2, 3, 4]
    fleet = Fleet(tmp_path, 5, **MAJORITY, min_replies=0.6)
    assert fleet.complete(ks, lost, silent) == why
    mean = fleet.sums.mean
    if why:
        assert mean is None
        assert [c.k for c in fleet.sums.among(fleet.members(ks))] in (ks, [0, 1, 4])
        assert fleet.complete(ks) == "", "the next attempt"
        return
    assert mean is not None
    alive = [k for k in ks if k not in lost]
    assert (mean["w"].double() - fleet.mean(alive)).abs().max() < 3 * sums.step(1.0)


def test_a_masked_reply_tells_no_metrics_but_costs(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    assert fleet.upload(0, fleet.text(FOUR, 5)).metrics == {"steps": 2}


def test_replies_of_wrong_sizes_are_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 4)
    text = told(fleet.begin(FOUR)[0])
    reply, (client, *_) = fleet.upload(0, text), fleet.members(FOUR)
    for changes in ({"y": reply.y[1:]}, {"shares": reply.shares[1:]}):
        with pytest.raises(ValueError, match="has shape"):
            fleet.sums.check(client, reply.model_copy(update=changes))
    fleet.sums.check(client, reply)
