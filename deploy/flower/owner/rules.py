"""Rules of a node's owner for a run, checked before any code of the app bundle loads.

``pinned.py`` calls ``check`` with the run config that Flower passes to the ClientApp. The rules are
plain data, because this file must not import ``common`` (see ``pinned.py``). They come from a
policy file (``deploy/flower/owner/policy.py``). A node without one has rules for folders only.

The rules include ``settings``: the tables of the settings that name a file, a module or a download,
or count epochs, which the node makes from its own installation. Without them every run is refused.
No name of a run is imported here: installed plug-ins are read from the metadata of packages.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

RULES = "FEDMOSAIC_NODE_RULES"  #: environment variable of a SuperNode with its rules, as JSON
STATE_DIR = "FEDMOSAIC_STATE_DIR"  #: environment variable of a client, as in ``participant.py``
Values = Mapping[str, bool | int | float | str]

FAMILIES = ("torchvision", "timm")
"""Words before the colon of a model that are libraries, as in ``common/settings/plugins.py``."""
PLACES = {
    **{"data-dir": "data.dir", "public-dir": "data.public-dir", "weights": "weights"},
    **{"base": "adapter.base", "state-dir": "state-dir"},
}
"""Paths of a node, and the setting of the run that each replaces."""
ADAPTED = re.compile(r"(-lora\d+|-dense)+(?=@|$)")
"""End of the name of a network with adapters, which has the weights and code of its base."""
STRICTER = {
    "off": ("off", "central", "local"),
    "central": ("central", "local"),
    "local": ("local",),
}
"""Values of ``privacy.mode`` that satisfy the least one of a policy."""
SECURE = (
    ("secure.mode", "off", "on"),
    ("secure.threshold", "two-thirds", "two-thirds"),
)
"""Settings with their defaults, and the values that ``require = "secure"`` demands."""
FEWEST = 3  #: least ``secure.fewest`` of ``require = "secure"``
LONGEST = 100  #: characters of a value in an error message


class Refused(ValueError):
    """A run that this node's installation refuses; the message is one line."""


def check(rules: Mapping[str, Any], settings: Values, node: Values) -> None:
    """Raise ``Refused``, one line, for a run config that the rules of this node do not allow.

    ``settings``: the run config; ``node``: the node's own configuration. A missing rule allows all
    values, but missing tables of settings allow no run.
    """
    if (
        not {"paths", "words", "names", "downloads", "epochs", "texts"}
        <= rules.get("settings", {}).keys()
    ):
        raise Refused("the node that checks this run did not receive its tables of settings")
    for key, value, rule, allowed in _violations(rules, _spelled(settings), node):
        shown = f"{value!r:.{LONGEST}}" if isinstance(value, str) else str(value).lower()
        source = f"its policy ({rule})" if rules.get("policy") else "a node without --policy"
        who = f"client {node.get('partition-id', '?')}"
        raise Refused(f"{key} = {shown} is not allowed on {who}; {source} allows {allowed}")


def _spelled(settings: Values) -> dict[str, bool | int | float | str]:
    """Return the settings with ``-`` for ``_`` in their keys, because the app accepts both.

    Raises ``Refused`` if a key is there in both spellings.
    """
    spelled = {key.replace("_", "-"): value for key, value in settings.items()}
    if len(spelled) < len(settings):
        twice = next(key for key in settings if "_" in key and key.replace("_", "-") in settings)
        raise Refused(f"the run config has the key {twice!r} in two spellings")
    return spelled


def _violations(
    rules: Mapping[str, Any], settings: Values, node: Values
) -> Iterator[tuple[str, bool | int | float | str, str, str]]:
    """Yield key, value, rule and allowed values of each setting that breaks a rule."""
    k, known = node.get("partition-id", ""), rules["settings"]
    for key, value in _paths(settings, node, known["paths"]).items():
        rule = known["paths"][_general(key)]
        if value in known["words"].get(_general(key), ()):
            continue
        paths = _filled(str(value), k, _models(settings, node, known["names"]))
        if rule in rules and not all(_inside(path, rules[rule]) for path in paths):
            yield key, value, rule, _listed(rules[rule], "absolute paths inside ")
    for key, value in settings.items():
        if kind := known["names"].get(_general(key)):
            for text in _names(str(value)):
                name = _network(text) if kind == "models" else text
                if (rule := _rule_of(kind, name)) and not _allows(rules.get(rule), name):
                    yield key, text, rule, _listed(rules[rule])
        if key in known["downloads"] and value and not rules.get("download", True):
            yield key, value, "download", "false"
    yield from _limits(rules, settings)
    if rules.get("policy"):
        for key, value in settings.items():
            odd = isinstance(value, str) and re.search(r"[/\\~:]", value)
            if odd and _general(key) not in known["texts"]:
                yield key, value, "unknown keys", "no paths and modules"


def _limits(
    rules: Mapping[str, Any], settings: Values
) -> Iterator[tuple[str, bool | int | float | str, str, str]]:
    """Yield the violations of the rules for the method, the length of training and the privacy."""
    method = str(settings.get("method", ""))
    if method not in (methods := rules.get("methods", [method])):
        yield "method", method, "methods", _listed(methods)
    if (rounds := _number(settings, "rounds")) > (most := rules.get("max-rounds", rounds)):
        yield "rounds", rounds, "max-rounds", f"at most {most}"
    defaults = rules.get("epochs", {}).get(method)  # of the keys that a built-in method reads
    for key in rules["settings"]["epochs"] if defaults is None else defaults:
        epochs = _number(settings, key) or (defaults or {}).get(key, 0)
        if epochs > (most := rules.get("max-epochs", epochs)):
            yield key, epochs, "max-epochs", f"at most {most}"
    steps = _number(settings, "train.steps")
    if steps > (most := rules.get("max-steps", 0 if "max-epochs" in rules else steps)):
        yield "train.steps", steps, "max-steps", f"at most {most}"
    secure = rules.get("require") == "secure"
    for key, usual, needed in SECURE if secure else ():
        if (value := settings.get(key, usual)) != needed:
            yield key, value, "require", needed
    given = {"secure.fewest": FEWEST, **settings}
    if secure and not (fewest := _number(given, "secure.fewest")) >= FEWEST:
        yield "secure.fewest", fewest, "require", f"at least {FEWEST}"
    privacy = rules.get("privacy", {"mode": "off"})
    mode, z = settings.get("privacy.mode", "off"), _number(settings, "privacy.noise-multiplier")
    if mode not in (enough := STRICTER[privacy["mode"]]):
        yield "privacy.mode", mode, "privacy.mode", _listed(enough)
    if privacy["mode"] != "off" and not z >= (least := privacy["noise-multiplier"]):
        yield "privacy.noise-multiplier", z, "privacy.noise-multiplier", f"at least {least}"


def _paths(
    settings: Values, node: Values, rule_by_key: Mapping[str, str]
) -> dict[str, bool | int | float | str]:
    """Return the settings that name a path and that this node uses.

    As in ``Participant``, the node's own configuration precedes ``[node.K]``, which precedes the
    run's other settings.
    """
    k, used = node.get("partition-id"), dict[str, bool | int | float | str]()
    for leaf, key in PLACES.items():
        own = f"node.{k}.{leaf}"
        if node.get(leaf):
            continue
        if settings.get(own):
            used[own] = settings[own]
        elif leaf != "state-dir" or not os.environ.get(STATE_DIR):
            used[key] = settings.get(key, "")
    replaced = {*PLACES.values(), *(f"node.K.{leaf}" for leaf in PLACES)}
    for key in rule_by_key.keys() - replaced:
        own = key.replace("node.K.", f"node.{k}.")
        used[own] = settings.get(own, "")
    return {key: value for key, value in used.items() if value}


def _filled(path: str, k: object, models: Iterable[str]) -> list[str]:
    """Return ``path`` with each possible value of ``{k}`` and ``{model}``."""
    paths = [path.replace("{k}", str(who)) for who in (k, "server")]
    return [one.replace("{model}", model) for one in paths for model in models]


def _models(settings: Values, node: Values, names: Mapping[str, str]) -> list[str]:
    """Return the architectures of a run, without adapters, as they stand in file names."""
    values = [value for key, value in settings.items() if names.get(_general(key)) == "models"]
    texts = ",".join(map(str, [*values, node.get("model", "")]))
    return [ADAPTED.sub("", name).replace(":", "-") for name in _names(texts)] or [""]


def _inside(text: str, allowed: Sequence[str]) -> bool:
    """Return whether an absolute path is in one of the ``allowed`` ones, links resolved."""
    try:
        path = Path(text)
        return path.is_absolute() and any(
            path.resolve().is_relative_to(Path(place).resolve()) for place in allowed
        )
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null character
        return False


def _names(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name for item in text.split(",") if (name := item.strip())]


def _rule_of(kind: str, name: str) -> str:
    """Return the rule for a name of a kind of plug-in; empty for names that are not plug-ins."""
    module, colon, _ = name.partition(":")
    if colon:
        return "" if kind == "models" and module in FAMILIES else "modules"
    offered = {point.name for point in entry_points(group=f"fedmosaic.{kind}")}
    return "plugins" if name in offered else ""


def _network(spec: str) -> str:
    """Return the name of a network without width factor and adapters."""
    return ADAPTED.sub("", spec).partition("@")[0]


def _allows(rule: Sequence[str] | None, name: str) -> bool:
    """Return whether a rule for plug-ins has the name, or the module of ``module:attribute``."""
    return rule is None or name in rule or (":" in name and name.partition(":")[0] in rule)


def _number(settings: Values, key: str) -> float:
    """Return the number at ``key``, 0 without one; the app refuses values of another type."""
    value = settings.get(key, 0)
    return 0 if isinstance(value, str) else value


def _general(key: str) -> str:
    """Return the key with ``K`` for the client's number or ``NAME``, as in the tables."""
    return re.sub(r"^profile\.[\w-]+\.", "profile.NAME.", re.sub(r"^node\.\d+\.", "node.K.", key))


def _listed(values: Iterable[object], what: str = "") -> str:
    texts = ", ".join(map(str, values))
    return f"{what}{texts}" if texts else "none"
