"""Send an experiment to a SuperLink that runs elsewhere, and follow it to its real end."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from common.settings.config import Value
from common.settings.parse import parse
from deploy.machines.certificates import general_name
from server_app.storage.relative_paths import places

HOST_PORT = "HOST:PORT, such as fed.example.org:9092 or [::1]:9092, with a port of 1 to 65535"
_PORT = re.compile("[0-9]{1,5}")


def address(text: str, option: str = "--superlink") -> str:
    """``text`` if it is ``host:port``, an IPv6 address in brackets.

    Raises ``ValueError`` otherwise.
    """
    host, _, port = text.rpartition(":")
    if not _is_host(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65536:
        raise ValueError(f"{option} {text!r} is not allowed; it should be {HOST_PORT}")
    return text


def _is_host(text: str) -> bool:
    bracketed = text.startswith("[") and text.endswith("]")
    try:
        name = general_name(text[1:-1] if bracketed else text)
    except ValueError:
        return False
    return bracketed == isinstance(name.value, ipaddress.IPv6Address)


def prepared(flat: Mapping[str, Value], resume: bool, if_any: bool) -> dict[str, Value]:
    """The run config to send: complete, checked and named.

    ``if_any``: resume if ``out``, as a folder that this machine sees too, holds a checkpoint.
    Folders are those of the server's and the clients' machines, so nothing is looked for here.

    Raises ``ValueError`` for what no machine could run.
    """
    from deploy.run.preflight import check_names, counted, name_of  # it imports torch
    from server_app.storage import checkpoint

    flat = {**counted(flat, here=False), "runtime": "grpc"}
    for key in ("out", *places(flat)):
        if flat[key] and not Path(str(flat[key])).is_absolute():
            raise ValueError(f"{key} = {flat[key]!r} is relative; other machines need it absolute")
    if (resume or if_any) and not flat["out"]:
        option = "--resume-if-any" if if_any else "--resume"
        raise ValueError(f"{option} needs out, the folder of the results: -s out=/…")
    if if_any:
        resume = checkpoint.path_in(Path(str(flat["out"]))).exists()
    flat["resume"] = resume
    flat["experiment"] = flat["experiment"] or name_of(flat, alone=True)
    check_names(parse(flat, every=True))
    return flat


def done(flat: Mapping[str, Value]) -> bool:
    """Whether ``out``, which this machine sees too, holds this very run and it is complete.

    Raises ``ValueError`` if it holds a checkpoint of another configuration.
    """
    from server_app.storage import checkpoint  # it imports torch
    from server_app.storage.summary import complete

    folder = Path(str(flat["out"]))
    config = parse(flat)
    checkpoint.read(folder, config)
    return bool(complete(folder, config))


def without_tracebacks(put: Callable[[str], None]) -> Callable[[str], None]:
    """``put`` for the lines that are no part of a traceback: the last line says it better."""
    inside = False

    def filtered(line: str) -> None:
        nonlocal inside
        if line.startswith("Traceback (most recent call last)"):
            inside = True
        elif not inside:
            put(line)
        elif not line.startswith(" "):
            inside = False  # this was the exception itself

    return filtered
