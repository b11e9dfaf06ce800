"""Run the SuperNode of client k on its machine, with its key, settings and files.

The command ``fedmosaic node`` checks all of them (``command``, ``guards``, ``check_home``). Its
process then becomes the SuperNode (``become``). With ``--retry`` an error does not
end the process, so that a container stays and its health state shows the reason.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import filelock
import grpc
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server

from client_app.node import FIELDS, check
from common import errors
from common.settings.section import Value, from_text, value_kind
from deploy.console import plain, red
from deploy.flower.certificates import Certificates
from deploy.flower.owner import pinned, rules
from deploy.flower.processes import environment
from deploy.run.grpc import node_config, supernode_command

INSTALLED = "installed"  #: value of --app-digest for the code of this installation
PRINTED = "FEDMOSAIC_REFUSED"  #: variable with the error that was printed before a restart
#: default of ``become``, which cannot be modified by accident
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


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
        key, equals, value = (side.strip() for side in text.partition("="))
        if not equals:
            raise ValueError(f"--set {text!r} is not key=value, such as --set model=resnet8")
        config[key] = _typed(key, value.strip("\"'"))
    check(config)
    return config


def _typed(key: str, text: str) -> Value:
    """Return ``text`` in the key's type, paths absolute; unchanged if ``check`` will refuse it."""
    kind = value_kind(FIELDS[key]) if key in FIELDS else str
    is_path = key.endswith("-dir") or key in ("key", "ca", "ledger", "roster")
    if is_path and text:  # the SuperNode runs in another folder
        return str(Path(text).expanduser().absolute())
    with suppress(KeyError, ValueError):
        return from_text(text, kind or str)
    return text


def check_here(own: Mapping[str, Value]) -> None:
    """Raise ``ValueError`` for settings that are not possible on this machine.

    Otherwise only the census detects them, and stops the complete run. ``own``: the node's own
    settings, by key. The folders of state and ledger are created.
    """
    from common import models
    from common.settings import plugins  # imports torch, which takes a second
    from common.training import device

    # Can this installation build the model and use the device?
    if "model" in own and not plugins.is_reference(str(own["model"])):
        models.parse(str(own["model"]))  # a module may arrive with the run
    if "device" in own:
        device.choose(str(own["device"]))
    # Does the client find its data, and may it read them?
    for key in ("data-dir", "public-dir"):
        if key in own and not Path(str(own[key])).is_dir():
            raise ValueError(f"node config {key} = {own[key]!r}; it must be a folder that exists")
        if key in own and not _readable(Path(str(own[key]))):
            raise ValueError(
                f"node config {key} = {own[key]!r}: user {os.getuid()} cannot read the folder"
            )
    # May it store its state and its ledger?
    for key in {"state-dir", "ledger"} & own.keys():
        folder = Path(str(own[key]))
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"node config {key} = {str(folder)!r}: {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise ValueError(f"node config {key} = {str(folder)!r} cannot be written")


def _readable(folder: Path) -> bool:
    """Return whether this user can list the folder and the folders in it."""
    return os.access(folder, os.R_OK | os.X_OK) and all(
        os.access(entry.path, os.R_OK | os.X_OK) for entry in os.scandir(folder) if entry.is_dir()
    )


def command(
    superlink: str,
    trust: Certificates | None,
    k: int,
    clients: int,
    own: Mapping[str, Value],
    health: str = "",
) -> list[str]:
    """Return the command line of client k's SuperNode.

    ``superlink``: ``host:port``. ``trust``: the certificates and keys; None for no encryption.
    ``clients``: number of clients of the federation. ``own``: the node's own settings.
    ``health``: ``host:port`` of a gRPC health service; empty for none.

    Raises ``ValueError`` for a key, certificate or setting that cannot work on this machine.
    """
    check_here(own)
    for path in () if trust is None else (trust.ca, trust.key(k)):
        if not os.access(path, os.R_OK):
            reason = "cannot be read" if path.exists() else "is missing"
            raise ValueError(f"{path} {reason}; client {k} needs it (see fedmosaic certs)")
    line = [*supernode_command(superlink, node_config(k, clients, own, trust), trust, k)]
    return [*line, "--health-server-address", health] if health else line


def pin(text: str) -> str:
    """Return the digest given as ``--app-digest`` in lower case; empty if ``text`` is empty.

    ``installed``: the digest of this installation's code. Raises ``ValueError`` if it is not a
    digest.
    """
    if text == INSTALLED:
        from deploy.flower.bundle import digest
        from deploy.settings import DEFAULT, read

        return digest(read(DEFAULT, []).shipped())
    if text and not re.fullmatch("[0-9a-f]{64}", text.lower()):
        raise ValueError(
            f"--app-digest {text!r} is not allowed; it should be 64 hex digits, as fedmosaic "
            f"app-digest prints them, or {INSTALLED}"
        )
    return text.lower()


def guards(
    digest: str, policy: Path | None, own: dict[str, Value], *, sealed: bool, roster: bool = False
) -> dict[str, str]:
    """Return the environment variables of a SuperNode that checks bundles and run configs.

    ``digest``: the only app bundle that it accepts; empty to accept any. ``policy``: the owner's
    policy file. ``own``: the node's settings, which this function changes: they get the policy's
    ``server-keys`` and limits of the client's ledger. ``sealed``: whether the node has a key;
    ``roster``: whether it has the keys of its peers.

    Raises ``ValueError`` for a wrong policy, or for one without a digest.
    """
    from deploy.flower.owner import policy as policies

    owner_policy = None
    if policy is not None:
        if not digest:
            raise ValueError(
                f"--policy {policy} needs --app-digest: code that is not pinned could ignore it"
            )
        owner_policy = policies.read(policy)
        if owner_policy.server_keys and not sealed:
            raise ValueError(f"--policy {policy}: server-keys needs --ca, not --insecure")
        if owner_policy.require == "secure" and not roster:
            needs = 'require = "secure" needs roster.pub beside --ca, or --set roster=FILE'
            raise ValueError(f"--policy {policy}: {needs}: else the server can play all peers")
        if owner_policy.server_keys:
            own["server-keys"] = ",".join(owner_policy.server_keys)
        if owner_policy.max_rounds:
            own["max-rounds"] = owner_policy.max_rounds
        if owner_policy.privacy.max_epsilon:
            own["max-epsilon"] = owner_policy.privacy.max_epsilon
    # The policy's limits and the node's settings together decide which run configs are accepted.
    allowed = json.dumps(policies.rules(owner_policy, own))
    return {rules.RULES: allowed} | ({pinned.PIN: digest} if digest else {})


def check_home(home: Path) -> None:
    """Make the folder ``home``; raise ``ValueError`` if files cannot be written there."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise ValueError(
            f"--home {home}: {error.strerror}; this client's code is unpacked there, so it must be "
            "a folder that can be written"
        ) from None


def become(line: Sequence[str], home: Path, guard: Mapping[str, str] = NO_VARIABLES) -> NoReturn:
    """Replace this process by the SuperNode, with the same process id and output.

    ``guard``: variables of ``guards``; without them, the SuperNode accepts any bundle and run.
    """
    env = environment(guard, home)
    os.chdir(home)  # it has no modules that a ClientApp could import
    # the new program does not know the buffers of this one
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(line[0], list(line), env)


@contextmanager
def retry_on_error(health: str, seconds: int) -> Iterator[None]:
    """Report an expected error of the block for ``seconds``, then start this program again.

    The new start has the error in its environment, so that it is printed once. A container then
    stays, and its health state shows the reason. ``health``: ``host:port`` of a gRPC health service
    that answers with the error, or empty.
    """
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        text = errors.report(error, errors.HOME)
        if os.environ.get(PRINTED) != text:
            red("error:", f" {text}; trying again every {seconds} s")
        with _unhealthy(health, text) if health else nullcontext():
            time.sleep(seconds)
        sys.stderr.flush()
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, PRINTED: text}
        )


@contextmanager
def waiting(health: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a reason to wait; health checks then fail with this reason.

    A new reason replaces the one before. After the block the address is free for the SuperNode's
    own health service. ``health``: ``host:port`` of a gRPC health service, or empty.
    """
    with ExitStack() as server:

        def report(reason: str) -> None:
            server.close()
            plain(reason)
            if health:
                server.enter_context(_unhealthy(health, reason))

        yield report


@contextmanager
def _unhealthy(address: str, text: str) -> Iterator[None]:
    """Answer every health check at ``address`` with the error ``text`` within the block."""

    class Refusing(HealthServicer):
        def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    server = grpc.server(ThreadPoolExecutor(1))
    add_HealthServicer_to_server(Refusing(), server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
