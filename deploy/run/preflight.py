"""Resolve a run's configuration, folder and name, and detect mistakes before the run starts."""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import client_app.methods
import server_app.methods
from common.data import divide, load, source
from common.data.batches import check_augment
from common.data.dataset import Dataset, fingerprint
from common.data.kinds import describe
from common.data.partition import rule
from common.data.shares import check_public, check_public_tests, check_share, for_testing, share
from common.extras import check_installed
from common.keys import marked, places
from common.parse import data_of, parse
from common.settings.config import AUTO, NATURAL, OWN, Config, Value, entries
from common.settings.marks import Mark
from common.techniques.public_set import OnPublicSet
from common.training import device
from common.training.task import Task, check_architectures, check_fleet, global_spec
from deploy.report.read import beside
from deploy.settings import RUNTIMES, load_run, typed
from server_app import callbacks
from server_app.clock.devices import Devices
from server_app.messaging.schedule import Schedule
from server_app.selection import rule_of
from server_app.storage import checkpoint
from server_app.tracking.tracker import check as check_trackers


def fresh(
    flat: Mapping[str, Value], runtime: str, out: Path | None
) -> tuple[dict[str, Value], Path]:
    """Return the complete run config of a new run, and its folder.

    The folder is ``out``, else that of the config, else a new one. ``runtime``: empty: that of the
    config, else loopback.

    Raises ``ValueError`` if the folder already contains a run.
    """
    resolved = counted(flat)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{_plain(resolved['method'])}-{_plain(resolved['data.name'])}-{stamp}"
    chosen = Path(str(resolved["out"])).expanduser() if resolved["out"] else None
    folder = (out or chosen or _unused(Path("runs") / name)).expanduser().resolve()
    if chosen and folder != chosen.resolve() and resolved["state-dir"] == str(chosen / "state"):
        resolved["state-dir"] = ""  # a copied config.toml names the other run's client states
    if checkpoint.path_in(folder).exists() or (folder / "journal.jsonl").exists():
        raise ValueError(f"{folder} holds a run already; go on with --resume or set another --out")
    resolved["out"] = str(folder)
    resolved |= _absolute(resolved)
    alone = any(key.endswith("state-dir") for key in places(resolved))
    resolved["experiment"] = resolved["experiment"] or name_of(resolved, alone)
    resolved["state-dir"] = resolved["state-dir"] or str(folder / "state")
    resolved["runtime"] = runtime or str(resolved["runtime"]) or RUNTIMES[0]
    return resolved, folder


def resumed(
    folder: Path,
    runtime: str,
    overrides: Iterable[str] = (),
    given: Mapping[str, Value] | None = None,
) -> tuple[dict[str, Value], Path]:
    """Return the run config with which the run in ``folder`` resumes, and the folder.

    Only settings with ``Mark.FREE`` may differ. ``runtime``: empty: that of the run so far.
    ``overrides``, ``given``: as for ``Experiment``.

    Raises ``ValueError`` if ``folder`` contains no run to resume, or for another ``out`` or method.
    """
    folder = folder.expanduser().resolve()
    if not (folder / "config.toml").exists():
        why = "no config.toml there, so no run to resume"
        raise ValueError(f"--resume {folder}: {why}{beside(folder)}")
    saved = load_run(folder)
    changed = typed(overrides, given or {}, str(saved["method"]))
    if "out" in changed and Path(str(changed["out"])).expanduser().resolve() != folder:
        raise ValueError(f"out = {changed['out']!r} is not allowed; the run goes on in {folder}")
    if (method := changed.get("method", saved.get("method"))) != saved.get("method"):
        raise ValueError(
            f"method = {method!r} is not allowed: the run in {folder} has method = "
            f"{saved.get('method')!r}, and a resumed run keeps it; start a new run without --resume"
        )
    flat = saved | changed | _absolute(changed, str(method))
    runtime = runtime or str(flat.get("runtime") or RUNTIMES[0])
    flat |= {"resume": True, "runtime": runtime, "out": str(folder)}
    return flat, folder


def check_names(config: Config) -> None:
    """Raise a one-line ``ValueError`` for an unknown name or an invalid plug-in.

    Architectures, data set, partition and method are checked, without reading the data, which may
    be on other machines.
    """
    check_architectures(config)
    source(config.data.name), rule(config.data.partition)
    server_app.methods.half(config.run.method), client_app.methods.half(config.run.method)


def unused_fleet(config: Config) -> list[str]:
    """Return a line to print before a run whose clients do not train their fleet entries."""
    run, half = config.run, client_app.methods.half(config.run.method)
    one = len(config.brought) == 1 and run.global_model in ("smallest", *config.brought)
    if one or half.trains_own(config):
        return []
    schemes = [name for name in getattr(config.method, "schemes", ()) if name != "none"]
    other = "another method, such as fedorion or fedmd (fedmosaic list methods)"
    remedy = f"set average.across to one of {', '.join(schemes)}" if schemes else f"choose {other}"
    return [
        f'method = "{run.method}": every client trains the global architecture (global-model = '
        f'"{run.global_model}"), not its fleet entry; for clients\' own architectures {remedy}'
    ]


def preflight(flat: Mapping[str, Value]) -> Config:
    """Return the parsed configuration of a run on this machine after checking it.

    Raises ``ValueError``, one line, for wrong keys or values, missing data, packages or devices,
    architectures that do not accept the data, or an impossible partition.
    """
    config = parse(flat, every=True)
    if config.run.from_round >= 0 and not config.run.resume:
        raise ValueError(f"from-round = {config.run.from_round} is for a resumed run: --resume")
    check_names(config)
    check_trackers(config.run.track)
    callbacks.named(config.run.callbacks)
    rule_of(config)
    Devices(config).check()
    if config.run.membership:
        Schedule(Path(config.run.membership), config.run.clients)
    if config.privacy.on:
        check_installed("dp_accounting")
    chosen = device.choose(config.run.device)
    dataset = for_testing(config.data, config.run.clients, config.partition_seed)
    check_augment(config.data.augment, dataset.x)
    task = Task.of(config, dataset, chosen)
    check_fleet(task)
    for spec in {*config.brought, global_spec(task)} if config.run.weights else ():
        task.check_weights(spec)
    _check_clients(config, dataset)
    return config


def _check_clients(config: Config, dataset: Dataset) -> None:
    """Raise ``ValueError`` for a client that cannot work on this machine.

    Its device or data are missing, its data do not fit the task of the server's ``dataset``, or its
    share is too small. With partition ``own`` two clients must not have the same data.
    """
    seed, owners = config.partition_seed, dict[str, str]()
    public = isinstance(config.method, OnPublicSet) or config.average.robust == "fltrust"
    if public:
        check_public_tests(config.data, config.run.clients, seed)
    separate = config.data.partition == OWN
    if separate and config.data.test == "merge":  # no client may train on the server's test samples
        owners[fingerprint(divide(config.data, seed).pool.x)] = "the server"
    checked = False  # whether a client without settings in [node.K] was checked
    for k in range(config.run.clients):
        node = config.node(k)
        if not node and not separate:
            check_share(config.data, k, config.run.clients, seed)
            if checked:
                continue
            checked = True
        for key in ("data-dir", "public-dir"):
            if key in node and not Path(str(node[key])).is_dir():
                raise ValueError(f"node.{k}.{key} = {node[key]!r} is not a folder")
        device.choose(str(node.get("device", config.run.device)))
        data = config.data_of(k, node)
        divide(data, seed)  # the public set too
        own = share(data, k, config.run.clients, seed)
        pool = own.pool
        if (pool.shape, pool.classes) != (dataset.shape, dataset.classes):
            raise ValueError(
                f"client {k} has {describe(pool.shape)} of {pool.num_classes} classes "
                f"({', '.join(pool.classes)[:80]}), the server {describe(dataset.shape)} of "
                f"{dataset.num_classes} ({', '.join(dataset.classes)[:80]})"
            )
        if public:
            check_public(data, own.test_set[0], f"client {k}", seed)
        if not separate:
            continue
        if (other := owners.setdefault(fingerprint(pool.x), f"client {k}")) != f"client {k}":
            raise ValueError(
                f"data.partition = {OWN!r}: client {k} has the same data as {other}; give each its "
                "own folder by {k} in data.dir, or by data-dir under [node.K]"
            )


def _absolute(flat: Mapping[str, Value], method: str = "") -> dict[str, Value]:
    """Return the folders as absolute paths, because Flower's processes have another cwd.

    ``method``: the run's, if ``flat`` does not name it.
    """
    return {key: str(Path(str(flat[key])).expanduser().resolve()) for key in places(flat, method)}


def counted(flat: Mapping[str, Value], *, data_here: bool = True) -> dict[str, Value]:
    """Return the run config with ``clients = 0`` replaced by the number of clients.

    It is the number of fleet entries, or of the data's owners if these are the clients.

    Raises ``ValueError`` for owners that cannot be counted because the data are on other machines.
    """
    clients, partition = flat["clients"], flat["data.partition"]
    if not clients and not data_here and partition == NATURAL:
        raise ValueError(
            f'clients = 0 is not allowed with data.partition = "{NATURAL}" where the data are '
            "on other machines; it should be the number of their owners: -s clients=N"
        )
    if not clients and data_here and partition in (NATURAL, AUTO):
        complete = {"samples": 0, "test_samples": 0}
        clients = load(data_of(flat).model_copy(update=complete)).owners
    return {**flat, "clients": clients or len(entries(str(flat["fleet"])))}


def name_of(flat: Mapping[str, Value], alone: bool) -> str:
    """Return a name of the experiment that depends only on the settings that decide its results.

    Clients store their private models under this name. ``alone``: add a random part, which a
    resumed run reads from its checkpoint. It is needed where the clients' folder remains after the
    run, because another run with the same settings must not find these models.
    """
    free = [key for key in marked(Mark.FREE, Mark.FREE_WITHOUT_COSINE) if "." not in key]
    text = json.dumps({key: value for key, value in sorted(flat.items()) if key not in free})
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    suffix = f"-{secrets.token_hex(4)}" if alone else ""
    names = f"{_plain(flat['method'])}-{_plain(flat['data.name'])}"[:60]
    return f"{names}-{digest}{suffix}"


def _plain(name: Value) -> str:
    """Return a name with only the characters that folder names need."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", str(name))


def _unused(path: Path) -> Path:
    candidates = [path, *(path.with_name(f"{path.name}-{i}") for i in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())
