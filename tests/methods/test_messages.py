"""Messages of a round: replies that are refused by name, and bytes counted by hand."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from common.data.noise import LATENT
from common.exchange.protocol import ModelReply, Reply
from common.methods import dl_sh, fedgkt, fedin, fedkd, fiarse, inclusivefl, kt_pfl, scaffold
from common.methods.depthfl import Reply as DepthUp
from common.techniques.class_table import TableReply
from tests.support import battery
from tests.support.battery import Changing
from tests.support.tiny import Run, flat, play
from tests.support.weights import put

Change = Callable[[Any], dict[str, Any]]
Settings = dict[str, Any]
Group = tuple[Settings, type[Reply], list[tuple[Change, str]]]

WIDTHS = {"fleet": "cnn2@0.5,cnn2@0.25"}
HETEROFL = {**WIDTHS, "method": "heterofl", "score__bn": "batch"}
SHOT = {"method": "dl-sh", "data__public": 0.6, "data__samples": 200, "confidence__epochs": 1}
WIDE = {"feature_dim": 16}
UNEVEN = {"data__partition": "label_dirichlet", "data__alpha": 0.1, "data__min_size": 6}
UNEVEN |= {"clients": 3, "seed": 3}
"""Settings of three clients of which client 1 has 32 samples of class 0, 14 of class 1, no more."""
OURS = r"w \(cnn2@0.5\) "
WIDER = r"w \(cnn2@0.25\): 'head.weight' is float32\[3, 32\], expected float32\[3, 16\]$"
DEEP = torch.zeros(32, 32, 3, 3)
MATRIX, FIRST = "layers.0.weight", "base.layers.0.weight"


def without(*begins: str) -> Change:
    return lambda reply: {"w": {n: w for n, w in reply.w.items() if not n.startswith(begins)}}


def only(name: str) -> Change:
    return lambda reply: {"w": {name: reply.w[name]}}


def other_rate(reply: ModelReply) -> dict[str, Any]:
    wide = len(reply.w["stem.bn.weight"]) > 8
    return put("stem.bn.weight", torch.ones(8 if wide else 16))(reply)


def repeated(reply: Any) -> dict[str, Any]:
    return {"s_in": reply.s_in.repeat(2, 1, 1, 1), "s_out": reply.s_out.repeat(2, 1, 1, 1)}


def no_number(reply: scaffold.Reply) -> dict[str, Any]:
    """Send weights so large that Δc is no number."""
    name = next(iter(reply.dc))
    return put(name, torch.full_like(reply.w[name], 3e38))(reply)


def factors(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Change:
    """Return a change of the factors [U, s, V] of the first matrix."""

    def changed(reply: fedkd.Reply) -> dict[str, Any]:
        assert len(reply.update[MATRIX]) == 3
        return {"update": {**reply.update, MATRIX: change(reply.update[MATRIX])}}

    return changed


def table(**changes: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda reply: {name: f(getattr(reply, name).clone()) for name, f in changes.items()}


def at(place: Any, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that writes ``value`` to ``place`` of a tensor."""
    return lambda x: x.index_put_(tuple(torch.tensor(i) for i in place), torch.tensor(value).to(x))


GROUPS: dict[str, Group] = {
    "networks of other sizes": (
        {"method": "inclusivefl", "fleet": "cnn2@0.5,cnn3@0.5,cnn4@0.5"},
        inclusivefl.Reply,
        [(without("layer1.1."), r"w \(cnn3@0.5\) lacks 6 entries, first 'layer1.1.bn.bias'")],
    ),
    "networks of other depths": (
        {"method": "depthfl", "fleet": ",".join(f"cnn4-exits{d}@0.5" for d in (1, 2, 3))},
        DepthUp,
        [
            (without("stages.1", "exits.1"), r"w \(cnn4-exits2@0.5\) lacks .*'exits\.1\."),
            (put("stages.2.conv.weight", DEEP), r"w \(cnn4-exits2@0.5\) has 1 unknown entries"),
        ],
    ),
    "a head that stays with its clients": (
        {"method": "fedper", "average__across": "same"},
        ModelReply,
        [
            (
                put("head.weight", torch.zeros(3, 16)),
                OURS + "has 1 unknown .*first 'head.weight'$",
            ),
            (without("stem.bn.running"), OURS + "lacks 2 entries, first 'stem.bn.running_mean'$"),
        ],
    ),
    "a layer that only clients have": (
        {"method": "fedbn", "fleet": "cnn2@0.5"},
        ModelReply,
        [(put("stem.bn.weight", torch.ones(16)), r"\) has 1 unknown entries, first 'stem.bn.wei")],
    ),
    "a wider network": (
        {**WIDTHS, "method": "fedavg", "average__across": "width"},
        ModelReply,
        [
            (put("head.weight", torch.zeros(3, 32)), WIDER),
        ],
    ),
    **{
        f"another rate, {rates}": (
            {**HETEROFL, "heterofl__rates": rates},
            ModelReply,
            [(other_rate, r"'stem.bn.weight' is float32\[")] * 2,
        )
        for rates in ("fixed", "redrawn")
    },
    **{
        f"another variate, robust = {robust}": (
            {"method": "scaffold", "average__robust": robust},
            scaffold.Reply,
            [
                (
                    lambda reply: {"dc": {name: 1.01 * d for name, d in reply.dc.items()}},
                    "does not follow from w",
                ),
                (no_number, "does not follow from w"),
            ],
        )
        for robust in ("none", "median")
    },
    "half a distribution": (
        *(SHOT, dl_sh.Reply),
        [(lambda reply: {"theta": reply.theta * 0.5}, "sums to 0.5, not to 1")],
    ),
    "half a distribution, KT-pFL": (
        {**battery.PUBLIC, "method": "kt-pfl", "clients": 3, "train__epochs": 1},
        kt_pfl.Reply,
        [(lambda reply: {"theta": reply.theta * 0.5}, "sums to 0.5, not to 1")],
    ),
    "FedGKT": (
        {"method": "fedgkt", "fleet": "cnn2@0.5,cnn3@0.5", "global_model": "cnn3@0.5"},
        fedgkt.Reply,
        [
            (lambda r: {"y": r.y + 3}, "y has label"),
            (lambda r: {"h": r.h[:, :8]}, r"'h' is .*\[24, 8, 4, 4\], expected .*\[24, 16, 4, 4"),
            (lambda r: {"z": r.z[:, :2]}, r"'z' is float32\[24, 2\], expected float32\[24, 3\]"),
        ],
    ),
    "FedIN": (
        {"method": "fedin", "fleet": "cnn2@0.5,cnn3@0.5"},
        fedin.Reply,
        [
            (lambda r: {"s_in": r.s_in[:, :1]}, r"s_in is float32\[16, 1, 4, 4\], expected"),
            (lambda r: {"s_out": r.s_out.double()}, "s_out is float64"),
            (lambda r: {"s_in": r.s_in * float("inf")}, "not finite"),
            (lambda r: {"s_in": None, "s_out": None}, "s_in is missing"),
            (lambda r: {"s_in": r.s_in[:3]}, "refused"),
            (repeated, "s_in has 32 samples, a batch has 1 to 16"),
        ],
    ),
    "FedIN on signals": (
        {"method": "fedin", "data__name": "waves", "fleet": "resnet1d-8@0.25,resnet1d-14@0.25"},
        fedin.Reply,
        [
            (lambda r: {"s_in": r.s_in[:, :, :-1].clone()}, r", expected float32\['n', 8, 64\]"),
            (lambda r: {"s_in": r.s_in[..., None]}, r", expected float32\['n', 8, 64\]"),
            (
                lambda r: {"s_in": r.s_in[:, :, 0].clone(), "s_out": r.s_out[:, :, 0].clone()},
                r"s_in is float32\[16, 8\]",
            ),
        ],
    ),
    "FIARSE": (
        {"method": "fiarse", "fleet": "cnn2@0.5", "fiarse__sizes": "1, 0.25"},
        fiarse.Reply,
        [
            (lambda r: {"delta": torch.cat([r.delta, r.delta[:1]])}, "the mask of size 0.25 ke"),
            (lambda r: {"delta": r.delta[:-1]}, "the mask of size 0.25 keeps"),
            (lambda r: {"rest": {}}, "rest lacks"),
            (lambda r: {"rest": {n: -x - 1 for n, x in r.rest.items()}}, "negative variances"),
        ],
    ),
    "FedKD": (
        {"method": "fedkd", "fleet": "mlp"},
        fedkd.Reply,
        [
            (factors(lambda f: [x.repeat(100, 1) if x.dim() > 1 else x for x in f]), "U' is float"),
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
            (lambda r: {"update": dict([*r.update.items()][1:])}, "update lacks 1 entries"),
            (lambda r: {"update": {**r.update, "more": [torch.ones(1)]}}, "1 unknown entries"),
            (
                lambda r: {
                    "update": {n: [f[0] - 9.0] if "var" in n else f for n, f in r.update.items()}
                },
                "negative variances",
            ),
        ],
    ),
    "LG-FedAvg": (
        {"method": "lg-fedavg", **WIDE},
        ModelReply,
        [(put("weight", torch.ones(3, 17)), r"'weight' is float32\[3, 17\], expected float32")],
    ),
    "FedSSA": (
        {"method": "fedssa", **WIDE, **UNEVEN},
        ModelReply,
        [
            (put("class 2", torch.ones(17)), "1 unknown entries, first 'class 2'"),
            (only("class 0"), "head lacks 1 entries, first 'class 1'"),
            (put("class 0", torch.ones(18)), r"'class 0' is float32\[18\], expected float32\[17"),
        ],
    ),
    "pFedMoE": (
        {"method": "pfedmoe", **WIDE, "global_model": "mlp@0.25"},
        ModelReply,
        [
            (put("head.weight", torch.ones(3, 16)), "w has 1 unknown entries, first 'head.weig"),
            (only(FIRST), "w lacks "),
        ],
    ),
    "FedProto": (
        {"method": "fedproto", **WIDE, **UNEVEN},
        TableReply,
        [
            (table(counts=at([0], 0)), "has a row of class 0, of which it counts no sample"),
            (table(counts=at([2], 1)), "claims class 2, of which it has no sample"),
            (table(table=at([2, 0], 1.0)), "has a row of class 2, of which it counts no"),
            (table(counts=at([0], 5)), "counts 5 samples of class 0, at most 1"),
            (table(counts=at([0], -1)), "its table counts -1 samples of class 0, at mo"),
            (table(table=lambda x: F.pad(x, (0, 1))), r"the shape \(3, 17\), expected \(3, 16\)"),
            (
                table(table=lambda x: x[:2], counts=lambda x: x[:2]),
                r"its table has the shape \(2, 16\), expected \(3, 16\)",
            ),
            (table(table=torch.zero_, counts=torch.zero_), "its table has no class"),
            (table(table=torch.Tensor.double), "'table'"),
        ],
    ),
    "FedProto by counts": (
        {"method": "fedproto", "fedproto__weights": "counts", **WIDE, **UNEVEN},
        TableReply,
        [(table(counts=at([0], 46)), "counts 60 samples, in the census it has")],
    ),
}
"""Settings, type of the reply, and for each round what client 1 does to it and the reason."""


@pytest.mark.parametrize("group", GROUPS)
def test_replies_that_do_not_fit_are_refused_by_name(group: str, tmp_path: Path) -> None:
    settings, reply, lies = GROUPS[group]
    config = flat(tmp_path, **{"rounds": len(lies), "min_replies": 0.5, **settings})
    grid = Changing.by(reply, lambda sent: lies[sent.t - 1][0](sent))
    run = play(config, grid)
    if "data__min_size" in settings:
        assert run.journal[0]["clients"][1]["counts"] == [32, 14, 0]
    for entry, (_, reason) in zip(run.journal[1:], lies, strict=True):
        (failure,) = entry["failures"]
        assert failure["k"] == 1 and failure["reason"].startswith("reply refused: ")
        assert re.search(reason, failure["reason"]), failure["reason"]
        assert entry["replied"] == [k for k in range(int(config["clients"])) if k != 1]


ROW = 4 * (16 + 1)  #: bytes of the head's row of a class for 16 features
TABLE = 4 * 9 + 8 * 3  #: bytes of a table of three rows of three numbers, and of its counts
IMAGES = 3 * 8 * 8 + 4 * (3 * LATENT)  #: of an image and a vector for each class
SKEWED = {"data__partition": "label_dirichlet", "data__alpha": 0.3, "data__min_size": 4}
BY_HAND: dict[str, tuple[dict[str, Any], int, int]] = {
    "local": ({}, 0, 0),
    "lg-fedavg": (WIDE, 4 * ROW * 3, 4 * ROW * 3),
    "fedktl": ({"fedktl__server_epochs": 5, "train__clip": 5.0}, 4 * IMAGES, 4 * TABLE),
    "fedl2g": ({"fedl2g__warm_up": 1, "train__batch_size": 8}, 4 * (4 * 9 + 3), 4 * TABLE),
}
"""Settings, bytes of round 2 to all of the four clients, and bytes from them."""
W: dict[str, dict[str, Any]] = {
    **{"ditto": {"fleet": "mlp@0.25"}, "fedmrl": {"global_model": "cnn2@0.25"}, "pfedmoe": WIDE},
    **{"fml": {}, "fedper": {}, "fedbn": {"fleet": "cnn2@0.5"}},
}
"""Settings of methods whose clients get and send as many bytes as the run's model has."""


def arrays(run: Any) -> tuple[int, int]:
    """Return the bytes of round 2, which has no scores, to the clients and from them."""
    moved = run.journal[2]["bytes"]
    return moved["arrays_down"], moved["arrays_up"]


@pytest.mark.parametrize("method", BY_HAND)
def test_a_round_has_the_bytes_that_are_counted_by_hand(method: str, played: Run) -> None:
    settings, down, up = BY_HAND[method]
    run = played(method=method, rounds=3, score__every=3, **settings)
    assert arrays(run) == (down, up)
    assert method != "fedktl" or run.journal[1]["bytes"]["arrays_down"] == 0


@pytest.mark.parametrize("method", W)
def test_the_shared_model_alone_travels(method: str, played: Run) -> None:
    run = played(method=method, rounds=3, score__every=3, share_counts=False, **W[method])
    assert arrays(run) == (4 * sum(w.nbytes for w in run.model.values()),) * 2
    shared = {name for name in run.model if not name.startswith("head.")}
    assert method not in ("fedper", "pfedmoe") or run.model.keys() == shared
    assert method != "fedbn" or not any("bn." in name for name in run.model)


def test_a_client_of_fedssa_sends_the_rows_of_its_classes(played: Run) -> None:
    run = played(method="fedssa", rounds=3, score__every=3, **WIDE, **SKEWED)
    held = [sum(n > 0 for n in one["counts"]) for one in run.journal[0]["clients"]]
    assert min(held) < 3 and arrays(run) == (4 * 3 * ROW, sum(held) * ROW)
