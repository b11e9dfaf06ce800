"""The policy file of a node's owner, and the rules of a node with or without one.

``rules.py`` checks the rules. This module knows the settings and methods of this installation,
which that module must not import.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, final

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel, ConfigDict, Field

from common import keys, methods
from common.exchange.seal import files
from common.files import home, parse_toml, read_text
from common.parse import reads, tables, usual
from common.settings.marks import Mark, Names, Place, Value
from common.settings.plugins import ON_THE_SERVER, installed, nearest
from common.settings.section import kebab
from deploy.flower.owner.rules import STATE_DIR
from deploy.settings import checked

Text = Annotated[str, Field(min_length=1)]
Most = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """A table of the policy file. Field ``max_rounds`` is the key ``max-rounds``."""

    model_config = ConfigDict(
        alias_generator=kebab,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )


@final
class LeastPrivacy(Table):
    """Table [privacy]: the least differential privacy of a run."""

    mode: Literal["off", "central", "local"] = "off"
    """``central``: the run must have ``privacy.mode = "central"`` or ``"local"``. ``local``: it
    must be ``"local"``, so that no update leaves this machine without noise."""
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Least ``privacy.noise-multiplier`` z."""
    max_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Largest ε of this client's replies with local noise, over all runs, at δ = 1e-5; without the
    key, any."""


@final
class Policy(Table):
    """What a node's owner allows a run to do on the node."""

    methods: list[Text] | None = None
    """Allowed methods; without the key, all built-in ones."""
    data_dirs: list[Text] = []
    """Folders in which ``data.dir``, ``data.public-dir`` and the same keys of ``[node.K]`` may be,
    beside the node's own ``data-dir`` and ``public-dir``."""
    state_dirs: list[Text] = []
    """Folders in which ``state-dir`` of a run may be, beside the node's own."""
    weights: list[Text] = []
    """Files, or folders of files, that ``weights`` may name."""
    download: bool = False
    """Whether a run may download: ``data.download`` and ``pretrained``."""
    modules: list[Text] = []
    """Allowed ``module:attribute`` names; ``module`` alone allows all its attributes."""
    plugins: list[Text] = []
    """Allowed names of installed plug-ins."""
    max_rounds: Most | None = None
    """Most ``rounds`` of a run, and most rounds that the client answers over all runs; without the
    key, any number."""
    max_epochs: Most | None = None
    """Most epochs of a client in a round, in every setting that the method reads; without the key,
    any number."""
    max_steps: Most | None = None
    """Most ``train.steps``; without the key, 0 with ``max-epochs``, else any number."""
    server_keys: Annotated[list[Text], Field(min_length=1)] | None = None
    """ServerApps that may use this node: certificates (``serverapp.crt``), or the fingerprints of
    their public keys, SHA256:…. Without the key, every ServerApp of the authority."""
    require: Literal["", "secure"] = ""
    """``secure``: a run must have ``secure.mode = "on"`` with ``secure.threshold = "two-thirds"``
    and a ``secure.fewest`` of at least 3, and its node needs ``roster.pub``, so that
    no single update leaves without masks that hide it from the server."""
    privacy: LeastPrivacy = LeastPrivacy()


def read(path: Path) -> Policy:
    """Return the policy in a TOML file, with absolute paths.

    Paths are relative to the file's folder. Raises ``ValueError``, one line, for a file that cannot
    be read, an unknown key or a wrong value.
    """
    place = path.expanduser().resolve()
    try:
        content = parse_toml(read_text(place))
    except OSError as error:
        raise ValueError(f"--policy {path}: {error.strerror}") from None
    except ValueError as error:  # TOML, or text that is not UTF-8
        raise ValueError(f"--policy {path} is not TOML: {error}") from None
    policy = checked(Policy, content, f"--policy {path}")
    for name in policy.methods or ():
        if name not in (*methods.names(), *policy.plugins) and ":" not in name:
            hint = nearest(name, methods.names())
            raise ValueError(f"--policy {path}: methods has {name!r}, which is no method{hint}")
    if policy.privacy.noise_multiplier and policy.privacy.mode == "off":
        raise ValueError(
            f"--policy {path}: privacy.noise-multiplier = {policy.privacy.noise_multiplier:g} "
            "needs privacy.mode = central or local"
        )
    if policy.privacy.max_epsilon and policy.privacy.mode != "local":
        raise ValueError(
            f"--policy {path}: privacy.max-epsilon = {policy.privacy.max_epsilon:g} needs "
            "privacy.mode = local"
        )
    absolute = {
        name: [str(place.parent / Path(text).expanduser()) for text in getattr(policy, name)]
        for name in ("data_dirs", "state_dirs", "weights")
    }
    keys = [_fingerprint(path, place.parent, text) for text in policy.server_keys or ()]
    return policy.model_copy(update={**absolute, "server_keys": keys or None})


def rules(policy: Policy | None, node: Mapping[str, Value]) -> dict[str, Any]:
    """Return the rules of a node with the configuration ``node``, as ``rules.py`` checks them.

    Without a policy, folders and files that a run names must be in the node's own folders.
    """
    data = [str(node[key]) for key in ("data-dir", "public-dir") if node.get(key)]
    state = node.get("state-dir") or os.environ.get(STATE_DIR)
    states = [str(state or home() / ".fedmosaic" / "state")]
    known = settings()
    if policy is None:
        own = {"data-dirs": data, "state-dirs": states, "weights": [*data, *states]}
        return {**own, "settings": known}
    given = policy.model_dump(by_alias=True, exclude_none=True, exclude={"server_keys"})
    data, states = [*given["data-dirs"], *data], [*given["state-dirs"], *states]
    epochs = {name: _epochs(name) for name in methods.names()} if policy.max_epochs else {}
    more = {"data-dirs": data, "state-dirs": states, "epochs": epochs, "settings": known}
    return {**given, "policy": True, **more}


def settings() -> dict[str, Any]:
    """Return the tables of settings that the checks of a run config need, from the fields' marks.

    ``paths``: the rule that lists the allowed places, by key. ``words``: values of these that are
    no paths, by key. ``names``: the kind of plug-in by
    key. ``downloads`` and ``epochs`` (of clients): keys. ``texts``: keys of texts that may have any
    characters, beside those. Methods of installed packages count; one that cannot be imported does
    not, so that its texts must have no path.
    """
    fields = keys.fields({**keys.SHARED, **tables()})
    for name in installed("methods"):
        with contextlib.suppress(ValueError):
            fields |= keys.fields({name: methods.options(name)})
    places = {key: mark for key, f in fields.items() if (mark := keys.mark_of(Place, f))}
    names = {key: named.kind for key, f in fields.items() if (named := keys.mark_of(Names, f))}
    return {
        "paths": {key: mark.rule for key, mark in places.items() if mark.rule},
        "words": {key: list(mark.words) for key, mark in places.items() if mark.words},
        "names": {key: kind for key, kind in names.items() if kind not in ON_THE_SERVER},
        "downloads": keys.marked(Mark.DOWNLOAD, within=fields),
        "epochs": keys.marked(Mark.CLIENT_EPOCHS, within=fields),
        "texts": [*keys.marked(Mark.TEXT, within=fields), *places, *names],
    }


def _epochs(method: str) -> dict[str, int]:
    """Return the keys of a client's epochs that a built-in method reads, with their defaults."""
    fields, auto = keys.fields(tables()), methods.options(method).auto
    return {
        key: int(usual(key, fields[key], auto))
        for key in keys.marked(Mark.CLIENT_EPOCHS, within=fields)
        if reads(method, key)
    }


def _fingerprint(path: Path, folder: Path, text: str) -> str:
    """Return the fingerprint of a ServerApp's key, given as such or as a certificate's path."""
    if files.FINGERPRINT.fullmatch(text):
        return text
    try:
        certificate = files.read_certificate(folder / Path(text).expanduser())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "") or "it is not a certificate"
        raise ValueError(
            f"--policy {path}: server-keys has {text!r}: {why}; it should be the path of "
            "serverapp.crt, or a fingerprint SHA256:…"
        ) from None
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"--policy {path}: server-keys has {text!r}, no key on a NIST curve")
    return files.fingerprint(key)
