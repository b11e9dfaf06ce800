"""The recorded figures over gRPC as pictures, for the pages that tell them as tables."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

from deploy.report.style import series, style

GB = 10**9
#: what is drawn together: the name in the picture, the phases of ``timeline``
STRETCHES = {
    "waiting for the SuperNode to look": ("wait",),
    "starting a process, its imports": ("start", "unpack", "import"),
    "data, partition, model": ("load",),
    "local training": ("train",),
    "reply and collection": ("reply", "collect"),
}
#: what is drawn together: the name in the picture, the processes of ``memory``
PARTS = {
    "SuperLink and ServerApp": ("superlink", "ServerApp"),
    "warm process and loops": ("warm", "task loops"),
    "SuperNodes": ("SuperNodes",),
    "ClientApps": ("ClientApps",),
}

Record = dict[str, Any]


def rounds(grpc: Record) -> Figure:
    """Seconds of a client's message by start, as stacked bars of what they go into."""
    starts = list(grpc["starts"])
    left = [0.0] * len(starts)
    with style():
        figure = Figure(figsize=(7.6, 2.9), layout="constrained")
        axes = figure.subplots()
        for i, (name, phases) in enumerate(STRETCHES.items()):
            parts = [sum(grpc["starts"][start]["phases"][p] for p in phases) for start in starts]
            axes.barh(starts, parts, left=left, height=0.6, color=series(i), label=name)
            left = [a + b for a, b in zip(left, parts, strict=True)]
        for row, end in enumerate(left):
            axes.annotate(f"{end:.1f}", (end, row), (4, 0), textcoords="offset points", va="center")
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_xlabel("seconds of a client's message, mean over the clients")
        figure.legend(loc="outside upper left", ncols=3)
    return figure


def crowd(scale: Record) -> Figure:
    """Seconds of a round, and the memory of each part, against the number of SuperNodes."""
    crowds = scale["crowd"]
    places = [f"{n}\n{of['in a round']}" for n, of in crowds.items()]
    with style():
        figure = Figure(figsize=(8.6, 3.3), layout="constrained")
        seconds, memory = figure.subplots(1, 2, width_ratios=(1, 1.25))
        times = [of["round"] for of in crowds.values()]
        bars = seconds.bar(range(len(places)), times, width=0.6, color=series(0))
        seconds.bar_label(bars, fmt="%.1f", padding=2)
        _stack(memory, list(crowds.values()))
        for axes, title in (
            (seconds, "seconds of a round"),
            (memory, "peak memory of the parts, GB"),
        ):
            axes.set_title(title, loc="left", fontsize=10)
            axes.xaxis.set_major_locator(FixedLocator(range(len(places))))
            axes.xaxis.set_major_formatter(FixedFormatter(places))
            axes.set_xlabel("SuperNodes (above), of them in a round (below)")
        figure.legend(loc="outside upper right", ncols=4)
    return figure


def held(scale: Record) -> Figure:
    """The server's memory against the clients of a round, by what the server does with replies."""
    with style():
        figure = Figure(figsize=(6.4, 3.3), layout="constrained")
        axes = figure.subplots()
        cases = {name: of for name, of in scale["held"].items() if name != "heavy"}
        for i, (name, of) in enumerate(cases.items()):
            clients = sorted(map(int, of))
            most = [of[str(n)]["most"] / GB for n in clients]
            axes.plot(clients, most, marker="o", color=series(i), label=name)
        size = next(iter(next(iter(cases.values())).values()))["model"]
        every = sorted({int(n) for of in cases.values() for n in of})
        axes.plot(
            every, [n * size / GB for n in every], ls=":", color="gray", label="the replies alone"
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(every, map(str, every))
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.set_xlabel("clients in the round, ResNet-18 each")
        axes.set_title("anonymous memory of the server, GB", loc="left", fontsize=10)
        axes.legend()
    return figure


def _stack(axes: Axes, crowds: list[Record]) -> None:
    """A bar for each crowd: gigabytes (PSS), part upon part."""
    bottom = [0.0] * len(crowds)
    for i, (name, processes) in enumerate(PARTS.items()):
        sizes = [sum(of["busy"][p]["pss"] for p in processes) / GB for of in crowds]
        axes.bar(range(len(crowds)), sizes, 0.6, bottom, color=series(i + 1), label=name)
        bottom = [a + b for a, b in zip(bottom, sizes, strict=True)]
    for column, top in enumerate(bottom):
        axes.annotate(f"{top:.1f}", (column, top), (0, 3), textcoords="offset points", ha="center")


def save(folder: Path, grpc: Record, scale: Record) -> None:
    """The page's pictures into ``folder``; the same figures give the same bytes."""
    drawn = {"round": rounds(grpc), "clients": crowd(scale)}
    if "held" in scale:
        drawn["held"] = held(scale)
    for name, figure in drawn.items():
        with style():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
