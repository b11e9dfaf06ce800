"""Vectors of secure sums from an implementation of its own, in plain Python.

``python -m tests.support.secure_vectors`` prints ``tests/secure/vectors.json``. It imports nothing
of the project and no cryptographic library: X25519 after RFC 7748, HKDF after RFC 5869 and AES-256
after FIPS 197 are written out here.
"""

import hashlib
import hmac
import json
from typing import Any

NAME = "fedmosaic secure 1"
PRIME = 2**255 - 19
INPUTS: dict[str, Any] = {
    "experiment": "exp",
    "counter": 5,
    "context": (b"\x77" * 32).hex(),
    "private": [(bytes([k + 1]) * 32).hex() for k in range(3)],
    "self": [(bytes([0x10 * (k + 1)]) * 32).hex() for k in range(3)],
    "samples": [100, 50, 25],
    "clip": 1.0,
    "updates": [[0.5, -0.25, 1.5, 0.0], [0.125, 0.75, -2.0, 1e-7], [-1.0, 0.3333333, 0.0625, -0.6]],
}


def x25519(private: bytes, u: int) -> bytes:
    """The Montgomery ladder of RFC 7748, section 5."""
    k = int.from_bytes(private, "little")
    k = (k & ~7 & (2**255 - 1)) | 2**254
    u, x2, z2, x3, z3, swap = u % PRIME, 1, 0, u % PRIME, 1, 0
    for t in range(254, -1, -1):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % PRIME, u * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, e * (aa + 121665 * e) % PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def hkdf(secret: bytes, salt: bytes, info: str) -> bytes:
    """32 bytes of HKDF-SHA256."""
    key = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(key, info.encode() + b"\x01", hashlib.sha256).digest()


def doubled(x: int) -> int:
    return (x << 1 ^ (0x11B if x & 0x80 else 0)) & 0xFF


def product(a: int, b: int) -> int:
    """a · b in GF(2⁸), bit by bit."""
    result = 0
    while b:
        result, a, b = result ^ (a if b & 1 else 0), doubled(a), b >> 1
    return result


def s_box() -> list[int]:
    box = []
    for x in range(256):
        inverse = next((y for y in range(256) if product(x, y) == 1), 0)
        turned = (inverse >> (8 - i) | inverse << i for i in range(5))
        value = 0x63
        for one in turned:
            value ^= one & 0xFF
        box.append(value)
    return box


BOX = s_box()


def aes256(key: bytes, block: bytes) -> bytes:
    words, constant = [list(key[4 * i : 4 * i + 4]) for i in range(8)], 1
    while len(words) < 60:
        word, i = list(words[-1]), len(words)
        if i % 8 == 0:
            word = [BOX[x] for x in word[1:] + word[:1]]
            word[0] ^= constant
            constant = doubled(constant)
        elif i % 8 == 4:
            word = [BOX[x] for x in word]
        words.append([a ^ b for a, b in zip(words[i - 8], word, strict=True)])
    keys = [[x for word in words[4 * r : 4 * r + 4] for x in word] for r in range(15)]
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for r in range(1, 15):
        state = [BOX[x] for x in state]
        state = [state[(i + 4 * (i % 4)) % 16] for i in range(16)]
        if r < 14:
            mixed = []
            for c in range(0, 16, 4):
                a = state[c : c + 4]
                for i in range(4):
                    two, three = a[i], a[(i + 1) % 4]
                    rest = a[(i + 2) % 4] ^ a[(i + 3) % 4]
                    mixed.append(doubled(two) ^ doubled(three) ^ three ^ rest)
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[r], strict=True)]
    return bytes(state)


def words(key: bytes, n: int) -> list[int]:
    stream = b"".join(aes256(key, i.to_bytes(16, "big")) for i in range(-(-n // 4)))
    return [int.from_bytes(stream[4 * i : 4 * i + 4], "little") for i in range(n)]


def vectors() -> dict[str, object]:
    counter, context = INPUTS["counter"], INPUTS["context"]
    private = [bytes.fromhex(text) for text in INPUTS["private"]]
    own = [bytes.fromhex(text) for text in INPUTS["self"]]
    public = [x25519(secret, 9) for secret in private]
    pairs: dict[tuple[int, int], bytes] = {}
    rounds: dict[tuple[int, int], bytes] = {}
    shares: dict[tuple[int, int], bytes] = {}
    for i in range(3):
        for j in range(3):
            shared = x25519(private[i], int.from_bytes(public[j], "little") & (2**255 - 1))
            first, second = min(i, j), max(i, j)
            text = INPUTS["experiment"].encode() + public[first] + public[second]
            pair = hkdf(shared, hashlib.sha256(text).digest(), f"{NAME} pair")
            pairs[i, j] = pair
            rounds[i, j] = hkdf(pair, b"", f"{NAME} attempt {counter} {context}")
            shares[i, j] = hkdf(pair, b"", f"{NAME} share {counter} {context} {i} {j}")
    assert all(pairs[i, j] == pairs[j, i] for i, j in pairs)
    q: list[list[int]] = []
    y: list[list[int]] = []
    for k, update in enumerate(INPUTS["updates"]):
        weight = INPUTS["samples"][k] / max(INPUTS["samples"])
        cut = [min(max(weight * x, -1.0), 1.0) for x in update]
        q.append([round(x * (2**23 - 1) / INPUTS["clip"]) for x in cut])
        masked = [a + b for a, b in zip(q[k], words(own[k], 4), strict=True)]
        for j in range(3):
            sign = (j > k) - (j < k)
            masked = [a + sign * b for a, b in zip(masked, words(rounds[k, j], 4), strict=True)]
        y.append([a % 2**32 for a in masked])
    return {
        "inputs": INPUTS,
        "public": [share.hex() for share in public],
        "pairs": {f"{i}{j}": pairs[i, j].hex() for i in range(3) for j in range(i, 3)},
        "attempt": {f"{i}{j}": rounds[i, j].hex() for i in range(3) for j in range(i + 1, 3)},
        "share keys": {f"{i}{j}": shares[i, j].hex() for i in range(3) for j in range(3)},
        "words": {f"{i}{j}": words(rounds[i, j], 4) for i in range(3) for j in range(i + 1, 3)},
        "q": q,
        "y": y,
        "sum": [sum(column) for column in zip(*q, strict=True)],
        "sum without 2": [sum(column) for column in zip(*q[:2], strict=True)],
    }


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))
