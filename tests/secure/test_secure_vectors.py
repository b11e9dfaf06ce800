"""Vectors of secure sums by a second implementation, and properties of sharing and sums."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from common.exchange.seal import session
from common.exchange.seal.body import NotAuthentic
from common.exchange.secure import keys, shamir, sums
from tests.support import secure_vectors

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text("utf-8"))
INPUTS: dict[str, Any] = VECTORS["inputs"]
PRIVATE = [X25519PrivateKey.from_private_bytes(bytes.fromhex(x)) for x in INPUTS["private"]]
PUBLIC = [session.public(key) for key in PRIVATE]
COUNTER, CONTEXT = INPUTS["counter"], bytes.fromhex(INPUTS["context"])
OWN = [bytes.fromhex(text) for text in INPUTS["self"]]


def pair(i: int, j: int) -> bytes:
    return keys.pair(PRIVATE[i], i, PUBLIC[j], j, INPUTS["experiment"])


def attempt(i: int, j: int) -> bytes:
    return keys.of_attempt(pair(i, j), COUNTER, CONTEXT)


def quantised() -> list[np.ndarray]:
    weights = np.array(INPUTS["samples"]) / max(INPUTS["samples"])
    updates = zip(weights, INPUTS["updates"], strict=True)
    return [sums.quantised(w * np.array(u), INPUTS["clip"])[0] for w, u in updates]


def masked() -> list[np.ndarray]:
    return [
        q
        + sums.words(OWN[k], 4)
        + sums.pair_masks(k, {j: attempt(k, j) for j in {0, 1, 2} - {k}}, 4)
        for k, q in enumerate(quantised())
    ]


def signed(whole: np.ndarray) -> list[int]:
    return whole.view(np.int32).tolist()


def test_the_second_implementation_gives_the_vectors() -> None:
    assert secure_vectors.vectors() == VECTORS


def test_keys_and_words_are_those_of_the_vectors() -> None:
    assert [share.hex() for share in PUBLIC] == VECTORS["public"]
    for name, expected in VECTORS["pairs"].items():
        i, j = map(int, name)
        assert pair(i, j).hex() == pair(j, i).hex() == expected
    for name, expected in VECTORS["attempt"].items():
        i, j = map(int, name)
        assert attempt(i, j).hex() == attempt(j, i).hex() == expected
        assert sums.words(attempt(i, j), 4).tolist() == VECTORS["words"][name]
    for name, expected in VECTORS["share keys"].items():
        i, j = map(int, name)
        sealed = keys.encrypted(b"s" * 32, pair(i, j), COUNTER, CONTEXT, i, j)
        cipher = keys.AESGCM(bytes.fromhex(expected))
        assert cipher.decrypt(keys.ZERO, sealed, None) == b"s" * 32


def test_masked_updates_and_sums_are_those_of_the_vectors() -> None:
    assert [signed(q) for q in quantised()] == VECTORS["q"]
    assert [y.tolist() for y in masked()] == VECTORS["y"]
    every = sums.unmasked(enumerate(masked()), dict(enumerate(OWN)), {}, 4)
    assert signed(every) == VECTORS["sum"] == [2621440, 1747627, 131072, -1258291]
    mean = sums.dequantised(every, 1.0) / 1.75
    assert mean == pytest.approx([0.178571450, 0.119047656, 0.008928572, -0.085714282], abs=1e-9)


def test_the_masks_of_a_lost_client_are_removed_with_its_peers_keys() -> None:
    uploads = [*enumerate(masked())][:2]
    lost = {0: {2: attempt(0, 2)}, 1: {2: attempt(1, 2)}}
    total = sums.unmasked(uploads, dict(enumerate(OWN)), lost, 4)
    assert signed(total) == VECTORS["sum without 2"] == [4718592, 1048576, 0, 0]
    for wrong in ({0: lost[0]}, {1: lost[1]}, {}):
        assert signed(sums.unmasked(uploads, dict(enumerate(OWN)), wrong, 4)) != signed(total)


def test_an_attempts_key_depends_on_counter_context_and_pair() -> None:
    several = [
        keys.of_attempt(pair(0, 1), 5, CONTEXT),
        keys.of_attempt(pair(0, 1), 6, CONTEXT),
        keys.of_attempt(pair(0, 1), 5, bytes(32)),
        keys.of_attempt(pair(0, 2), 5, CONTEXT),
        keys.of_attempt(keys.pair(PRIVATE[0], 0, PUBLIC[1], 1, "other"), 5, CONTEXT),
    ]
    assert len(set(several)) == len(several)


def test_no_search_over_28_bits_finds_a_mask() -> None:
    """Flower's pair keys were base64 text, folded to 32 bits of which 28 could differ. Here every
    one of 256 bits of a key differs between attempts, and every one changes the first words."""
    several = [int.from_bytes(keys.of_attempt(pair(0, 1), c, CONTEXT)) for c in range(64)]
    both = 0
    for key in several[1:]:
        both |= several[0] ^ key
    assert both == 2**256 - 1
    key = keys.of_attempt(pair(0, 1), 0, CONTEXT)
    first = {tuple(sums.words(key, 2).tolist())}
    for bit in range(256):
        other = (int.from_bytes(key) ^ 1 << bit).to_bytes(32)
        first.add(tuple(sums.words(other, 2).tolist()))
    assert len(first) == 257


def test_a_share_opens_at_its_place_only() -> None:
    place = (pair(0, 1), COUNTER, CONTEXT, 0, 1)
    sealed = keys.encrypted(b"s" * 32, *place)
    assert keys.decrypted(sealed, *place) == b"s" * 32 and len(sealed) == keys.SHARE
    others: list[tuple[bytes, int, bytes, int, int]] = [
        (pair(0, 2), COUNTER, CONTEXT, 0, 1),
        (pair(0, 1), COUNTER + 1, CONTEXT, 0, 1),
        (pair(0, 1), COUNTER, bytes(32), 0, 1),
        (pair(0, 1), COUNTER, CONTEXT, 1, 0),
    ]
    for other in others:
        with pytest.raises(NotAuthentic, match="not of this attempt"):
            keys.decrypted(sealed, *other)


def test_shamirs_vector() -> None:
    shares = shamir.split(b"\x10", 2, [1, 2, 3], lambda n: b"\xa5" * n)
    assert shares == {1: b"\xb5", 2: b"\x41", 3: b"\xe4"}
    assert shamir.combine({1: b"\xb5", 3: b"\xe4"}) == b"\x10"


def test_products_are_those_of_the_field() -> None:
    every = np.arange(256, dtype=np.uint8)
    for b in range(256):
        expected = [secure_vectors.product(a, b) for a in range(256)]
        assert shamir.times(every, b).tolist() == expected


@pytest.mark.parametrize(("n", "threshold"), [(1, 1), (3, 2), (10, 7), (255, 170), (255, 255)])
def test_any_threshold_of_shares_gives_the_secret(n: int, threshold: int) -> None:
    draw = random.Random(n * threshold)
    secret = draw.randbytes(32)
    shares = shamir.split(secret, threshold, range(1, n + 1), draw.randbytes)
    for _ in range(5):
        for many in {threshold, n}:
            some = {x: shares[x] for x in draw.sample(range(1, n + 1), many)}
            assert shamir.combine(some) == secret
    if threshold > 1:
        few = {x: shares[x] for x in draw.sample(range(1, n + 1), threshold - 1)}
        assert shamir.combine(few) != secret


def test_fewer_shares_fit_every_secret() -> None:
    """With threshold 2, one share of one byte is equally likely for each secret."""
    for share in range(256):
        fits = {
            secret
            for secret in range(256)
            for a in range(256)
            if secret ^ secure_vectors.product(a, 7) == share
        }
        assert len(fits) == 256


def test_impossible_shares_are_refused() -> None:
    for threshold, xs in ((2, [1]), (0, [1]), (2, [1, 1]), (1, [0]), (1, [256])):
        with pytest.raises(ValueError, match="shares of different x"):
            shamir.split(b"s", threshold, xs, bytes)


def test_sums_have_equal_bits_in_any_order_and_the_error_of_rounding() -> None:
    draw = np.random.default_rng(1)
    updates = draw.normal(0, 0.2, (40, 1000))
    whole = [sums.quantised(update, 1.0)[0] for update in updates]
    total = sum(whole[1:], whole[0])
    for _ in range(3):
        shuffled = [whole[i] for i in draw.permutation(40)]
        assert (sum(shuffled[1:], shuffled[0]) == total).all()
    exact = np.clip(updates, -1, 1).sum(axis=0)
    assert np.abs(sums.dequantised(total, 1.0) - exact).max() <= 40 * sums.step(1.0) / 2


def test_the_largest_sum_does_not_overflow() -> None:
    for value in (-7.0, 7.0):
        whole = [sums.quantised(np.full(2, value), 0.5)[0] for _ in range(shamir.MOST)]
        mean = sums.dequantised(sum(whole[1:], whole[0]), 0.5) / shamir.MOST
        assert mean.tolist() == [np.sign(value) * 0.5] * 2


def test_clipped_entries_are_counted_and_divergence_is_an_error() -> None:
    whole, clipped = sums.quantised(np.array([0.5, 2.0, -3.0, 1.0]), 1.0)
    assert clipped == 0.5 and signed(whole) == [4194304, 8388607, -8388607, 8388607]
    for value in (np.nan, np.inf):
        with pytest.raises(FloatingPointError, match="training diverged"):
            sums.quantised(np.array([0.0, value]), 1.0)
