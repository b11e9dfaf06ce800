"""The commands of ``fedmosaic`` for separate machines, from ``certs`` to ``local``."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.console import (
    INTERRUPTED,
    Experiment,
    Settings,
    WarmStart,
    answer,
    out,
    plain,
    red,
    resolved,
)

if TYPE_CHECKING:
    from deploy.flower.control import Control

HOLD_PATIENCE = 2.0  #: seconds; a federation that was just stopped needs them to end
HERE = "127.0.0.1:9093"  #: the Control API of a SuperLink on this machine


def _finite(wait: float) -> float:
    if not math.isfinite(wait):
        raise ValueError(f"--wait {wait} is not allowed; it should be a number of at least 0")
    return wait


Ca = Annotated[
    Path | None, typer.Option("--ca", help="Certificate of the authority: certs/ca.crt.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS: for trying out only.")]
ControlApi = Annotated[
    str, typer.Option("--superlink", metavar="HOST:PORT", help="Its Control API.")
]
NodeSettings = Annotated[
    list[str] | None,
    typer.Option(
        *("-s", "--set"),
        metavar="KEY=VALUE",
        help="The node's own: model, device, threads, memory-mb, data-dir, state-dir, …",
    ),
]
Keys = Annotated[list[Path], typer.Argument(help="Public keys, or folders of *.pub.")]
Wait = Annotated[
    float,
    typer.Option(min=0, callback=_finite, help="Seconds that the SuperLink may take to answer."),
]


def certs(
    folder: Annotated[str, typer.Argument(help="The folder where they go.")] = "certs",
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address under which clients reach the server; repeatable."),
    ] = None,
    clients: Annotated[int, typer.Option(help="Key pairs: one for each client.")] = 0,
    days: Annotated[int, typer.Option(help="How long certificates are valid.")] = 365,
) -> None:
    """Make an authority, certificates of server and ServerApp, and a key pair for each client."""
    from deploy.machines.certificates import make

    if not folder.strip():  # as a path it would be the current folder
        raise ValueError(f"certs {folder!r} is not allowed; it should be a folder")
    _folder(Path(folder), "certs")
    files = make(Path(folder), host or [], clients, days)
    plain(f"authority      {files.ca}  (public: server and all clients)")
    plain(f"its key        {files.ca_key}  (secret: keep it here)")
    plain(f"server         {files.server}, {files.server_key}  (secret)")
    plain(f"ServerApp      {files.app}, {files.app_key}  (secret: not for the SuperLink)")
    if made := _in_order(files.clients, "*.key"):
        plain(
            f"{len(made)} clients      {made[0]} … {made[-1].name}  (secret: each at its client), "
            "*.pub (register them)"
        )
    told = {"ca": files.ca, "ca_key": files.ca_key, "server": files.server}
    told |= {"server_key": files.server_key, "serverapp": files.app, "serverapp_key": files.app_key}
    answer({**told, "client_keys": made})


def register(
    keys: Keys,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
) -> None:
    """Let SuperNodes with these keys connect; keys that are registered already stay so."""
    from deploy.flower.control import Unregistered

    files = _public_keys(keys)
    new, final = 0, list[str]()
    with _control(at, ca, insecure, wait) as control:
        for path in files:
            try:
                new += control.register(path)
            except Unregistered as error:
                if path in keys:
                    raise
                final.append(str(error))  # the folder keeps the key of a client that has left
    already = len(files) - new - len(final)
    out.print(f"{new} of {len(files)} keys registered, {already} were already")
    for line in final:
        plain(line)
    answer({"keys": len(files), "registered": new, "already": already, "final": final})


def unregister(
    keys: Keys,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
) -> None:
    """Let SuperNodes with these keys never connect again, such as one whose key was stolen.

    This is final: a client that shall come back needs a new key.
    """
    files = _public_keys(keys)
    with _control(at, ca, insecure, wait) as control:
        gone = sum(control.unregister(path) for path in files)
    out.print(f"{gone} of {len(files)} keys unregistered, {len(files) - gone} were unknown")
    answer({"keys": len(files), "unregistered": gone})


def stop(
    run: Annotated[int | None, typer.Argument(help="Its number, as submit printed it.")] = None,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
) -> None:
    """Stop a run; without a number, say which runs go on."""
    with _control(at, ca, insecure, wait) as control:
        running = control.running()
        if run in running:
            control.stop(run)
    shown = ", ".join(map(str, running)) or "none"
    if run is not None and run not in running:
        raise ValueError(f"no run {run} goes on at {at}; those that do: {shown}")
    plain(f"runs that go on: {shown}" if run is None else f"run {run} is stopped")
    answer({"running": [each for each in running if each != run], "stopped": run})


def submit(
    experiment: Experiment = None,
    settings: Settings = None,
    at: ControlApi = HERE,
    ca: Ca = None,
    insecure: Insecure = False,
    wait: Wait = 60.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from out's checkpoint.")] = False,
    if_any: Annotated[
        bool, typer.Option("--resume-if-any", help="The same if there is one here, else begin.")
    ] = False,
) -> None:
    """Run an experiment on a SuperLink and the clients connected to it."""
    from deploy.flower.bundle import digest, told
    from deploy.machines import submit as sending
    from deploy.run import progress
    from deploy.run.settings import app_folder

    flat = resolved(experiment, settings)
    flat = sending.prepared(flat, resume, if_any)
    started = time.time()
    if if_any and flat["resume"] and sending.done(flat):
        plain(f"{flat['out']} holds the run already, complete")
        result = progress.show(Path(str(flat["out"])), out)
        answer({"run": None, **result})
        return
    for line in told(flat, bundled=True):
        plain(line)
    with _control(at, ca, insecure, wait) as control:
        plain(f"app digest {(sent_code := digest(flat))}")
        run = control.submit(app_folder(), flat, {})
        name = "goes on from its checkpoint" if flat["resume"] else flat["experiment"]
        try:
            out.print(f"[bold]run {run}[/]: {name}", highlight=False)
            status = control.follow(run, sending.without_tracebacks(plain), patience=wait)
        except KeyboardInterrupt:
            line = f"fedmosaic stop {run} --superlink {at} {_trust(ca)}"
            red("left", f": the run goes on; stop it with: {line}")
            raise typer.Exit(INTERRUPTED) from None
    if status.failure:
        raise RuntimeError(status.failure)
    sent, received = status.bytes_sent, status.bytes_received
    out.print(f"completed; {sent:,} bytes to the clients, {received:,} from them")
    result = {"run": run, "app_digest": sent_code, "bytes_sent": sent, "bytes_received": received}
    answer({**result, **progress.show_if_here(flat, started, out)})


def app_digest(experiment: Experiment = None, settings: Settings = None) -> None:
    """Print the digest of the code that `submit` sends, for `node --app-digest`.

    It is the same on every machine with the same version; modules of your own and `[node.K]` tables
    change it.
    """
    from deploy.flower.bundle import digest
    from deploy.run.settings import DEFAULT, read

    experiment_digest = digest(read(experiment or DEFAULT, settings or []).shipped())
    plain(experiment_digest)
    answer({"app_digest": experiment_digest})


def app(
    folder: Annotated[Path, typer.Argument(help="The folder that is made.")],
    experiment: Experiment = None,
    settings: Settings = None,
) -> None:
    """Write an experiment as an app for plain `flwr run`, with your own modules in it."""
    from deploy.flower.bundle import told, write_app
    from deploy.machines import submit as sending

    _folder(folder, "app")
    flat = sending.prepared(resolved(experiment, settings), False, False)
    flat |= {"experiment": "", "runtime": ""}  # each run is one of its own
    for line in told(flat, bundled=True):
        plain(line)
    written = write_app(folder, flat)
    clients = f'--federation-config "num-supernodes={flat["clients"]}"'
    plain(f"run it with: flwr run {written} local {clients} --stream")
    answer({"app": written})


def node(
    superlink: Annotated[
        str, typer.Option("--superlink", metavar="HOST:PORT", help="Its Fleet API.")
    ],
    clients: Annotated[int, typer.Option(min=1, help="How many clients the federation has.")],
    k: Annotated[int | None, typer.Option("--k", min=0, help="Which client this is.")] = None,
    replicas: Annotated[
        Path | None,
        typer.Option(
            "--replicas", "--seats", help="Be the lowest client that no replica sharing this is."
        ),
    ] = None,
    ca: Ca = None,
    keys: Annotated[
        Path | None, typer.Option(help="Folder with K.key; default: clients beside --ca.")
    ] = None,
    insecure: Insecure = False,
    more: NodeSettings = None,
    home: Annotated[
        Path | None, typer.Option(help="Flower's own files; default: ~/.fedmosaic/nodes/K.")
    ] = None,
    health: Annotated[str, typer.Option(help="HOST:PORT of a gRPC health service.")] = "",
    digest: Annotated[
        str,
        typer.Option(
            "--app-digest",
            metavar="HEX",
            help="Run only the code with this digest (fedmosaic app-digest).",
        ),
    ] = "",
    warm: WarmStart = None,
) -> None:
    """Serve one client on this machine: a flower-supernode with its key and settings."""
    from deploy.flower.admission import await_admission, check_tls
    from deploy.flower.warm import possible
    from deploy.machines import node as serving
    from deploy.machines.certificates import Certificates
    from deploy.machines.submit import address

    if (k is None) == (replicas is None):
        raise ValueError("say which client this is: either --k K or --replicas FOLDER")
    if warm and sys.platform != "linux":
        raise ValueError(f"--warm-start is for Linux, not {sys.platform}")
    if health:
        address(health, "--health")
    pin = serving.pin(digest)
    authority = _trusted(ca, insecure)
    if home is not None:
        _folder(home, "--home")
    if replicas is not None:
        k, _ = serving.lowest_free(_folder(replicas, "--replicas"), clients)
    assert k is not None
    if k >= clients:
        raise ValueError(
            f"--k {k} is not allowed; with --clients {clients} it is 0 to {clients - 1}"
        )
    trust = None
    if authority is not None:
        folder = keys.expanduser().resolve() if keys else None
        trust = Certificates(authority.parent, folder, authority)
    line = serving.command(
        address(superlink), trust, k, clients, serving.settings(more or []), health
    )
    place = (home or Path.home() / ".fedmosaic" / "nodes" / str(k)).expanduser().resolve()
    plain(f"client {k} of {clients} for {superlink}")
    check_tls(address(superlink), trust is not None)
    if trust is not None:
        await_admission(address(superlink), trust, k, plain)
    if possible() if warm is None else warm:
        raise typer.Exit(serving.serve(line, place, pin))
    serving.become(line, place, pin)


def local(
    experiment: Annotated[
        Path | None, typer.Argument(help="Run this and leave; without it, stay up for submits.")
    ] = None,
    settings: Settings = None,
    clients: Annotated[int, typer.Option(help="SuperNodes; default: what the run needs.")] = 0,
    work: Annotated[Path, typer.Option(help="Logs, certificates, Flower's files.")] = Path("local"),
    insecure: Insecure = False,
    warm: WarmStart = None,
) -> None:
    """Start a SuperLink and its SuperNodes on this machine, with TLS and authentication."""
    from deploy.flower.bundle import told
    from deploy.machines import submit as sending
    from deploy.machines.certificates import make
    from deploy.run import progress
    from deploy.run.grpc import start_federation
    from deploy.run.preflight import counted, preflight
    from deploy.run.settings import app_folder

    flat = resolved(experiment, settings)
    flat = counted({**flat, "clients": clients or flat["clients"]})
    flat = sending.prepared(flat, False, False)
    if experiment is not None:
        preflight(flat)
        for line in told(flat, bundled=True):
            plain(line)
    count = int(flat["clients"])
    place = _folder(work, "--work")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone(place))
        files = None if insecure else make(place / "certs", [], count)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        env = {"OMP_NUM_THREADS": str(flat["threads"])}
        start = start_federation(app_folder(), count, place, env, warm, files)
        federation = stack.enter_context(start)
        plain(f"{count} clients are connected; logs are in {place / 'logs'}")
        if experiment is None:
            trust = _trust(files and files.ca)
            plain("run something from another terminal (Ctrl-C here ends everything):")
            plain(f"  fedmosaic submit --superlink {federation.control.address} {trust}")
            try:  # until Ctrl-C, SIGTERM or the death of the SuperLink
                federation.processes.wait(lambda: False, "an end", float("inf"))
            except KeyboardInterrupt:
                plain("ended")
            return
        started = time.time()
        run = federation.submit(flat)
        status = federation.control.follow(run, sending.without_tracebacks(plain))
    if status.failure:
        raise RuntimeError(status.failure)
    answer(progress.show_if_here(flat, started, out))


def _alone(place: Path) -> contextlib.ExitStack:
    """Return what keeps a second ``fedmosaic local`` out of ``place`` until it is closed.

    What is held is a folder below it, since a run may write to ``place`` and holds that.

    Raises ``ValueError``: there is one already. ``OSError``: the folder cannot be made.
    """
    from server_app.storage.lock import hold

    below, held = place / "home", contextlib.ExitStack()
    below.mkdir(parents=True, exist_ok=True)
    try:
        held.enter_context(hold(below, patience=HOLD_PATIENCE))
    except ValueError as error:
        raise ValueError(f"--work {place} is taken: {error}") from None
    return held


@contextlib.contextmanager
def _control(superlink: str, ca: Path | None, insecure: bool, wait: float) -> Iterator[Control]:
    """The SuperLink's Control API, as soon as it answers, within ``wait`` seconds.

    Raises ``RuntimeError``: it does not answer, or refuses what it is asked.
    """
    import tempfile

    import grpc

    from common.flower.rpc import details
    from deploy.flower.control import Control
    from deploy.machines.submit import address

    with (
        tempfile.TemporaryDirectory(prefix="fedmosaic-") as work,
        Control(address(superlink), _trusted(ca, insecure), Path(work)) as control,
    ):
        control.await_answer(wait)
        try:
            yield control
        except grpc.RpcError as error:
            raise RuntimeError(f"{superlink}: {details(error)}") from None


def _folder(given: Path, option: str) -> Path:
    """``given``, absolute; raises ``ValueError`` if it is no folder and cannot become one."""
    place = given.expanduser().resolve()
    there = next(each for each in (place, *place.parents) if each.exists())
    if not there.is_dir():
        raise ValueError(f"{option} {given} is not allowed; {there} is not a folder")
    return place


def _trust(ca: Path | None) -> str:
    """The option that says whom to trust."""
    return "--insecure" if ca is None else f"--ca {ca}"


def _trusted(ca: Path | None, insecure: bool) -> Path | None:
    """The authority's certificate; raises ``ValueError`` for what is none."""
    from common.exchange.seal.files import read_certificate

    if (ca is None) == (not insecure):
        raise ValueError("say whom to trust: either --ca FILE (TLS) or --insecure")
    if ca is None:
        return None
    path = ca.expanduser().resolve()
    try:
        read_certificate(path)
    except (ValueError, OSError) as error:
        why = getattr(error, "strerror", "") or "it is no certificate"
        raise ValueError(f"--ca {ca}: {why}; it should be ca.crt of fedmosaic certs") from None
    return path


def _public_keys(given: list[Path]) -> list[Path]:
    """The files that are meant, all of them read before the first is sent.

    Raises ``ValueError``: one is not there, or is no public key.
    """
    from deploy.machines.certificates import read_public_key

    files: list[Path] = []
    for each in given:
        if not each.exists():
            raise ValueError(f"{each} does not exist; it should be a public key or their folder")
        files += (found := _in_order(each, "*.pub") if each.is_dir() else [each])
        if not found:
            raise ValueError(f"{each} holds no *.pub; make keys with: fedmosaic certs --clients N")
    for path in files:
        read_public_key(path)
    return files


def _in_order(folder: Path, pattern: str) -> list[Path]:
    """The files of clients in the order of their numbers."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


COMMANDS = (certs, register, unregister, submit, app, app_digest, stop, local)
