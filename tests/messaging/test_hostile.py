"""Everything that arrives from a client is untrusted: it is used, or it is refused in one line."""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings

from common.exchange import protocol
from common.exchange.protocol import ClientInfo, FineTunedScoreReply, ScoreReply, StatisticsReply
from common.exchange.records import Records
from common.journal import Entry, Failure
from common.methods import names
from common.methods.fedmd import ConsensusReply
from common.techniques.incentive import IncentiveReply
from server_app.callbacks.recalibrate import Recalibrate
from server_app.messaging import messenger
from server_app.messaging.messenger import check_finite, open_reply
from server_app.method import Replies, mean_metrics
from server_app.methods import half
from server_app.stopped import Stopped
from tests.support.battery import METHODS, of_families, pairs
from tests.support.halves import check_peers
from tests.support.hostile import (
    HUGE,
    Case,
    K,
    T,
    changed_numbers,
    first_number,
    malformed,
    reply,
    schema,
    seen,
    tensor_places,
    with_arrays,
    with_field,
    with_schema,
)

every_method = pytest.mark.parametrize("method", of_families(METHODS))
same = {"deadline": None, "derandomize": True, "database": None}
battery = settings(max_examples=60, suppress_health_check=list(HealthCheck), **same)
BOMB = b" " * (64 * 2**20)
TENSORS = json.dumps({"w": {f"{i}": {"~tensor": ["bool", 0]} for i in range(30_000)}}).encode()


@pytest.fixture(autouse=True)
def only_value_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """``open`` survives any exception; what it is not meant for is a mistake of ours."""

    def surprised(*_: Any) -> None:
        raise AssertionError("a reply raised something other than ValueError")

    monkeypatch.setattr(messenger.log, "exception", surprised)


def check_line(failure: Failure) -> None:
    assert (failure.k, failure.round) == (K, T)
    assert failure.reason.isprintable() and 0 < len(failure.reason) <= 450
    json.dumps(failure.reason, allow_nan=False)


def receive(method: str, content: RecordDict) -> str:
    """Why the reply of client K is refused; empty if it is used, and then it is sound."""
    strategy, messenger = seen(method).strategy, seen(method).strategy.messenger
    kind, check = strategy.method.reply_type, strategy.method.check
    clients = strategy.clients
    good, failures = messenger.open(T, [reply(content, clients[K].node)], kind, clients, check)
    if not good:
        (failure,) = failures
        check_line(failure)
        return failure.reason
    assert failures == []
    ((client, upload),) = good
    assert client.k == upload.k == K and upload.t == T and upload.experiment == messenger.experiment
    check_finite(upload)
    json.dumps(mean_metrics(Replies.of(good)), allow_nan=False)
    return ""


def noted(method: str, what: str, content: RecordDict) -> Entry:
    """The journal's entry after client K's answer to what follows training."""
    strategy = seen(method).strategy
    entry = strategy.entry = Entry(round=T, selected=[K], client_metrics={K: {}})
    score, gain = strategy.aggregate_evaluate, strategy.aggregate_second
    try:
        (score if what == "score" else gain)(T, [reply(content, strategy.clients[K].node)])
    except Stopped as stopped:
        assert entry.replied == [] and f"client {K}: second reply refused" in str(stopped)
    json.dumps([entry.metrics, entry.client_metrics], allow_nan=False)
    return entry


def battery_of(content: RecordDict, hold: Callable[[RecordDict], None]) -> None:
    """``hold`` for many malformed versions of a payload."""

    @battery
    @given(malformed(content))
    def run(case: Case) -> None:
        hold(case.content)

    run()


@every_method
def test_an_honest_reply_is_used(method: str) -> None:
    assert receive(method, seen(method).up) == ""


@every_method
def test_any_malformed_reply_is_used_soundly_or_refused_in_one_line(method: str) -> None:
    refused: list[bool] = []

    def hold(content: RecordDict) -> None:
        refused.append(receive(method, content) != "")

    battery_of(seen(method).up, hold)
    assert sum(refused) > len(refused) / 2, "the battery hardly changes anything"


@pytest.mark.parametrize(
    ("method", "what"), [("fedkf", "score"), ("i-dl-mh", "gain"), ("kt-pfl", "gain")]
)
def test_any_malformed_later_answer_is_used_soundly_or_refused(method: str, what: str) -> None:
    n = seen(method).strategy.clients[K].info.n_test

    def hold(content: RecordDict) -> None:
        entry = noted(method, what, content)
        used = bool(entry.scores or entry.incentive or entry.client_metrics[K])
        silent = method == "kt-pfl" and not entry.failures
        silent = silent and not ConsensusReply.unpack(content).metrics
        assert used != bool(entry.failures) or silent
        for failure in entry.failures:
            check_line(failure)
        shares = [entry.incentive.before, entry.incentive.after] if entry.incentive else []
        for score in entry.scores:
            assert score.n == n
            shares += [score.accuracy, score.accuracy_global, *score.accuracies.values()]
        assert all(share is not None and 0 <= share <= 1 for share in shares)

    battery_of(getattr(seen(method), what), hold)


def test_any_malformed_statistics_are_used_soundly_or_refused_in_one_line() -> None:
    strategy, content = seen("lwn").strategy, seen("lwn").statistics
    (recalibrate,) = (one for one in strategy.built_in if isinstance(one, Recalibrate))
    assert content is not None
    check = recalibrate.measurement.check

    def hold(content: RecordDict) -> None:
        answers, clients = [reply(content, strategy.clients[K].node)], strategy.clients
        good, failures = strategy.messenger.open(T, answers, StatisticsReply, clients, check)
        assert len(good) + len(failures) == 1
        for failure in failures:
            check_line(failure)
        for client, told in good:
            assert told.n == client.n
            for found in told.models.values():
                assert all(bool((v.abs() <= 1e30).all()) for v in found.values())
                assert all(bool((found[n] >= 0).all()) for n in found if n.endswith("var"))

    battery_of(content, hold)


def test_any_malformed_peer_is_admitted_soundly_or_refused_in_one_line() -> None:
    method, messenger = seen("fedavg").method, seen("fedavg").strategy.messenger
    others = [client.info for client in method.clients if client.k != K]
    limit = messenger.config.run.max_samples

    def hold(content: RecordDict) -> None:
        try:
            info = open_reply(reply(content), ClientInfo, messenger.config)
            size = len(method.clients)
            check_peers([*others, info], size, messenger.experiment, method.task, limit)
        except (ValueError, Stopped) as refusal:
            assert "\n" not in str(refusal)
            return
        assert 1 <= info.n <= limit and info.n_test <= limit and info.k == K

    battery_of(seen("fedavg").info, hold)


# Replies that must be refused, whatever the method.
def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def pickled(content: RecordDict) -> RecordDict:
    """An array of Python objects, as ``np.save`` writes it with a pickle inside."""
    file = io.BytesIO()
    np.save(file, np.array([{"x": 1}], dtype=object), allow_pickle=True)
    arrays = dict(content.array_records["arrays"])
    arrays["float32"] = Array("object", (1,), "numpy.ndarray", file.getvalue())
    return with_arrays(content, arrays)


def in_the_first_claim(claim: list[Any]) -> Callable[[RecordDict], RecordDict]:
    """Where a method sends no tensor, a metric claims to be one."""

    def change(content: RecordDict) -> RecordDict:
        place = next(iter(tensor_places(content)), ("metrics", "loss"))
        return with_field(content, place, {"~tensor": claim})

    return change


def with_record(content: RecordDict, **changes: Any) -> RecordDict:
    fields = ConfigRecord({**content.config_records["fields"], **changes})
    return RecordDict({"arrays": content["arrays"], "fields": fields})


ALWAYS_REFUSED: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "another experiment": (lambda c: with_field(c, ("experiment",), "other"), "for experiment"),
    "a path for experiment": (lambda c: with_field(c, ("experiment",), "../x"), "'experiment'"),
    "another round": (lambda c: with_field(c, ("t",), 7), "it is for round 7"),
    "another client": (lambda c: with_field(c, ("k",), 0), "it is for client 0"),
    "a negative client": (lambda c: with_field(c, ("k",), -1), "field 'k'"),
    "text for a number": (lambda c: with_field(c, ("t",), "1"), "field 't'"),
    "truth for a number": (lambda c: with_field(c, ("k",), True), "field 'k'"),
    "a missing field": (lambda c: with_field(c, ("metrics",), ...), "field 'metrics'"),
    "an unknown field": (lambda c: with_field(c, ("more",), 1), "field 'more'"),
    "no metrics": (lambda c: with_field(c, ("metrics",), None), "field 'metrics'"),
    "NaN as a metric": (lambda c: with_field(c, ("metrics", "x"), {"~float": "nan"}), "metrics.x"),
    "infinity as a metric": (
        lambda c: with_schema(
            c, json.dumps(schema(c)).replace('"metrics": {', '"metrics": {"x":1e999,').encode()
        ),
        "metrics.x",
    ),
    "a metric beyond all means": (lambda c: with_field(c, ("metrics", "x"), 1e31), "metrics.x"),
    "a metric named by controls": (lambda c: with_field(c, ("metrics", "\x1b[2J"), 1), "metrics"),
    "a thousand metrics": (
        lambda c: with_field(c, ("metrics",), {f"x{i}": 1.0 for i in range(1000)}),
        "at most 50",
    ),
    "a tensor of objects": (in_the_first_claim(["object", 1]), "claims dtype 'object'"),
    "a tensor of HUGE": (in_the_first_claim(["float32", HUGE]), "claims dtype"),
    "a shape whose product overflows": (
        in_the_first_claim(["float32", 2**31, 2**31, 2**31]),
        "claims dtype",
    ),
    "an empty tensor of huge shape": (in_the_first_claim(["float32", 0, 2**39, 2**39]), "claims"),
    "a negative axis": (in_the_first_claim(["float32", -1, 5]), "claims dtype"),
    "a thousand axes": (in_the_first_claim(["float32", *[1] * 1000]), "claims dtype"),
    "an integer of 30 digits": (lambda c: with_field(c, ("t",), 10**30), "an integer has 31"),
    "an integer of 5000 digits": (
        lambda c: with_schema(c, b'{"t":' + b"9" * 5000 + b"}"),
        "an integer has 5000 digits",
    ),
    "a level too many": (lambda c: with_schema(c, nested(20)), "nested deeper"),
    "nesting without end": (lambda c: with_schema(c, nested(100_000)), "is not JSON"),
    "a zip bomb": (lambda c: with_schema(c, BOMB), "exceeds"),
    "tens of thousands of tensors": (lambda c: with_schema(c, TENSORS), "more than 20000 tensors"),
    "as many under an escaped name": (
        lambda c: with_schema(c, TENSORS.replace(b"~tensor", b"~\\u0074ensor")),
        "more than 20000 tensors",
    ),
    "JSON in UTF-16": (lambda c: with_schema(c, TENSORS.decode().encode("utf-16")), "not JSON"),
    "no zlib": (lambda c: with_record(c, skeleton=b"x"), "not zlib"),
    "another kind": (lambda c: with_record(c, kind="x\x1b" * 99), "expected a"),
    "metrics for arrays": (
        lambda c: RecordDict({"arrays": MetricRecord({"x": 1.0}), "fields": c["fields"]}),
        "not a",
    ),
    "a pickle": (pickled, "not .npy data"),
    "numbers too many": (
        lambda c: changed_numbers(c, lambda numbers: np.append(numbers, numbers[:1])),
        "numbers that belong to no field",
    ),
    "one array twice": (
        lambda c: with_arrays(c, {**c.array_records["arrays"], "float64": Array(np.zeros(2))}),
        "numbers that belong to no field",
    ),
}


@pytest.mark.parametrize(("method", "case"), pairs(METHODS, ALWAYS_REFUSED))
def test_what_no_method_can_use_is_refused_with_the_reason(method: str, case: str) -> None:
    content = seen(method).up
    change, reason = ALWAYS_REFUSED[case]
    refusal = receive(method, change(content))
    assert reason in refusal and refusal.startswith("reply refused: "), refusal


@every_method
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(method: str, value: float) -> None:
    content = changed_numbers(seen(method).up, first_number(value), "float")
    said = "not finite" if seen(method).up.array_records["arrays"] else "belong to no field"
    assert said in receive(method, content)


@every_method
def test_every_field_is_needed_and_has_its_type(method: str) -> None:
    content = seen(method).up
    for name in schema(content):
        assert receive(method, with_field(content, (name,), ...)) != "", name
        for wrong in ("x", [[]], {"a": {"b": {}}}, {"~tensor": ["int16", 1]}):
            assert receive(method, with_field(content, (name,), wrong)) != "", (name, wrong)


@every_method
def test_every_tensor_has_its_shape_and_dtype(method: str) -> None:
    content = seen(method).up
    for path in tensor_places(content):
        dtype, *shape = _claim(content, path)
        for other in (
            [dtype, *shape, 1],
            [dtype, *shape[:-1], shape[-1] + 1] if shape else [dtype, 2],
            ["float64" if dtype != "float64" else "float32", *shape],
            [dtype, 0],
        ):
            changed = with_field(content, (*path, "~tensor"), other)
            assert receive(method, changed) != "", (path, other)


def _claim(content: RecordDict, path: tuple[Any, ...]) -> list[Any]:
    tree = schema(content)
    for key in path:
        tree = tree[key]
    claim: list[Any] = tree["~tensor"]
    return claim


@every_method
def test_a_reply_above_max_mb_is_not_read(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messenger, content = seen(method).strategy.messenger, seen(method).up
    wire = messenger.config.wire.model_copy(update={"max_mb": 1e-4})
    with monkeypatch.context() as patch:
        patch.setattr(messenger, "config", messenger.config.model_copy(update={"wire": wire}))
        patch.setattr(seen(method).method.reply_type, "unpack", None)
        assert "wire.max-mb = 0.0001" in receive(method, content)
    assert receive(method, content) == ""


# Replies that one method must refuse.
@pytest.mark.parametrize(
    ("method", "path", "value", "reason"),
    [
        ("fedgen", ("counts", 0), -1, "field 'counts.0'"),
        ("fedgen", ("counts", 0), 2**39, "are not those of"),
        ("fedgen", ("counts",), [], "are not those of"),
        ("dl-mh", ("d",), [0, 1, 3], "the schema has class 3"),
        ("dl-mh", ("d",), [0, 0, 1], "class 0 more than once"),
        ("dl-mh", ("d",), [], "names no class"),
        ("dl-mh", ("d",), [0] * 40_000, "class 0 more than once"),
        ("dl-mh", ("d",), [0, 1], "theta is"),
        ("dl-mh", ("w",), None, "w is missing"),
        ("i-dl-mh", ("d",), [-1, 0, 1], "field 'd.0'"),
        ("i-dl-mh", ("incentive",), 1, "field 'incentive'"),
        ("dl-sh", ("w",), None, "w is missing"),
        ("dl-sh", ("low",), {"~float": "-inf"}, "theta claims to reach"),
        ("dl-sh", ("high",), 2.0, "probabilities for 0 to 1"),
        ("fedmd", ("low",), 7e4, "theta claims to reach from 70000.0"),
        ("fedmd", ("high",), {"~float": "nan"}, "theta claims to reach"),
        ("kt-pfl", ("high",), 0.5, "probabilities for 0 to 1"),
        ("qffl", ("loss",), -1.0, "field 'loss'"),
        ("qffl", ("loss",), {"~float": "inf"}, "field 'loss'"),
        ("fedorion", ("local",), None, "local is missing"),
        ("fedin", ("s_in",), None, "s_in is missing"),
    ],
)
def test_what_a_method_cannot_use_is_refused(
    method: str, path: tuple[Any, ...], value: Any, reason: str
) -> None:
    content = seen(method).up
    if value is None and path in (("w",), ("local",), ("s_in",)):
        content = _without_tensors(content, path[0])
    assert reason in receive(method, with_field(content, path, value))


def test_a_byte_range_that_no_float32_spans_is_refused() -> None:
    content = with_field(seen("dl-sh").up, ("low",), -3e38)
    assert "claims to reach" in receive("dl-sh", with_field(content, ("high",), 3e38))


def _without_tensors(content: RecordDict, field: str) -> RecordDict:
    """The payload without a field's tensors, so that no number is left over."""
    for name in names():  # the payload is unpacked by whichever kind it is
        kind = half(name).reply_type
        if kind.kind == content.config_records["fields"]["kind"]:
            upload = kind.unpack(content)
            return kind.model_construct(**{**dict(upload), field: None}).pack()
    raise AssertionError(field)


def test_a_loss_whose_power_overflows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    method = seen("qffl").method
    monkeypatch.setattr(method, "options", method.options.model_copy(update={"q": 5.0}))
    content = with_field(seen("qffl").up, ("loss",), 1e30)
    assert "loss = 1e+30 is too large for q = 5" in receive("qffl", content)
    assert receive("qffl", with_field(seen("qffl").up, ("loss",), 50.0)) == ""


@pytest.mark.parametrize(
    ("methods", "values", "kind", "reason"),
    [
        ("fedgkt", (-1, 3, 2**62), "int64", "y has label"),
        ("dl-sh dl-mh i-dl-mh kt-pfl", (-0.1, 1.5, 3e38), "float", "must stay in [0, 1]"),
        ("fedmd", (1e30,), "float", "theta has the logit 1e+30, at most 65504 is allowed"),
    ],
    ids=["a label that does not exist", "no probability", "a logit beyond every dtype"],
)
def test_numbers_that_cannot_be_are_refused(
    methods: str, values: tuple[float, ...], kind: str, reason: str
) -> None:
    for method in methods.split():
        for value in values:
            content = changed_numbers(seen(method).up, first_number(value), kind)
            assert reason in receive(method, content)


@pytest.mark.parametrize(
    ("what", "path", "value", "reason"),
    [
        ("score", ("n",), 10**6, "it is over 1000000 test samples"),
        ("score", ("n",), -1, "field 'n'"),
        ("score", ("accuracy",), 1.01, "field 'accuracy'"),
        ("score", ("accuracy",), {"~float": "nan"}, "field 'accuracy'"),
        ("score", ("accuracy",), None, "accuracy of the own model is missing"),
        ("score", ("accuracy_global",), None, "accuracy of the global model is missing"),
        ("score", ("accuracies",), {}, "it scores the models"),
        ("score", ("accuracies", "aca"), {"~float": "inf"}, "field 'accuracies.aca'"),
        ("score", ("accuracies", "other"), 0.5, "it scores the models"),
        ("score", ("k",), 0, "it is for client 0"),
        ("score", ("t",), 9, "it is for round 9"),
        ("gain", ("before",), {"~float": "nan"}, "field 'before'"),
        ("gain", ("after",), 2.0, "field 'after'"),
        ("gain", ("metrics", "x"), {"~float": "nan"}, "metrics.x"),
        ("gain", ("t",), 9, "it is for round 9"),
    ],
)
def test_an_answer_after_training_that_cannot_be_is_refused(
    what: str, path: tuple[Any, ...], value: Any, reason: str
) -> None:
    method = {"score": "fedkf", "gain": "i-dl-mh"}[what]
    entry = noted(method, what, with_field(getattr(seen(method), what), path, value))
    (failure,) = entry.failures
    assert entry.scores == [] and entry.incentive is None
    assert reason in failure.reason and f"{what} refused" in failure.reason


def test_every_class_that_a_client_sends_is_in_the_battery() -> None:
    """What every method is answered with, and what is the same for all: there are no others."""
    common: set[type[Records]] = {
        ClientInfo,
        ScoreReply,
        FineTunedScoreReply,  # refused in tests/client/test_fine_tuning.py
        IncentiveReply,
        ConsensusReply,
        StatisticsReply,
        *(protocol.MaskedReply, protocol.UnmaskReply),  # refused in tests/secure
    }
    tried = common | {half(name).reply_type for name in names()}
    kinds = _subclasses(protocol.ToServer)
    ours = {kind for kind in kinds if kind.__module__.startswith("common.")}
    assert {kind for kind in ours if not _subclasses(kind)} <= tried
    seconds = {half(name).second_reply_type for name in names()} - {None}
    assert seconds == {IncentiveReply, ConsensusReply}


def _subclasses(kind: type[Any]) -> set[type[Any]]:
    return {found for direct in kind.__subclasses__() for found in {direct, *_subclasses(direct)}}


def test_flowers_own_hooks_take_one_reply_of_each_clients_node_and_survive_garbage() -> None:
    strategy, honest = seen("fedavg").strategy, seen("fedavg").up
    method, node = strategy.method, strategy.clients[K].node
    strategy.entry = Entry(round=T, selected=[K])
    with pytest.raises(Stopped, match="0 of 1 replies are good"):
        strategy.aggregate_train(T, [reply(RecordDict(), node), reply(honest, node)])
    assert strategy.good == [], "the first reply counts, and it is garbage"
    before = method.state()
    strategy.entry = Entry(round=T, selected=[K])
    try:
        _, metrics = strategy.aggregate_train(T, [reply(RecordDict(), 99), reply(honest, node)])
        assert metrics is not None and method.weights_to_score() is not None
        assert strategy.entry.replied == [K] and strategy.entry.failures == []
        assert strategy.aggregate_evaluate(T, [reply(RecordDict(), node)]) is None
    finally:
        method.restore(before)
