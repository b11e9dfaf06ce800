"""Run the SuperNode of client k on its machine, with its key, settings and files."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import filelock

from client_app.node import KINDS, check
from common.settings.section import Value
from deploy.flower import pinned, rules, warm
from deploy.flower.processes import Processes, environment, executable
from deploy.machines.certificates import Certificates
from deploy.run.grpc import node_config, supernode_command

INSTALLED = "installed"  #: value of --app-digest for the code of this installation
NONE: Mapping[str, str] = MappingProxyType({})
STUCK = 30  #: longest time in seconds for a SuperNode to end; gRPC sometimes hangs at exit


def lowest_free(folder: Path, clients: int) -> tuple[int, int]:
    """Return the lowest free client number k < ``clients``, and the descriptor of its lock.

    The replicas that share ``folder`` use different numbers. Programs inherit the descriptor. The
    operating system releases the lock when the last of them ends, also after a kill.

    Raises ``ValueError`` if all ``clients`` numbers are in use.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(clients):
        descriptor = os.open(folder / f"{k}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        if filelock.lock_descriptor(descriptor, blocking=False):
            os.set_inheritable(descriptor, True)
            return k, descriptor
        os.close(descriptor)
    raise ValueError(f"all {clients} clients in {folder} are taken: raise --clients or start fewer")


def settings(texts: Sequence[str]) -> dict[str, Value]:
    """Return ``key=value`` texts as a node config, with values in the types of their keys.

    Raises ``ValueError`` for a text without ``=``, an unknown key or a value that is not allowed.
    """
    config: dict[str, Value] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ValueError(f"--set {text!r} is not key=value, such as --set model=resnet8")
        config[key] = _typed(key, value.strip("\"'"))
    check(config)
    return config


def _typed(key: str, text: str) -> Value:
    """Return ``text`` in the key's type, paths absolute; unchanged if ``check`` will refuse it."""
    kind = KINDS.get(key, str)
    place = key.endswith("-dir") or key in ("key", "ca")
    if place and text:  # the SuperNode runs in another folder
        return str(Path(text).expanduser().absolute())
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    return int(text) if kind is int and text.lstrip("-").isdecimal() else text


def check_here(more: Mapping[str, Value]) -> None:
    """Raise ``ValueError`` for settings that are not possible on this machine.

    Otherwise only the census detects them, and stops the complete run.
    """
    from common import models
    from common.settings import plugins  # imports torch, which takes a second
    from common.training import device

    if "model" in more and not plugins.is_reference(str(more["model"])):
        models.parse(str(more["model"]))  # a module may arrive with the run
    if "device" in more:
        device.choose(str(more["device"]))
    for key in ("data-dir", "public-dir"):
        if key in more and not Path(str(more[key])).is_dir():
            raise ValueError(f"node config {key} = {more[key]!r}; it must be a folder that exists")
    if "state-dir" in more:
        folder = Path(str(more["state-dir"]))
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"node config state-dir = {str(folder)!r}: {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise ValueError(f"node config state-dir = {str(folder)!r} cannot be written")


def command(
    superlink: str,
    trust: Certificates | None,
    k: int,
    clients: int,
    more: Mapping[str, Value],
    health: str = "",
) -> list[str]:
    """Return the command line of client k's SuperNode.

    ``health``: ``host:port`` of a gRPC health service; empty for none. Raises ``ValueError`` for a
    key, certificate or setting that cannot work on this machine.
    """
    check_here(more)
    for path in () if trust is None else (trust.ca, trust.key(k)):
        if not os.access(path, os.R_OK):
            reason = "cannot be read" if path.exists() else "is missing"
            raise ValueError(f"{path} {reason}; client {k} needs it (see fedmosaic certs)")
    line = [*supernode_command(superlink, node_config(k, clients, more, trust), trust, k)]
    return [*line, "--health-server-address", health] if health else line


def pin(text: str) -> str:
    """Return the digest given as ``--app-digest`` in lower case; empty if ``text`` is empty.

    ``installed``: the digest of this installation's code. Raises ``ValueError`` if it is not a
    digest.
    """
    if text == INSTALLED:
        from deploy.flower.bundle import digest
        from deploy.run.settings import DEFAULT, read

        return digest(read(DEFAULT, []).shipped())
    if text and not re.fullmatch("[0-9a-f]{64}", text.lower()):
        raise ValueError(
            f"--app-digest {text!r} is not allowed; it should be 64 hex digits, as fedmosaic "
            f"app-digest prints them, or {INSTALLED}"
        )
    return text.lower()


def guards(
    digest: str, policy: Path | None, more: dict[str, Value], *, sealed: bool
) -> dict[str, str]:
    """Return the environment variables of a SuperNode that checks bundles and run configs.

    ``digest``: the only app bundle that it accepts; empty to accept any. ``policy``: the owner's
    policy file. ``more``: the node's settings; they get the policy's ``server-keys``. ``sealed``:
    whether the node has a key.

    Raises ``ValueError`` for a wrong policy, or for one without a digest.
    """
    from deploy.machines import policy as policies

    chosen = None
    if policy is not None:
        if not digest:
            raise ValueError(
                f"--policy {policy} needs --app-digest: code that is not pinned could ignore it"
            )
        chosen = policies.read(policy)
        if chosen.server_keys and not sealed:
            raise ValueError(f"--policy {policy}: server-keys needs --ca, not --insecure")
        if chosen.server_keys:
            more["server-keys"] = ",".join(chosen.server_keys)
    allowed = json.dumps(policies.rules(chosen, more))
    return {rules.RULES: allowed} | ({pinned.PIN: digest} if digest else {})


def become(line: Sequence[str], home: Path, guard: Mapping[str, str] = NONE) -> NoReturn:
    """Replace this process by the SuperNode, with the same process id and output.

    ``guard``: variables of ``guards``; without them, the SuperNode accepts any bundle and run.
    """
    home.mkdir(parents=True, exist_ok=True)
    env = environment(guard, home)
    if guard:
        folder = warm.pinning(home / "bin").parent
        env["PATH"] = os.pathsep.join([str(folder), env["PATH"]])
    os.chdir(home)  # it has no modules that a ClientApp could import
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(executable(line[0]), list(line), env)


def serve(line: Sequence[str], home: Path, guard: Mapping[str, str] = NONE) -> int:
    """Run the SuperNode with client processes forked from a warm process; return the exit status.

    SIGTERM and SIGINT end both. ``guard``: as in ``become``.
    """
    fallback = {pinned.PROGRAM: warm.pinning(home / "bin")} if guard else {}
    with Processes(home, quiet=False) as processes, warm.stand_ins(fallback) as folder:
        env = environment(guard, home)
        warm.start(processes, folder, env)
        while not warm.ready(processes, folder):
            time.sleep(0.1)
        path = os.pathsep.join([str(folder), env["PATH"]])
        processes.start("supernode", line, {**env, "PATH": path})
        supernode = processes.started["supernode"]

        def stop(*_: object) -> None:
            supernode.terminate()
            signal.alarm(STUCK)

        signal.signal(signal.SIGALRM, lambda *_: supernode.kill())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        status = supernode.wait()
    return status if status >= 0 else 128 - status
