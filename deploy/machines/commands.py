"""Commands of ``fedmosaic`` for separate machines, from ``certs`` to ``local``."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.console import (
    INTERRUPTED,
    Experiment,
    LogFormat,
    LogLevel,
    Settings,
    WarmStart,
    answer,
    checked_folder,
    log_as,
    out,
    plain,
    red,
    resolved,
)

if TYPE_CHECKING:
    from common.settings.section import Value
    from deploy.flower.certificates import Connection
    from deploy.flower.control import Control

HOLD_PATIENCE = 2.0  #: seconds to wait for the end of a federation that was just stopped
HERE = "127.0.0.1:9093"  #: the Control API of a SuperLink on this machine
ANY_CODE = (
    "warning: this node runs any code that the SuperLink sends; --app-digest installed allows only "
    "the code that is installed here"
)


def _finite(wait: float) -> float:
    if not math.isfinite(wait):
        raise ValueError(f"--wait {wait} is not allowed; it should be a number of at least 0")
    return wait


Ca = Annotated[
    Path | None, typer.Option("--ca", help="Certificate of the authority: certs/ca.crt.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS, for tests only.")]
ControlApi = Annotated[
    str, typer.Option("--superlink", metavar="HOST:PORT", help="The SuperLink's Control API.")
]
NodeSettings = Annotated[
    list[str] | None,
    typer.Option(
        *("-s", "--set"),
        metavar="KEY=VALUE",
        help="Setting of this node: model, device, threads, memory-mb, data-dir, state-dir, …",
    ),
]
FleetApi = Annotated[
    str, typer.Option("--superlink", metavar="HOST:PORT", help="The SuperLink's Fleet API.")
]
ClientCount = Annotated[int, typer.Option(min=1, help="Number of clients in the federation.")]
ClientNumber = Annotated[
    int | None, typer.Option("--k", min=0, envvar="FEDMOSAIC_K", help="Number of this client.")
]
Replicas = Annotated[
    Path | None,
    typer.Option("--replicas", "--seats", help="Use the lowest free client number in this folder."),
]
KeyFolder = Annotated[
    Path | None, typer.Option(help="Folder with K.key; default: clients next to --ca.")
]
Home = Annotated[Path | None, typer.Option(help="Flower's files; default: ~/.fedmosaic/nodes/K.")]
Health = Annotated[str, typer.Option(help="HOST:PORT for a gRPC health service.")]
AppDigest = Annotated[
    str,
    typer.Option(
        "--app-digest",
        metavar="HEX",
        help="Run only the code with this digest (fedmosaic app-digest); `installed`: only the "
        "code of this installation.",
    ),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What a run may do on this machine (docs/owner.md); needs --app-digest.",
    ),
]
Retry = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="After an error wait so long and try again, instead of ending; meanwhile --health "
        "reports the error.",
    ),
]
Keys = Annotated[list[Path], typer.Argument(help="Public keys, or folders of *.pub.")]
RevokedList = Annotated[
    Path | None,
    typer.Option(
        "--revoked", metavar="FILE", help="List of revoked keys; default: revoked beside each key."
    ),
]
Wait = Annotated[
    float,
    typer.Option(min=0, callback=_finite, help="Longest wait for the SuperLink in seconds."),
]


def certs(
    folder: Annotated[str, typer.Argument(help="Folder of the files.")] = "certs",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server for clients; repeatable."),
    ] = None,
    clients: Annotated[
        int, typer.Option(min=0, max=100_000, help="Number of clients that need a key pair.")
    ] = 0,
    days: Annotated[
        int, typer.Option(min=1, max=36_500, help="Validity of the certificates in days.")
    ] = 365,
    client: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=FILE",
            help="Public key that client K made with fedmosaic keygen; repeatable.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --client: replace other public keys.")
    ] = False,
) -> None:
    """Make an authority and certificates for server and ServerApp, and collect clients' keys.

    A client makes its key with `keygen` and sends its public half, which `--client` takes.
    `--clients` makes key pairs here, for clients that have no public key yet.
    """
    from deploy.flower.certificates import make

    if not folder.strip():  # as a path it would be the current folder
        raise ValueError(f"certs {folder!r} is not allowed; it should be a folder")
    checked_folder(Path(folder), "certs")
    files = make(Path(folder), host or [], clients, days, _by_client(client or []), replace)
    _warn_of_expiry(files.ca)
    plain(f"authority      {files.ca}  (public: for the server and all clients)")
    plain(f"authority key  {files.ca_key}  (secret: keep it on this machine)")
    plain(f"server         {files.server}, {files.server_key}  (secret)")
    plain(f"ServerApp      {files.app}, {files.app_key}  (secret: not for the SuperLink)")
    if keys := _in_order(files.clients, "*.key"):
        plain(
            f"{len(keys)} clients      {keys[0]} … {keys[-1].name}  (secret: one per client), "
            "*.pub (register them)"
        )
    pairs = {path.stem for path in keys}
    public = [path for path in _in_order(files.clients, "*.pub") if path.stem not in pairs]
    if public:
        plain(
            f"{len(public)} clients      {public[0]} … {public[-1].name}  (public, register them; "
            "the private keys are elsewhere)"
        )
    if files.roster.is_file():
        plain(f"roster         {files.roster}  (public: for all clients, beside {files.ca.name})")
    paths = {"ca": files.ca, "ca_key": files.ca_key, "server": files.server}
    paths |= {"server_key": files.server_key, "serverapp": files.app}
    answer({**paths, "serverapp_key": files.app_key, "client_keys": keys, "public_keys": public})


def keygen(
    k: Annotated[int, typer.Option("--k", min=0, max=99_999, help="Number of this client.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder of the key; node finds it there, or in --keys.")
    ] = Path("certs/clients"),
) -> None:
    """Make the key pair of a client on its own machine; the private half stays there."""
    from deploy.flower.certificates import make_key

    checked_folder(folder, "keygen")
    files, digest = make_key(folder, k)
    public = files.public(k)
    plain(
        f"{public} {digest}: send this file to the server's operator, who runs: "
        f"fedmosaic certs --client {k}={public.name}"
    )
    answer({"key": files.key(k), "public": public, "fingerprint": digest})


def register(
    keys: Keys,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
    revoked: RevokedList = None,
) -> None:
    """Allow SuperNodes with these keys to connect; registered keys stay registered.

    A revoked key is refused.
    """
    from deploy.flower.control import Unregistered

    files = _public_keys(keys)
    barred = _revoked(files, revoked)
    for path, line in barred.items():
        if path in keys:
            raise ValueError(line)
    new, final = 0, list(barred.values())
    with _control(_connection(at, ca, insecure), wait) as control:
        for path in files:
            if path in barred:
                continue
            try:
                new += control.register(path)
            except Unregistered as error:
                if path in keys:
                    raise
                final.append(str(error))  # the folder still has the key of an unregistered client
    already = len(files) - new - len(final)
    out.print(f"{new} of {len(files)} keys registered, {already} were registered already")
    for line in final:
        plain(line)
    answer({"keys": len(files), "registered": new, "already": already, "final": final})


def unregister(
    keys: Keys,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
    revoked: RevokedList = None,
) -> None:
    """Revoke these keys, for example after a theft: no SuperLink and no ServerApp accepts them.

    This is final: the client needs a new key to connect again. The ServerApp reads the list of
    revoked keys in FEDMOSAIC_TRUST/clients/revoked.
    """
    from deploy.flower.certificates import revoke

    files = _public_keys(keys)
    lists: dict[Path, list[Path]] = {}
    for path in files:
        lists.setdefault(_revoked_list(path, revoked), []).append(path)
    with _control(_connection(at, ca, insecure), wait) as control:
        added = sum(revoke(place, paths) for place, paths in lists.items())
        count = sum(control.unregister(path) for path in files)
    out.print(f"{count} of {len(files)} keys unregistered, {len(files) - count} were unknown")
    plain(f"{added} keys added to {', '.join(map(str, lists))}, which the ServerApp must have")
    answer({"keys": len(files), "unregistered": count, "revoked": added, "lists": [*lists]})


def stop(
    run: Annotated[int | None, typer.Argument(help="Run number, printed by submit.")] = None,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
) -> None:
    """Stop a run; without a number, list the active runs with their experiments."""
    with _control(_connection(at, ca, insecure), wait) as control:
        running = control.running()
        if run in running:
            control.stop(run)
    names = {i: f"{i} ({name})" if name else str(i) for i, name in running.items()}
    listed = ", ".join(names.values()) or "none"
    if run is not None and run not in running:
        raise ValueError(f"run {run} is not active at {at}; active runs: {listed}")
    plain(f"active runs: {listed}" if run is None else f"run {names[run]} is stopped")
    others = [other for other in running if other != run]
    answer({"running": others, "experiments": running, "stopped": run})


def submit(
    experiment: Experiment = None,
    settings: Settings = None,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from out's checkpoint.")] = False,
    if_any: Annotated[
        bool, typer.Option("--resume-if-any", help="Resume if out has a checkpoint, else start.")
    ] = False,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run an experiment on a SuperLink and the clients connected to it."""
    log_as(log_format, log_level)
    from deploy.flower.bundle import digest
    from deploy.machines import submit as sending
    from deploy.run import progress
    from deploy.settings import app_folder

    flat = resolved(experiment, settings)
    flat = sending.prepared(flat, resume, if_any)
    started = time.time()
    if if_any and flat["resume"] and sending.done(flat):
        plain(f"{flat['out']} already contains the complete run")
        result = progress.show(Path(str(flat["out"])), out)
        answer({"run": None, **result})
        return
    _print_notes(flat)
    link = _connection(at, ca, insecure)
    with _control(link, wait) as control:
        plain(f"app digest {(app_code := digest(flat))}")
        run = control.submit(app_folder(), flat, {})
        name = "resumes from its checkpoint" if flat["resume"] else flat["experiment"]
        try:
            out.print(f"[bold]run {run}[/]: {name}", highlight=False)
            status = control.follow(run, sending.without_tracebacks(plain), patience=wait)
        except KeyboardInterrupt:
            line = shlex.join(["fedmosaic", "stop", str(run), *link.options])
            red("detached", f": the run continues; stop it with: {line}")
            raise typer.Exit(INTERRUPTED) from None
    if status.failure:
        again = ["fedmosaic", "submit", *([str(experiment)] if experiment else [])]
        for setting in settings or []:
            if setting.partition("=")[0].strip() not in ("out", "from-round"):
                again += ["-s", setting]
        again += link.options
        raise RuntimeError(sending.stopped(status.failure, run, flat, again))
    sent, received = status.bytes_sent, status.bytes_received
    out.print(f"completed; {sent:,} bytes to the clients, {received:,} from them")
    result = {"run": run, "app_digest": app_code, "bytes_sent": sent, "bytes_received": received}
    answer({**result, **progress.show_if_here(flat, started, out)})


def app_digest(experiment: Experiment = None, settings: Settings = None) -> None:
    """Print the digest of the code that `submit` sends, for `node --app-digest`.

    It is equal on all machines with the same version. Your own modules and `[node.K]` tables change
    it.
    """
    from deploy.flower.bundle import digest
    from deploy.settings import DEFAULT, read

    experiment_digest = digest(read(experiment or DEFAULT, settings or []).shipped())
    plain(experiment_digest)
    answer({"app_digest": experiment_digest})


def app(
    folder: Annotated[Path, typer.Argument(help="New folder for the app.")],
    experiment: Experiment = None,
    settings: Settings = None,
) -> None:
    """Write an experiment as an app for plain `flwr run`, with your own modules in it."""
    from deploy.flower.bundle import write_app
    from deploy.machines import submit as sending
    from deploy.run.preflight import counted

    checked_folder(folder, "app")
    flat = counted(resolved(experiment, settings), data_here=False)
    flat = sending.prepared(flat, False, False)
    flat |= {"experiment": "", "runtime": ""}  # each run is one of its own
    _print_notes(flat)
    written = write_app(folder, flat)
    clients = f'--federation-config "num-supernodes={flat["clients"]}"'
    plain(f"run it with: flwr run {written} local {clients} --stream")
    answer({"app": written})


def node(
    superlink: FleetApi,
    clients: ClientCount,
    k: ClientNumber = None,
    replicas: Replicas = None,
    ca: Ca = None,
    keys: KeyFolder = None,
    insecure: Insecure = False,
    more: NodeSettings = None,
    home: Home = None,
    health: Health = "",
    digest: AppDigest = "",
    policy: PolicyFile = None,
    warm: WarmStart = None,
    retry: Retry = 0,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Serve one client on this machine: a flower-supernode with its key and settings."""
    from deploy.machines.node import PRINTED, retry_on_error

    if PRINTED not in os.environ:  # otherwise the first start converts the lines of this one too
        log_as(log_format, log_level)
    with retry_on_error(health, retry) if retry else contextlib.nullcontext():
        from common.files import home as user_home
        from deploy.flower.certificates import Certificates, address
        from deploy.flower.owner.admission import await_admission, check_tls
        from deploy.flower.warm import hand_over
        from deploy.machines import node as serving

        if warm and sys.platform != "linux":
            raise ValueError(f"--warm-start needs Linux, not {sys.platform}")
        if health:
            address(health, "--health")
        pin, link = serving.pin(digest), _connection(superlink, ca, insecure)
        if home is not None:
            checked_folder(home, "--home")
        k = _client_number(k, replicas, clients)
        trust = None
        if link.ca is not None:
            folder = keys.expanduser().resolve() if keys else None
            trust = Certificates(link.ca.parent, folder, link.ca)
        own = serving.settings(more or [])
        peers = bool(own.get("roster")) or (trust is not None and trust.roster.is_file())
        guard = serving.guards(pin, policy, own, sealed=trust is not None, roster=peers)
        guard |= {"FLWR_LOG_LEVEL": "DEBUG"} if log_level == "debug" else {}
        line = serving.command(link.address, trust, k, clients, own, health)
        place = (home or user_home() / ".fedmosaic" / "nodes" / str(k)).expanduser().resolve()
        serving.check_home(place)
        if PRINTED not in os.environ:  # the first start
            plain(f"client {k} of {clients} for {superlink}")
        if not pin:
            plain(ANY_CODE)
        check_tls(link.address, trust is not None)
        with serving.waiting(health) as report:
            await_admission(link.address, trust, k, report)
        if warm or (warm is None and sys.platform == "linux"):
            hand_over(line, place, guard)
        serving.become(line, place, guard)


def _client_number(k: int | None, replicas: Path | None, clients: int) -> int:
    """Return ``k``, or the lowest free number in ``replicas``; raise ``ValueError`` without any."""
    from deploy.machines.node import lowest_free

    if (k is None) == (replicas is None):
        raise ValueError("the client's number is missing: pass either --k K or --replicas FOLDER")
    if replicas is not None:
        k, _ = lowest_free(checked_folder(replicas, "--replicas"), clients)
    assert k is not None
    if k >= clients:
        raise ValueError(
            f"--k {k} is not allowed; with --clients {clients} it is 0 to {clients - 1}"
        )
    return k


def local(
    experiment: Annotated[
        Path | None, typer.Argument(help="Run this and exit; without it, wait for submitted runs.")
    ] = None,
    settings: Settings = None,
    clients: Annotated[int, typer.Option(help="Number of SuperNodes; 0: the run's clients.")] = 0,
    work: Annotated[Path, typer.Option(help="Logs, certificates, Flower's files.")] = Path("local"),
    insecure: Insecure = False,
    warm: WarmStart = None,
) -> None:
    """Start a SuperLink and its SuperNodes on this machine, with TLS and authentication."""
    from deploy.flower.certificates import Connection, make
    from deploy.machines import submit as sending
    from deploy.run import launch, progress
    from deploy.run.grpc import start_federation
    from deploy.run.preflight import counted, preflight
    from deploy.settings import app_folder
    from server_app.storage.summary import place as results

    flat = resolved(experiment, settings)
    flat = counted({**flat, "clients": clients or flat["clients"]})
    flat = sending.prepared(flat, False, False)
    if experiment is not None:
        preflight(flat)
        _print_notes(flat)
    count = int(flat["clients"])
    place = checked_folder(work, "--work")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone(place))
        files = None if insecure else make(place / "certs", [], count)
        if files is not None:
            _warn_of_expiry(files.ca)
            if missing := [k for k in range(count) if not files.key(k).is_file()]:
                pair = f"{files.key(missing[0])} is missing, but its public half exists"
                raise ValueError(f"{pair}: put it back, or delete {missing[0]}.pub for a new pair")
        env = {"OMP_NUM_THREADS": str(flat["threads"])}
        start = start_federation(app_folder(), count, place, env, warm, files)
        federation = stack.enter_context(start)
        plain(f"{count} clients are connected; logs are in {place / 'logs'}")
        if experiment is None:
            link = Connection(federation.control.address, files and files.ca)
            plain("submit runs from another terminal (Ctrl-C here stops the federation):")
            plain(f"  {shlex.join(['fedmosaic', 'submit', *link.options])}")
            try:  # until Ctrl-C, SIGTERM or the death of the SuperLink
                federation.processes.wait(lambda: False, "the end", float("inf"))
            except KeyboardInterrupt:
                plain("ended")
            return
        folder, started = results(str(flat["out"]), str(flat["experiment"])), time.time()
        with launch.with_remedy(folder, started):
            run, show = federation.submit(flat), sending.without_tracebacks(plain)
            status = federation.control.follow(run, show, launch.finished(folder, started))
            if status.failure:
                raise RuntimeError(status.failure)
    answer(progress.show_if_here(flat, started, out))


def _print_notes(flat: Mapping[str, Value]) -> None:
    """Print notes on a run's plug-ins and on clients that do not train their fleet entries."""
    from common.parse import parse
    from deploy.flower.bundle import plugin_notes
    from deploy.run.preflight import unused_fleet
    from deploy.user_modules import UserModules

    for line in (
        *plugin_notes(flat, UserModules.of(flat), bundled=True),
        *unused_fleet(parse(flat)),
    ):
        plain(line)


def _alone(place: Path) -> contextlib.ExitStack:
    """Lock ``place`` against a second ``fedmosaic local`` until the returned stack is closed.

    The lock is on a folder below ``place``, because a run that writes to ``place`` locks ``place``.

    Raises ``ValueError`` if it is locked already, and ``OSError`` if the folder cannot be created.
    """
    from server_app.storage.lock import hold

    below, locked = place / "home", contextlib.ExitStack()
    below.mkdir(parents=True, exist_ok=True)
    try:
        locked.enter_context(hold(below, patience=HOLD_PATIENCE))
    except ValueError as error:
        raise ValueError(f"--work {place} is taken: {error}") from None
    return locked


@contextlib.contextmanager
def _control(link: Connection, wait: float) -> Iterator[Control]:
    """Yield the SuperLink's Control API after its first response, within ``wait`` seconds.

    Raises ``RuntimeError`` without a response, or if the SuperLink refuses a request.
    """
    import tempfile

    import grpc

    from common.flower.rpc import details
    from deploy.flower.control import Control

    with (
        tempfile.TemporaryDirectory(prefix="fedmosaic-") as work,
        Control(link.address, link.ca, Path(work)) as control,
    ):
        control.await_answer(wait)
        try:
            yield control
        except grpc.RpcError as error:
            raise RuntimeError(f"{link.address}: {details(error)}") from None


def _connection(superlink: str, ca: Path | None, insecure: bool) -> Connection:
    """Return the connection that these options describe, with warnings of what expires."""
    from deploy.flower.certificates import Connection

    connection = Connection.of(superlink, ca, insecure=insecure)
    if connection.ca is not None:
        _warn_of_expiry(connection.ca)
    return connection


def _warn_of_expiry(ca: Path) -> None:
    """Warn of certificates that expire: the authority's, and the server's in the same folder."""
    from common.exchange.seal.files import expiry_warnings

    for line in expiry_warnings([ca, *map(ca.with_name, ("server.crt", "serverapp.crt"))]):
        red("warning:", f" {line}")


def _by_client(texts: list[str]) -> dict[int, Path]:
    """Return the files in ``K=FILE`` texts by client; raise ``ValueError`` for another text."""
    files: dict[int, Path] = {}
    for text in texts:
        k, _, path = text.partition("=")
        if not re.fullmatch("[0-9]{1,5}", k) or not path:
            raise ValueError(f"--client {text!r} is not allowed; it should be K=FILE, as 2=2.pub")
        if int(k) in files:
            raise ValueError(f"--client {text!r}: client {int(k)} has two files; give it one")
        files[int(k)] = Path(path).expanduser()
    return files


def _revoked_list(key: Path, named: Path | None) -> Path:
    """Return the list of revoked keys: the named one, else the one beside the public key."""
    from common.exchange.seal.files import REVOKED

    return named or key.with_name(REVOKED)


def _revoked(files: list[Path], named: Path | None) -> dict[Path, str]:
    """Return the revoked files of ``files``, each with a line for the user."""
    from common.exchange.seal.files import fingerprint, read_revoked, ssh_public_key

    places = {path: _revoked_list(path, named) for path in files}
    lists = {place: read_revoked(place) for place in set(places.values())}
    return {
        path: f"{path} is revoked, see {place}: the client needs a new key"
        for path, place in places.items()
        if fingerprint(ssh_public_key(path)) in lists[place]
    }


def _public_keys(paths: list[Path]) -> list[Path]:
    """Return the files of public keys in ``paths``, which are files or folders.

    All files are read before the first is sent. Raises ``ValueError`` for a path that does not
    exist or is not a public key.
    """
    from deploy.flower.certificates import read_public_key

    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist; it should be a public key or a folder")
        files += (keys := _in_order(path, "*.pub") if path.is_dir() else [path])
        if not keys:
            raise ValueError(f"{path} has no *.pub; make keys with: fedmosaic keygen --k K")
    for file in files:
        read_public_key(file)
    return files


def _in_order(folder: Path, pattern: str) -> list[Path]:
    """Return the clients' files in ``folder`` in the order of the clients' numbers."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


COMMANDS = (certs, keygen, register, unregister, submit, app, app_digest, stop, local)
