"""``python -m tests.bench [--out FILE] [--pairs N]``: print the ratios, add them to a file."""

import argparse
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from deploy.run.launch import default_workers
from tests.bench import idle, loop, record, runs, sheets
from tests.papers import htfllib_speed

AIMS = {"fit": 1.2, "workers": 1.7, "personal": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file that the figures are added to")
    parser.add_argument("--pairs", type=int, default=15, help="measured pairs (15)")
    options = parser.parse_args()
    console = Console()
    found: dict[str, object] = {"torch": torch.__version__, "machine": platform.machine()}
    found["cores"] = default_workers()

    console.print(f"[bold]fit beside a bare PyTorch loop[/], one thread (aim: {AIMS['fit']})")
    table = Table("model", "bare, images/s", "fit, images/s", "ratio", box=None)
    for work in loop.WORKS:
        bare, ours, ratio = loop.ratio(work, options.pairs)
        table.add_row(work.spec, f"{bare:.0f}", f"{ours:.0f}", f"{ratio:.2f}")
        found[f"fit {work.spec}"] = {"bare": bare, "fit": ours, "ratio": ratio}
    console.print(table)

    console.print(f"[bold]loopback, two workers beside one[/] (aim: {AIMS['workers']})")
    one, two, ratio = runs.speed_up(max(options.pairs // 2, 1))
    console.print(f"  {one:.2f} s and {two:.2f} s for the clients of a round: ratio {ratio:.2f}")
    found["workers"] = {"one": one, "two": two, "ratio": ratio}

    console.print("[bold]a reply in asynchronous rounds beside synchronous ones[/] (aim: 1.0)")
    found["asynchronous"] = figures = runs.asynchronous(max(options.pairs // 3, 1))
    console.print(", ".join(f"{name} {value:.4f}" for name, value in figures.items()))

    console.print("[bold]a round of the same small work on each runtime[/], seconds")
    rounds = runs.by_runtime(["loopback", "ray", "grpc", "grpc warm"])
    table = Table("runtime", "total", "clients", "step", "score", "checkpoint", box=None)
    for name, phases in rounds.items():
        columns = ("total", "clients", "step", "score", "checkpoint")
        table.add_row(name, *(f"{phases.get(column, 0.0):.3f}" for column in columns))
    console.print(table)
    found["rounds"] = rounds

    aim = AIMS["personal"]
    console.print(f"[bold]a round beside a bare loop[/], one thread, seconds (aim: at most {aim})")
    for method in htfllib_speed.METHODS:
        figures = htfllib_speed.compare(method)
        shown = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
        console.print(f"  {method}: {shown}")
        found[f"round {method}"] = figures

    console.print(f"[bold]a large CSV file[/] (aims: {sheets.AIMS})")
    found["csv"] = read = sheets.measure()
    console.print(
        f"  {read['megabytes']:.0f} MB: {read['seconds']:.1f} s, {read['times']:.2f} times"
    )

    console.print(f"[bold]a node without work[/], MiB of proportional set size (aim: {idle.AIMS})")
    nodes = {name: idle.memory(name) | {"seconds": runs.one_reply(name)} for name in idle.AIMS}
    found["idle"] = nodes
    largest = "before it gives up its warm process"
    table = Table("start", "without work", largest, "seconds to a reply", box=None)
    for name, node in nodes.items():
        mib = f"{node['idle']:.0f}", f"{node['largest']:.0f}"
        table.add_row(name, *mib, f"{node['seconds']:.1f}")
    console.print(table)
    record.write(options.out, record.read(options.out) | found)


if __name__ == "__main__":
    main()
