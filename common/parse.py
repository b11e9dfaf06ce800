"""Parsing of Flower's flat run config into a ``Config``, with one-line errors.

The launcher checks every table. The apps check the shared tables and that of the chosen method, so
that a ClientApp imports one method instead of all.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, TypeVar

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from common import keys, methods
from common.errors import refusal
from common.files import in_order
from common.keys import NAMED, general_table
from common.settings.buffer import Buffer
from common.settings.clock import ALL
from common.settings.config import ALWAYS, SECTIONS, Config, Data, Run, listed, not_allowed
from common.settings.facts import AS_SENT, ASYNCHRONOUS, WAITS
from common.settings.marks import Auto, Form, Value
from common.settings.options import KRUM, Descent
from common.settings.plugins import OF_FOLDER, nearest, network, table_of
from common.settings.profiles import device
from common.settings.section import Section, kebab, keys_of, nested, value_kind

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  #: line breaks and terminal codes
S = TypeVar("S", bound=Section)


def parse(flat: Mapping[str, Value], *, every: bool = False) -> Config:
    """Return the typed configuration of a flat run config, with ``auto`` of the chosen method.

    Equal run configs give the same object within a process. ``every``: check the tables of the
    other methods too.

    Raises ``ValueError``, one line: an unknown key (with the nearest known one), a missing key, a
    value of the wrong type or out of bounds, a method that does not exist.
    """
    values = flat.values()  # 1, 1.0 and True are equal, their types are not
    config = _parsed(tuple(flat), tuple(values), tuple(map(type, values)))
    if every:
        by_table = _by_table(flat)
        for name in set(methods.names()) - {config.run.method}:
            _section(methods.options(name), name, by_table)
    return config


@lru_cache(maxsize=2)
def _parsed(keys: tuple[str, ...], values: tuple[Value, ...], _: tuple[type[Value], ...]) -> Config:
    from common.training import optimise  # imports torch, which a list of the keys does not need

    by_table = _by_table(dict(zip(keys, values, strict=True)))
    run = _section(Run, "", by_table)
    options = _section(methods.options(run.method), table_of(run.method), by_table)
    auto = dict(options.auto)
    # Under [privacy] all clients have equal weights, as have the updates of asynchronous rounds.
    if by_table["privacy"].get("mode", "off") != "off" or run.mode == "buffered":
        auto["average.weights"] = "uniform"
    shared = {
        name: _resolved(_section(kind, name, by_table), name, auto)
        for name, kind in SECTIONS.items()
    }
    named: dict[str, dict[Any, Any]] = {
        plural: {
            form.sub(r"\1", table): _section(kind, table, by_table)
            for table in by_table
            if form.fullmatch(table)
        }
        for plural, (form, kind) in zip(("nodes", "profiles"), NAMED.values(), strict=True)
    }
    named["nodes"] = {int(k): node for k, node in named["nodes"].items()}
    run = _resolved(run, "", options.auto)
    config = Config.model_validate({"run": run, **shared, "method": options, **named})
    if run.clients and max(config.nodes, default=0) >= run.clients:
        raise ValueError(
            f"[node.{max(config.nodes)}] is not allowed with clients = {run.clients}; it should be "
            f"[node.0] to [node.{run.clients - 1}]"
        )
    config.data.check()
    config.score.check()
    if config.score.primary == "personal" and not config.data.has_client_tests:
        why = "data.test-fraction = 0: clients have no test samples"
        raise not_allowed("score.primary", "personal", why, "auto", "global")
    for key, least in (("per-round", run.per_round), ("min-clients", run.min_clients)):
        if run.clients and least > run.clients:
            raise ValueError(f"{key} = {least} is more than clients = {run.clients}")
    if not config.fleet:
        raise ValueError(f'fleet = "{run.fleet}" names no architecture')
    for name, section in config.tables.items():
        if isinstance(section, Descent):
            optimise.check(name, section)
    _check_adapters(config)
    _check_clock(config)
    _check_mode(config)
    if config.on_clock and not config.privacy.on:  # times follow from counted operations
        config = config.with_run(flops=True)
    options.check_privacy(config)
    options.check_secure(config)
    if config.secure.on:
        config = config.with_run(sanity=0.0)
    options.check(config)
    return config


def _check_idle(table: str, section: Section, needs: str) -> None:
    """Raise ``ValueError``, one line, for a setting of a table that the run does not read.

    ``needs``: what it lacks, in words that follow the setting.
    """
    for name, value in section:
        if value != type(section).model_fields[name].default:
            raise ValueError(f"{table}.{kebab(name)} = {json.dumps(value)} {needs}")


def _check_adapters(config: Config) -> None:
    """Raise ``ValueError``, one line, for settings of adapters that no network of the run has."""
    if not config.adapted:
        _check_idle("adapter", config.adapter, 'needs adapters, as in fleet = "gpt-2-lora4"')
    names = map(network, (*config.brought, config.run.global_model))
    if config.adapter.base and OF_FOLDER not in names:
        raise ValueError(
            f"adapter.base = {json.dumps(config.adapter.base)} needs its network in the fleet: "
            f"{OF_FOLDER}-lora4"
        )


def _check_clock(config: Config) -> None:
    """Raise ``ValueError``, one line, for a clock without a device, or an unknown profile."""
    clock, run, privacy = config.clock, config.run, config.privacy
    if not config.on_clock:
        _check_idle("clock", clock, "needs profiles: without devices a run has no clock")
        return
    clock.check()
    if clock.over_selection > 1 and not run.per_round:
        raise ValueError(
            f"clock.over-selection = {clock.over_selection:g} needs per-round, the number of "
            "replies that count"
        )
    if privacy.on and not config.train.steps:
        why = f'privacy.mode = "{privacy.mode}": it would tell how many samples a client has'
        raise ValueError(f"profiles are not allowed with {why}; allowed: train.steps above 0")
    if privacy.sampling == "secret":
        why = "profiles: times tell who is selected"
        raise not_allowed("privacy.sampling", "secret", why, "public")
    own = [node.profile or "" for node in config.nodes.values()]
    for name in filter(None, dict.fromkeys([*listed(run.profiles), *own, clock.server])):
        found = device(name, config.profiles)
        if privacy.on and found.available:
            why = f'privacy.mode = "{privacy.mode}": {ALL}'
            raise ValueError(f"profile.{name}.available is not allowed with {why}")
        if found.memory is None and clock.fit != "off" and name != clock.server:
            raise ValueError(
                f"[profile.{name}] has no memory, which clock.fit = {clock.fit!r} needs"
            )


AT_ONCE: Mapping[str, tuple[Value, ...]] = {
    "average.robust": ("none", "median", "trimmed", "clip", *KRUM, "geometric-median"),
    "clock.deadline": ("",),
    "clock.over-selection": (1.0,),
    "clock.partial": (False,),
    "clock.scores": (False,),
    "clock.server": ("",),
    "oca.aggregate": ("off",),
    "score.bn": ("running", "batch"),
}
"""Settings that asynchronous rounds restrict, with the values that are allowed, unless a method
requires another one."""


CACHED: Mapping[str, tuple[Value, ...]] = {
    "average.across": ("none",),
    "average.robust": ("none",),
    "buffer.mixing": (0.0,),
    "buffer.staleness": ("constant",),
    "oca.aggregate": ("off",),
    "privacy.mode": ("off",),
}
"""Settings that ``buffer.cache`` restricts, with the values that are allowed: it corrects a plain
mean of one architecture, has no weight by age, and keeps each client's update."""


def _check_mode(config: Config) -> None:
    """Raise ``ValueError``, one line, for settings that do not go with the run's ``mode``."""
    run, facts = config.run, methods.facts(config.run.method)
    if not config.buffered:
        _check_idle("buffer", config.buffer, 'needs mode = "buffered"')
        return
    why = 'mode = "buffered"'
    if facts.asynchronous not in ASYNCHRONOUS:
        method = f'method = "{run.method}": {WAITS[facts.asynchronous]}'
        raise not_allowed("mode", run.mode, method, "synchronous")
    if config.privacy.on and not config.on_clock:
        reason = f"{why} without profiles: the order of arrival would tell of the clients' samples"
        raise not_allowed("privacy.mode", config.privacy.mode, reason, "off")
    flat = config.flat
    for key, values in AT_ONCE.items():
        if flat[key] not in values and key not in config.method.requires:
            raise not_allowed(key, flat[key], f"{why}: its updates are of several rounds", *values)
    _check_weights(config)
    if run.clients:
        config.buffer.sizes(run.per_round, run.clients)


def _check_weights(config: Config) -> None:
    """Raise ``ValueError``, one line, for weights of updates that a step has not."""
    facts, flat = methods.facts(config.run.method), config.flat
    if facts.asynchronous in AS_SENT or config.method.averages_nothing:
        for name in ("cache", "staleness", "mixing"):
            if (value := flat[f"buffer.{name}"]) != Buffer.model_fields[name].default:
                why = f'method = "{config.run.method}": replies of all ages count the same'
                raise not_allowed(f"buffer.{name}", value, why)
    for key, values in CACHED.items() if config.buffer.cache else ():
        if flat[key] not in values:
            raise not_allowed(key, flat[key], "buffer.cache = true", *values)


def data_of(flat: Mapping[str, Value]) -> Data:
    """Return the table [data] only. Raises ``ValueError`` as ``parse`` does."""
    data = _section(Data, "data", _by_table(flat))
    data.check()
    return data


def _by_table(flat: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Return the keys of each table that a run config may have, with their values."""
    own = table_of(str(flat.get("method", "")))
    names = ["", *SECTIONS, *methods.names(), own]
    by_table: dict[str, dict[str, Value]] = {name: {} for name in names}
    for key, value in flat.items():
        table, _, leaf = key.rpartition(".")
        if general_table(table):
            by_table.setdefault(table, {})
        if table not in by_table:
            raise ValueError(_unknown(key, defaults()))
        if isinstance(value, str) and CONTROL.search(value):  # a message quotes it in its line
            shown = json.dumps(value)
            raise ValueError(f"{key} = {shown} is not allowed; it should be a text of one line")
        by_table[table][leaf] = value
    return by_table


def tables(method: str = "") -> dict[str, type[Section]]:
    """Return the class of every table of the run config by name; the top level is ``""``.

    ``method``: a method whose table is included too, if it is a plug-in.

    Raises ``ValueError``, one line, for a method that does not exist.
    """
    own = {table_of(method): methods.options(method)} if method else {}
    return {**_built_in_tables(), **own}


@cache
def _built_in_tables() -> dict[str, type[Section]]:
    return {"": Run, **SECTIONS, **{name: methods.options(name) for name in methods.names()}}


def defaults(method: str = "") -> dict[str, Value]:
    """Return every key with its default, without resolving ``auto``.

    ``method``: as for ``tables``.
    """
    if method and method not in methods.names():  # a plug-in, which may be another one later
        return _defaults(tables(method))
    return dict(_built_in_defaults(method))


@cache
def _built_in_defaults(method: str) -> dict[str, Value]:
    return _defaults(tables(method))


def _defaults(some: Mapping[str, type[Section]]) -> dict[str, Value]:
    return {key: field.default for key, field in keys.fields(some).items()}


def reads(method: str, key: str) -> bool:
    """Return whether a method reads the table of ``key``.

    Raises ``ValueError``, one line, for a method that does not exist.
    """
    table = key.rpartition(".")[0]
    shared = {"", *ALWAYS, table_of(method)}
    return table in shared or table in methods.options(method).uses


def to_toml(flat: Mapping[str, Value]) -> str:
    """Return a flat config as the text of ``config.toml``: known keys in order, then all others."""
    known = [key for key in defaults() if key in flat]
    others = sorted(flat.keys() - set(known), key=in_order)
    return tomli_w.dumps(nested({key: flat[key] for key in (*known, *others)}))


def auto_of(field: FieldInfo) -> Auto | None:
    """Return the mark of a setting whose default depends on the method; None if there is none."""
    return keys.mark_of(Auto, field)


def form_of(field: FieldInfo | None) -> str:
    """Return how the text of a setting must be written, in words; empty if there is no pattern."""
    form = keys.mark_of(Form, field)
    return form.words if form else ""


def usual(key: str, field: FieldInfo, auto: Mapping[str, Value]) -> Value:
    """Return a setting's default, resolved with a method's ``auto``."""
    mark = auto_of(field)
    default: Value = field.default if mark is None else auto.get(key, mark.usual)
    return default


def kind_of(key: str, method: str = "") -> type[Value]:
    """Return the type (bool, int, float or str) of a key's value.

    ``method``: as for ``tables``. Raises ``ValueError`` for an unknown key.
    """
    table, _, leaf = key.rpartition(".")
    shared: dict[str, type[Section]] = {"": Run, **SECTIONS}
    named = NAMED.get(general_table(table))
    section = named[1] if named else shared.get(table) or tables(method).get(table)
    if section is None or (name := leaf.replace("-", "_")) not in section.model_fields:
        raise ValueError(_unknown(key, defaults(method)))
    kind = value_kind(section.model_fields[name])
    assert kind is not None, key
    return kind


def _resolved(section: S, table: str, auto: Mapping[str, Value]) -> S:
    """Return the section of a table with resolved values for ``auto``."""
    kind = type(section)
    resolved = {
        name: usual(key, field, auto)
        for name, (key, field) in zip(kind.model_fields, keys_of(table, kind), strict=True)
        if auto_of(field) and getattr(section, name) in ("auto", 0)
    }
    return section.model_copy(update=resolved)


def _section(kind: type[S], name: str, tables: Mapping[str, Mapping[str, Value]]) -> S:
    """Return a section of class ``kind`` with the values of the table ``name``.

    Raises ``ValueError``, one line, for a missing or unknown key or a wrong value.
    """
    prefix, table = f"{name}." if name else "", tables[name]
    try:
        needed = {kebab(field) for field, f in kind.model_fields.items() if f.default is not None}
        if missing := sorted(needed - table.keys()):
            raise ValueError(f"key {prefix + missing[0]!r} is missing")
        return kind.model_validate(table)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        leaf = str(error["loc"][0])
        key, field = prefix + kebab(leaf), kind.model_fields.get(leaf.replace("-", "_"))
        line = refusal(error, key, form_of(field))
        if error["type"] == "extra_forbidden":
            known = [*defaults(), *(prefix + kebab(name) for name in kind.model_fields)]
            line = _unknown(key, known)
        raise ValueError(line) from None


def _unknown(key: str, known: Iterable[str]) -> str:
    """Return the error line for an unknown key, with keys of this name or the nearest key."""
    table = key.rpartition(".")[0]
    for name, (_, kind) in NAMED.items():
        own = table if general_table(table) == name else name
        known = [*known, *(f"{own}.{kebab(field)}" for field in kind.model_fields)]
    same_name = [name for name in known if name.rpartition(".")[2] == key]
    *others, last = map(repr, same_name or [""])
    choices = f"{', '.join(others)} or {last}" if others else last
    return f"key {key!r} is unknown" + (
        f"; did you mean {choices}?" if same_name else nearest(key, known)
    )
