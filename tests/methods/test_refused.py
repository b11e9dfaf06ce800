"""Replies that a method cannot use: refused with client and reason, and the round goes on."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.exchange.protocol import ModelReply, Reply
from common.methods import dl_sh, fedgkt, fedin, fedkd, fiarse, inclusivefl, scaffold
from common.methods.depthfl import Reply as DepthUp
from tests.support.battery import Changing
from tests.support.tiny import flat, play

Change = Callable[[Any], dict[str, Any]]
Case = tuple[dict[str, Any], type[Reply], Change, str]

DEPTHS = {"method": "depthfl", "fleet": ",".join(f"cnn4-exits{d}@0.5" for d in (1, 2, 3))}
DEPTHS |= {"clients": 3}
WIDTHS = {"fleet": "cnn2@0.5,cnn2@0.25", "rounds": 2}
HETEROFL = {**WIDTHS, "method": "heterofl", "score__bn": "batch"}
ACROSS = {**WIDTHS, "method": "fedavg", "average__across": "width"}
INCLUSIVE = {"method": "inclusivefl", "fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5"}
FEDGKT = {"method": "fedgkt", "fleet": "cnn2@0.5,cnn3@0.5", "global_model": "cnn3@0.5"}
FEDIN = {"method": "fedin", "fleet": "cnn2@0.5,cnn3@0.5"}
FIARSE = {"method": "fiarse", "fleet": "cnn2@0.5", "fiarse__sizes": "1, 0.25"}
DL_SH = {"method": "dl-sh", "data__public": 0.6, "data__samples": 200, "confidence__epochs": 1}
SCAFFOLD = {"method": "scaffold", "rounds": 2}


def without(*begins: str) -> Change:
    return lambda reply: {"w": {n: w for n, w in reply.w.items() if not n.startswith(begins)}}


def put(name: str, value: torch.Tensor) -> Change:
    return lambda reply: {"w": {**reply.w, name: value}}


def other_rate(reply: ModelReply) -> dict[str, Any]:
    wide = len(reply.w["stem.bn.weight"]) > 8
    return put("stem.bn.weight", torch.ones(8 if wide else 16))(reply)


def repeated(reply: fedin.Reply) -> dict[str, Any]:
    return {"s_in": reply.s_in.repeat(2, 1, 1, 1), "s_out": reply.s_out.repeat(2, 1, 1, 1)}


def other_variate(reply: scaffold.Reply) -> dict[str, Any]:
    if reply.t == 1:
        return {"dc": {name: 1.01 * d for name, d in reply.dc.items()}}
    name = next(iter(reply.dc))  # so large that Δc is no number
    return put(name, torch.full_like(reply.w[name], 3e38))(reply)


CASES: dict[str, Case] = {
    "a network of another size": (
        *(INCLUSIVE, inclusivefl.Reply, without("layer1.1.")),
        r"w \(cnn3@0.5\) lacks 6 entries, first 'layer1.1.bn.bias'",
    ),
    "a shallower network": (
        *(DEPTHS, DepthUp, without("stages.1", "exits.1")),
        r"w \(cnn4-exits2@0.5\) lacks .*'exits\.1\.",
    ),
    "a deeper network": (
        *(DEPTHS, DepthUp, put("stages.2.conv.weight", torch.zeros(32, 32, 3, 3))),
        r"w \(cnn4-exits2@0.5\) has 1 unknown entries",
    ),
    "a wider network": (
        *(ACROSS, ModelReply, put("head.weight", torch.zeros(3, 32))),
        r"w \(cnn2@0.25\): 'head.weight' is float32\[3, 32\], expected float32\[3, 16\]$",
    ),
    **{
        f"another rate, {rates}": (
            *({**HETEROFL, "heterofl__rates": rates}, ModelReply, other_rate),
            r"'stem.bn.weight' is float32\[",
        )
        for rates in ("fixed", "redrawn")
    },
    **{
        f"another variate, robust = {robust}": (
            *({**SCAFFOLD, "average__robust": robust}, scaffold.Reply, other_variate),
            "does not follow from w",
        )
        for robust in ("none", "median")
    },
    "half a distribution": (
        *(DL_SH, dl_sh.Reply, lambda reply: {"theta": reply.theta * 0.5}),
        "sums to 0.5, not to 1",
    ),
    **{
        f"FedGKT, {reason}": (FEDGKT, fedgkt.Reply, change, reason)
        for change, reason in (
            (lambda reply: {"y": reply.y + 3}, "y has label"),
            (
                lambda reply: {"h": reply.h[:, :8]},
                r"'h' is .*\[24, 8, 4, 4\], expected .*\[24, 16, 4, 4",
            ),
            (
                lambda reply: {"z": reply.z[:, :2]},
                r"'z' is float32\[24, 2\], expected float32\[24, 3\]",
            ),
        )
    },
    **{
        f"FedIN, {reason}": (FEDIN, fedin.Reply, change, reason)
        for change, reason in (
            (
                lambda reply: {"s_in": reply.s_in[:, :1]},
                r"s_in is float32\[16, 1, 4, 4\], expected",
            ),
            (lambda reply: {"s_out": reply.s_out.double()}, "s_out is float64"),
            (lambda reply: {"s_in": reply.s_in * float("inf")}, "not finite"),
            (lambda reply: {"s_in": None, "s_out": None}, "s_in is missing"),
            (lambda reply: {"s_in": reply.s_in[:3]}, "refused"),
            (repeated, "s_in has 32 samples, a batch has 1 to 16"),
        )
    },
    **{
        f"FIARSE, {reason}": (FIARSE, fiarse.Reply, change, reason)
        for change, reason in (
            (
                lambda reply: {"delta": torch.cat([reply.delta, reply.delta[:1]])},
                "the mask of size 0.25 ke",
            ),
            (lambda reply: {"delta": reply.delta[:-1]}, "the mask of size 0.25 keeps"),
            (lambda reply: {"delta": reply.delta * torch.nan}, "not finite"),
            (lambda reply: {"rest": {}}, "rest lacks"),
            (
                lambda reply: {"rest": {n: -x - 1 for n, x in reply.rest.items()}},
                "negative variances",
            ),
        )
    },
}


FEDKD = {"method": "fedkd", "fleet": "mlp"}
MATRIX = "layers.0.weight"


def factors(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Change:
    """Return a change of the factors [U, s, V] of the first matrix."""

    def changed(reply: fedkd.Reply) -> dict[str, Any]:
        assert len(reply.update[MATRIX]) == 3
        return {"update": {**reply.update, MATRIX: change(reply.update[MATRIX])}}

    return changed


CASES |= {
    f"FedKD, {reason}": (FEDKD, fedkd.Reply, change, reason)
    for change, reason in (
        (factors(lambda f: [x.repeat(100, 1) if x.dim() > 1 else x for x in f]), "'.*U' is float"),
        (
            factors(lambda f: [f[0].repeat(1, 60), f[1].repeat(60), f[2].repeat(60, 1)]),
            "'layers.0.weight' has 3 factors of rank",
        ),
        (factors(lambda f: [f[0][:, :0], f[1][:0], f[2][:0]]), "has 3 factors of rank 0"),
        (factors(lambda f: f[:2]), "has 2 factors of rank 0"),
        (factors(lambda f: [f[0], f[1][:, None], f[2]]), "has 3 factors of rank 0"),
        (factors(lambda f: [f[0], f[1][:-1], f[2]]), "'layers.0.weight.U' is float32"),
        (factors(lambda f: [x.double() for x in f]), "'layers.0.weight.U' is float64"),
        (factors(lambda f: [f[0], f[1] * torch.nan, f[2]]), "not finite"),
        (factors(lambda f: [f[0], f[1] * 0 + 3e38, f[2] * 0 + 3e38]), "not finite"),
        (lambda reply: {"update": dict([*reply.update.items()][1:])}, "update lacks 1 entries"),
        (lambda reply: {"update": {**reply.update, "more": [torch.ones(1)]}}, "1 unknown entries"),
        (
            lambda reply: {
                "update": {n: [f[0] - 9.0] if "var" in n else f for n, f in reply.update.items()}
            },
            "negative variances",
        ),
    )
}
LG = {"method": "lg-fedavg", "feature_dim": 16}
CASES |= {
    f"LG-FedAvg, {reason}": (LG, ModelReply, change, reason)
    for change, reason in (
        (
            put("weight", torch.ones(3, 17)),
            r"'weight' is float32\[3, 17\], expected float32\[3, 16",
        ),
        (put("weight", torch.full((3, 16), torch.inf)), "not finite"),
        (put("features", torch.ones(1)), "head has 1 unknown entries"),
        (without("bias"), "head lacks 1 entries, first 'bias'"),
    )
}


@pytest.mark.parametrize("case", CASES)
def test_a_reply_that_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    settings, reply, change, reason = CASES[case]
    config = flat(tmp_path, **{"rounds": 1, "min_replies": 0.5, **settings})
    for entry in play(config, Changing.by(reply, change)).journal[1:]:
        (failure,) = entry["failures"]
        assert failure["k"] == 1 and failure["reason"].startswith("reply refused: ")
        assert re.search(reason, failure["reason"]), failure["reason"]
        assert entry["replied"] == [k for k in range(int(config["clients"])) if k != 1]
