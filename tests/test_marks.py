"""Marks of settings: every setting says what it is, and the tables made from the marks are right.

The tables below were written by hand before there were marks. They are what a node's owner, a
checkpoint, a moved run and a leaderboard rely on, so a change of a mark is a change here too.
"""

from pathlib import Path

import pytest

from common import keys
from common.parse import tables
from common.settings.marks import Form, Mark, Names, OfEach, Place, Unprotected
from common.settings.section import value_kind
from deploy.flower.owner import policy
from deploy.leaderboard.user_rows import CHOSEN, FIXED
from tests.support.own_modules import distribution, importing_from, module

FIELDS = keys.fields({**keys.SHARED, **tables()})
LITERALS = {key for key, f in FIELDS.items() if "Literal" in str(f.annotation)}


def marked(*marks: Mark) -> set[str]:
    return {*keys.marked(*marks, within=FIELDS)}


def test_every_text_says_whether_it_names_a_file_or_a_module() -> None:
    for key, field in FIELDS.items():
        if value_kind(field) is str and key not in LITERALS:
            kinds = [Mark.TEXT in field.metadata, *(keys.mark_of(k, field) for k in (Place, Names))]
            assert sum(map(bool, kinds)) == 1, key
        else:
            assert not {Mark.TEXT} & {*keys.marks_of(field)} and not keys.mark_of(Place, field), key


def test_every_setting_of_epochs_says_whose_they_are() -> None:
    epochs = {key for key in FIELDS if key.endswith("epochs")}
    assert epochs == marked(Mark.CLIENT_EPOCHS) | marked(Mark.SERVER_EPOCHS)
    assert not marked(Mark.CLIENT_EPOCHS) & marked(Mark.SERVER_EPOCHS)
    assert marked(Mark.SERVER_EPOCHS) == {
        *("noise.epochs", "ensemble.epochs", "co-boosting.epochs", "dense.epochs"),
        *(f"{method}.server-epochs" for method in ("fedgkt", "fedgh", "fedtgp", "fedktl")),
    }


def test_the_tables_of_a_node() -> None:
    """A difference to the tables by hand: the texts' patterns are not repeated."""
    known = policy.settings()
    assert known["paths"] == {
        **dict.fromkeys(("data.dir", "node.K.data-dir"), "data-dirs"),
        **dict.fromkeys(("data.public-dir", "node.K.public-dir"), "data-dirs"),
        **dict.fromkeys(("state-dir", "node.K.state-dir"), "state-dirs"),
        **dict.fromkeys(("weights", "node.K.weights", "adapter.base", "node.K.base"), "weights"),
        "data.tokenizer": "data-dirs",
    }
    assert known["words"] == {"data.tokenizer": ["auto", "byte", "hash"]}
    assert known["names"] == {
        "method": "methods",
        **dict.fromkeys(("fleet", "global-model", "node.K.model", "clock.choices"), "models"),
        **dict.fromkeys(("data.name", "data.public-name"), "datasets"),
        "data.partition": "partitions",
    }
    assert {*known["downloads"]} == {"data.download", "pretrained"}
    assert {*known["epochs"]} == {
        *("train.epochs", "public.epochs", "confidence.epochs", "ditto.epochs", "finetune.epochs"),
        *("dl-sh.incentive-epochs", "i-dl-mh.incentive-epochs", "fedrep.head-epochs"),
        *("fedmd.public-epochs", "fedmd.first-epochs", "fedrep.body-epochs"),
        *("kt-pfl.public-epochs", "kt-pfl.first-epochs"),
    }
    trained = ("train", "noise", "generator", "public")
    assert {*known["texts"]} - known["paths"].keys() - known["names"].keys() == {
        *("out", "plugins", "track", "name", "labels", "membership", "select.by"),
        "callbacks",
        *("select.tags", "node.K.tags", "node.K.name", "fedktl.generator"),
        *("data.target-mean", "data.target-std"),
        *("experiment", "device", "node.K.device"),
        *("data.label-column", "data.owner-column", "data.ignore-columns", "data.digest"),
        *("data.text-column", "data.prompt", "data.owners", "adapter.targets"),
        *(f"{table}.{leaf}" for table in trained for leaf in ("optimizer", "optimizer-options")),
        *(f"{table}.milestones" for table in trained),
        *("fiarse.sizes", "inclusivefl.lr-factors"),
        *("profiles", "node.K.profile", "profile.NAME.base", "profile.NAME.efficiency-by"),
        *("profile.NAME.available", "clock.server", "clock.deadline", "buffer.staleness"),
    }


def test_what_a_resumed_run_may_change() -> None:
    assert marked(Mark.FREE) == {
        *("resume", "runtime", "out", "state-dir", "timeout", "wait", "experiment"),
        *("max-samples", "rebind", "track", "plugins", "from-round", "keep", "sanity"),
        *("window", "name", "labels", "min-clients", "leave-after", "callbacks", "buffer.wait"),
        "privacy.round-seconds",
        *("score.stop", "score.patience", "score.keep-best", "score.collapse", "wire.max-mb"),
        *("node.K.device", "node.K.memory-mb", "node.K.state-dir"),
    }
    assert marked(Mark.FREE_WITHOUT_COSINE) == {"rounds"}


def test_the_places_of_a_moved_run() -> None:
    """``fedktl.generator`` was missing: such a run could not resume in another folder."""
    assert {key for key, field in FIELDS.items() if keys.mark_of(Place, field)} == {
        *(
            "data.dir",
            "data.public-dir",
            "data.tokenizer",
            "state-dir",
            "weights",
            "node.K.base",
            "node.K.weights",
            "adapter.base",
            "membership",
            "out",
            "plugins",
        ),
        *("node.K.data-dir", "node.K.public-dir", "node.K.state-dir", "fedktl.generator"),
        "profile.NAME.available",
    }
    flat = {
        "method": "fedktl",
        "fedktl.generator": "g",
        "node.3.data-dir": "d",
        "node.4.model": "m",
    }
    assert keys.places(flat) == ["fedktl.generator", "node.3.data-dir"]
    assert keys.places({"fedktl.generator": "g"}, "fedktl") == ["fedktl.generator"]
    assert keys.places({"data.tokenizer": "hash"}) == []
    assert keys.places({"data.tokenizer": "words.txt"}) == ["data.tokenizer"]
    assert keys.places({**flat, "method": "no_module:x"}) == ["node.3.data-dir"]


def test_the_names_of_plugins() -> None:
    """``data.public-name`` was missing: the module of a public data set was not shipped."""
    named = {key: mark.kind for key, f in FIELDS.items() if (mark := keys.mark_of(Names, f))}
    more = {"track": "trackers", "select.by": "selections", "callbacks": "callbacks"}
    assert named == {**policy.settings()["names"], **more}
    flat = {"fleet": "mlp@0.5, lab:Net@2", "data.public-name": "my.sets:one", "out": "a:b"}
    assert [*keys.named(flat)] == [
        *(("models", "mlp"), ("models", "lab:Net"), ("datasets", "my.sets:one"))
    ]
    assert keys.roots(flat) == ["lab", "my"]


def test_what_differential_privacy_excludes() -> None:
    rules = {key: mark for key, f in FIELDS.items() if (mark := keys.mark_of(Unprotected, f))}
    assert {key: mark.allowed for key, mark in rules.items()} == {
        "average.weights": ("uniform",),
        "average.robust": ("none",),
        "average.across": ("none",),
        "oca.aggregate": ("off",),
        "score.bn": ("running", "batch"),
        "score.primary": ("auto", "global"),
        "score.clients-every": (0,),
        "score.drift": (False,),
        "finetune.epochs": (0,),
        "select.by": ("uniform",),
        "select.tags": ("",),
        "data.test": ("split",),
        "data.score-on": ("test",),
        "flops": (False,),
        "memory": (False,),
        "from-round": (-1,),
        "min-replies": (1.0,),
        "privacy.sampling": ("public",),
        **{"clock.deadline": ("",), "clock.over-selection": (1.0,)},
        **{"clock.loss": (0.0,), "clock.partial": (False,)},
    }
    local = [key for key, mark in rules.items() if mark.modes != ("central", "local")]
    assert local == ["privacy.sampling"] and rules["privacy.sampling"].modes == ("local",)
    conditions = {key: mark.unless for key, mark in rules.items() if mark.unless}
    assert conditions == {"data.test": ("data.partition", "own")}


def test_what_secure_sums_exclude() -> None:
    rules = {key: mark for key, f in FIELDS.items() if (mark := keys.mark_of(OfEach, f))}
    assert {key: mark.allowed for key, mark in rules.items()} == {
        **{"average.robust": ("none",), "average.across": ("none",)},
        **{"oca.aggregate": ("off",), "mode": ("synchronous",)},
        **{"privacy.mode": ("off", "local"), "wire.dtype": ("float32",)},
        **{"score.bn": ("running", "batch"), "score.drift": (False,)},
        **{"score.collapse": ("report", "off"), "sanity": (0.0, 720.0)},
        **{"clock.deadline": ("",), "clock.over-selection": (1.0,), "clock.partial": (False,)},
        "select.by": ("uniform", "samples", "tier"),
    }


def test_what_a_leaderboard_fixes() -> None:
    train = {key for key in FIELDS if key.startswith("train.")}
    fixed = {f"train.{leaf}" for leaf in ("epochs", "steps", "batch-size", "optimizer", "momentum")}
    assert train & FIXED == fixed and train - fixed <= CHOSEN
    assert {key for key in CHOSEN if "." not in key} == {"method", "global-model", "feature-dim"}
    free = marked(Mark.FREE)
    tables_fixed = {key for key in FIELDS if key.startswith(("data.", "score.", "finetune."))}
    assert tables_fixed - FIXED - free == {"data.dir", "data.digest", "data.download"}
    top = {key for key in FIELDS if "." not in key}
    assert top - FIXED - free - CHOSEN == {"seed", "device", "threads"}


def test_every_pattern_is_explained_in_words() -> None:
    for key, field in FIELDS.items():
        patterns = [m for m in field.metadata if getattr(m, "pattern", None)]
        assert bool(patterns) is bool(keys.mark_of(Form, field)), key


CONTRACT = """
from typing import Annotated
from common.settings.config import MethodOptions
from common.settings.marks import Mark, Place

class Options(MethodOptions):
    about: Annotated[str, Mark.TEXT] = ""
    file: Annotated[str, Place("weights")] = ""
    note: str = ""
"""


def test_marks_of_a_plugin_count_at_a_node_only_if_it_is_installed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, CONTRACT)
    distribution(tmp_path, "other", f"[fedmosaic.methods]\nlabs-own = {name}\nbroken = nowhere:x\n")
    before = policy.settings()
    importing_from(tmp_path, monkeypatch)
    after = policy.settings()
    assert {*after["texts"]} - {*before["texts"]} == {"labs-own.about", "labs-own.file"}
    assert after["paths"].items() - before["paths"].items() == {("labs-own.file", "weights")}
