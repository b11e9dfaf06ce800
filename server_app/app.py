"""The ServerApp: parse the run config, build the run's parts, and start the strategy."""

import logging
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

log = logging.getLogger("flwr.fedmosaic")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Execute one run. Raises ``ValueError`` or ``Stopped`` with a message of one line."""
    from common import progress
    from common.data import overview
    from common.data.shares import for_testing
    from common.errors import reported
    from common.parse import parse
    from common.training import device
    from common.training.task import Task, check_fleet
    from server_app.messaging.channel import Channel, PlainChannel
    from server_app.messaging.messenger import Messenger
    from server_app.messaging.sealed import TRUST, SealedChannel, Trust
    from server_app.storage import checkpoint
    from server_app.storage.lock import hold
    from server_app.storage.run_record import Record
    from server_app.storage.summary import place
    from server_app.strategy import MethodStrategy
    from server_app.tracking import numbers
    from server_app.tracking.sink import Sink

    progress.without_colours()
    settings = context.run_config
    config = parse(settings)
    experiment = config.run.experiment or f"run-{context.run_id}"
    out = place(config.run.out, experiment).resolve()
    config = config.with_run(out=str(out))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out = {out} cannot be created: {error.strerror}") from error
    with hold(out), reported(out):
        if not config.run.resume and checkpoint.path_in(out).exists():
            raise ValueError(f"out = {out} holds a run already; resume it or choose another folder")
        device.settle(config.run.threads)
        dataset = for_testing(config.data, config.run.clients, config.partition_seed)
        log.info("%s: results go to %s", experiment, out)
        if not (out / overview.FILE).exists() and not config.privacy.on:
            overview.write(out, found := overview.overview(dataset))
            for heading, text in found.rows():
                log.info("%s: %s", heading, text)
        at_end = config.privacy.hides_times and not config.privacy.round_seconds
        sink = Sink(out, config.run.track, numbers.settings(config), at_end=at_end)
        record = Record(config, sink, settings)
        task = Task.of(config, dataset, device.choose(config.run.device))
        check_fleet(task)
        channel: Channel = PlainChannel(config, experiment)
        if folder := os.environ.get(TRUST):
            channel = SealedChannel(config, experiment, Trust(Path(folder)), settings)
        MethodStrategy(task, dataset, Messenger(channel), record).start(grid)
