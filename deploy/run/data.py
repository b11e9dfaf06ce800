"""What a run reads before it trains: for ``fedmosaic data``, a run's start, and its report."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rich.console import Console
from rich.table import Table as Lines
from rich.text import Text

from common.data import load
from common.data.overview import Overview, clients_of, overview
from common.data.shares import Share, share
from common.parse import parse
from common.settings.config import Config, Value
from deploy.report.table import clean
from deploy.run.preflight import check_names, counted

MOST_CLIENTS = 1000  #: clients whose test samples are looked at, so that a start stays fast
LONGEST = 600  #: most characters of a line


def read(flat: Mapping[str, Value], console: Console) -> Overview:
    """Read and show the data of an experiment without training.

    The data set is shown before the clients' shares are drawn. Raises ``ValueError``, one line, for
    missing or wrong data, and for a client with too few samples.
    """
    config = parse(counted(flat), every=True)
    check_names(config)
    found = overview(load(config.data))
    show(found, console)
    found = replace(found, clients=clients_of(_shares(config)))
    warn(found, console)
    return found


def of_run(config: Config) -> Overview:
    """Return what the run of ``config`` on this machine reads.

    With partition ``own`` it describes the server's data, and its warnings are about all clients'.
    """
    return replace(overview(load(config.data)), clients=clients_of(_shares(config)))


def _shares(config: Config) -> Iterator[Share]:
    """Yield the shares of at most ``MOST_CLIENTS`` clients, from 0 on."""
    if not config.data.has_client_tests:
        return
    for k in range(min(config.run.clients, MOST_CLIENTS)):
        data = config.data_of(k, config.node(k))
        yield share(data, k, config.run.clients, config.partition_seed)


def show(found: Overview, console: Console) -> None:
    """Print the lines about the data."""
    lines = Lines.grid(padding=(0, 2))
    for heading, text in found.rows():
        lines.add_row(Text(heading, style="dim"), Text(clean(text, LONGEST)))
    console.print(lines)


def warn(found: Overview, console: Console) -> None:
    """Print why scores on the data can mislead."""
    for line in found.warnings():
        console.print(Text(f"note: {clean(line, LONGEST)}", style="yellow"), soft_wrap=True)
