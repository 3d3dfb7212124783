"""The plots of the page, one PNG each. A contender has one colour in all of them."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outlast.ops.bench import floor
from outlast.ops.bench.contenders import BARE, IN_MEMORY, ON_REDIS, OURS, SDK
from outlast.ops.bench.targets import Stages, of, sizes

COLOURS = {
    OURS: "#0b5fa5",
    ON_REDIS: "#c8402f",
    IN_MEMORY: "#e39a2d",
    SDK: "#7a5aa6",
    BARE: "#6b7280",
    floor.NAME: "#2f855a",
}
MARKS = {OURS: "o", ON_REDIS: "s", IN_MEMORY: "D", SDK: "^", BARE: "v", floor.NAME: "P"}
CONTENT = {"get": "tasks/get", "create": "durable create"}
GROWING = {
    "get": ("tasks/get", "#0b5fa5", "o"),
    "create": ("durable create", "#5b9bd5", "s"),
    "listen": ("listen: append to frame", "#12355b", "^"),
}
STYLE: Any = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e3e6ea",
    "font.size": 11,
    "axes.titlesize": 12,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 6,
}
INCHES, DPI = (9.0, 4.4), 150


def drawn(stages: Stages, folder: Path) -> dict[str, str]:
    """The file name of each plot that the results allow, by what it shows.

    None without matplotlib: the page can do without.
    """
    if find_spec("matplotlib") is None:
        print("no plots: pip install 'outlast[bench]'")
        return {}
    makers: Mapping[str, tuple[set[str], Callable[[Any, Stages], None]]] = {
        "connections": ({"connections"}, _connections),
        "latency": ({"get", "create"}, _latency),
        "growth": ({"growth"}, _growth),
    }
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, str] = {}
    for name, (needed, draw) in makers.items():
        if needed <= set(stages):
            names[name] = f"performance-{name}.png"
            _draw(stages, draw, folder / names[name])
    return names


def _draw(stages: Stages, draw: Callable[[Any, Stages], None], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(STYLE):
        figure, axes = pyplot.subplots(1, 2, figsize=INCHES, dpi=DPI)
        draw(axes, stages)
        handles: dict[str, Any] = {}
        for each in axes:
            handles |= {
                label: handle
                for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
            }
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3)
        figure.tight_layout(rect=(0, 0.13 if len(handles) > 3 else 0.07, 1, 1))
        figure.savefig(path, metadata={"Software": None})
        pyplot.close(figure)


def _connections(axes: Sequence[Any], stages: Stages) -> None:
    from matplotlib import ticker

    for axis, (what, title) in zip(axes, CONTENT.items(), strict=True):
        counts = stages["connections"]["figures"][what]
        xs = [int(count) for count in counts]
        for name in next(iter(counts.values())):
            found = [of(counts[str(x)][name], "per_second") for x in xs]
            axis.fill_between(
                xs, [y.low for y in found], [y.high for y in found], color=COLOURS[name], alpha=0.15
            )
            axis.plot(
                xs, [y.median for y in found], MARKS[name], ls="-", color=COLOURS[name], label=name
            )
        axis.set(title=title, xscale="log", yscale="log", xlabel="connections")
        axis.set_xticks(xs, labels=[str(x) for x in xs])
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.minorticks_off()
        axis.yaxis.set_major_formatter(_thousands)
    axes[0].set_ylabel("answers a second")


def _latency(axes: Sequence[Any], stages: Stages) -> None:
    for axis, (what, title) in zip(axes, CONTENT.items(), strict=True):
        figures = stages[what]["figures"]
        for name, runs in figures["shots"].items():
            shares = [share for share, _ in runs[0]["percentiles"]]
            by_share = [
                sorted(run["percentiles"][place][1] for run in runs)[len(runs) // 2]
                for place in range(len(shares))
            ]
            axis.plot(by_share, shares, MARKS[name], ls="-", color=COLOURS[name], label=name, ms=4)
        axis.set(
            title=f"{title}, {figures['connections']} connections",
            xscale="log",
            xlabel="answered within, ms",
        )
        axis.set_ylim(0, 101)
        axis.xaxis.set_major_formatter(_thousands)
    axes[0].set_ylabel("share of the answers, %")


def _growth(axes: Sequence[Any], stages: Stages) -> None:
    groups = sizes(stages["growth"]["figures"])
    xs = [group["stored"] for group in groups]
    for axis, share in zip(axes, ("p50", "p99"), strict=True):
        for what, (title, colour, mark) in GROWING.items():
            ys = [group[f"{what}_{share}_ms"] for group in groups]
            axis.plot(xs, ys, mark, ls="-", color=colour, label=title)
        axis.set(title=share, xscale="log", xlabel="stored tasks")
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_formatter(_thousands)
        axis.minorticks_off()
    axes[0].set_ylabel("ms")


def _thousands(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
