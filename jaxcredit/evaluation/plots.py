"""Pictures of results: learning curves with intervals, where credit lands within an episode, maps of a sweep.

Every function returns a matplotlib `Figure` and writes it when given a path (any suffix matplotlib knows; the folder is
made).  Figures are built without pyplot: no window, no global state, safe on machines without a display.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from jaxcredit.evaluation.statistics import bootstrap_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[ArrayLike, ArrayLike]

# Okabe and Ito's palette, without its yellow: told apart under every common colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", ":")
INK, QUIET, FAINT = "#222222", "#767676", "#E4E4E4"

STYLE: dict[Any, Any] = {
    "savefig.dpi": 200,
    "figure.dpi": 100,
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
}


def learning_curves(
    curves: Mapping[str, Curve],
    path: str | Path | None = None,
    *,
    ylabel: str,
    xlabel: str = "episodes",
    title: str | None = None,
    threshold: float | None = None,
    logx: bool = False,
    confidence: float = 0.95,
) -> Figure:
    """Draw one line per method, the interquartile mean over seeds, in a band that is its bootstrap interval.

    Args:
      curves: label -> (steps `[N]`, values `[seeds, N]`), drawn in this order; see `curves_from_frame`.
      path: where to write the picture, or None.
      ylabel: what the values are, with their unit.
      xlabel: what the steps are, with their unit.
      title: headline above the axes.
      threshold: level to mark by a dotted line.
      logx: logarithmic steps.
      confidence: probability that the band is to cover.
    Returns:
      The figure.
    Raises:
      ValueError: no curve, values that are not `[seeds, N]`, or NaN (as `bootstrap_interval`).
    """
    if not curves:
        raise ValueError("learning_curves needs at least one curve: {label: (steps [N], values [seeds, N])}.")
    with styled_figure(path, title, width=7.2, height=4.2) as figure:
        axes = figure.add_subplot()
        ends = {}
        for i, (label, (steps, values)) in enumerate(curves.items()):
            steps, values = _curve(label, steps, values)
            interval = bootstrap_interval(values.T[:, None, :], confidence=confidence)
            colour, style = COLOURS[i % len(COLOURS)], LINE_STYLES[i // len(COLOURS) % len(LINE_STYLES)]
            axes.fill_between(steps, interval.low, interval.high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(steps, interval.estimate, color=colour, linestyle=style, linewidth=2, label=label)
            ends[label] = (steps[-1], interval.estimate[-1], colour)
        if threshold is not None:
            _mark_threshold(axes, threshold)
        axes.margins(x=0)
        if logx:
            axes.set_xscale("log")
        else:
            axes.set_xlim(left=0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.xaxis.set_major_formatter(lambda x, _: short(x))
        _label_ends(axes, ends)
    return figure


def curves_from_frame(
    frame: Any, y: str, *, x: str = "episodes", method: str = "method", seed: str = "seed"
) -> dict[str, Curve]:
    """Turn a long table (one row per method, seed and point) into what `learning_curves` draws.

    Seeds measured at other steps than their method's mean are interpolated linearly onto it.

    Args:
      frame: pandas DataFrame.
      y: column of the values.
      x: column of the steps.
      method: column that names the line.
      seed: column that tells the seeds apart.
    Returns:
      label -> (steps `[N]`, values `[seeds, N]`), in the order in which the methods appear.
    Raises:
      ValueError: a missing column, or seeds of one method with different numbers of points.
    """
    missing = [column for column in (y, x, method, seed) if column not in frame.columns]
    if missing:
        raise ValueError(f"The table lacks {', '.join(missing)}; its columns are {', '.join(map(str, frame.columns))}.")
    curves = {}
    for label, rows in frame.groupby(method, sort=False):
        runs = [run.sort_values(x)[[x, y]].to_numpy(float) for _, run in rows.groupby(seed)]
        lengths = {len(run) for run in runs}
        if len(lengths) > 1:
            raise ValueError(f"Seeds of {label} have different numbers of points, {sorted(lengths)}: cut them alike.")
        steps = np.mean([run[:, 0] for run in runs], axis=0)
        curves[str(label)] = steps, np.stack([np.interp(steps, *run.T) for run in runs])
    return curves


def credit_picture(
    path: str | Path | None = None,
    *,
    reward: ArrayLike,
    redistributed: ArrayLike,
    advantage: ArrayLike,
    decisive: Mapping[str, ArrayLike],
    mask: ArrayLike,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    xlabel: str = "step",
) -> Figure:
    """Show where credit lands: reward, redistributed reward and advantage over the steps of a few episodes.

    One column per episode, one row per quantity; the bars of decisive steps are coloured.

    Args:
      path: where to write the picture, or None.
      reward: `[T, E]`, what the environment paid, in reward units.
      redistributed: `[T, E]`, what the estimator paid instead, in reward units.
      advantage: `[T, E]`, in reward units or normalised.
      decisive: name -> `[T, E]` bool, the steps that decided the return: `{"takes the key": ..., ...}`.
      mask: `[T, E]` bool, False on padding, which is not drawn.
      labels: one heading per episode.
      title: headline above all.
      xlabel: unit of time.
    Returns:
      The figure.
    Raises:
      ValueError: arrays of different shape, or a wrong number of labels.
    """
    quantities = {"reward": reward, "redistributed\nreward": redistributed, "advantage": advantage}
    rows = {name: np.asarray(value, dtype=np.float64) for name, value in quantities.items()}
    marks = {name: np.asarray(value, dtype=bool) for name, value in decisive.items()}
    mask = np.asarray(mask, dtype=bool)
    shapes = {name.replace("\n", " "): value.shape for name, value in {**rows, **marks, "mask": mask}.items()}
    if mask.ndim != 2 or len(set(shapes.values())) > 1:
        raise ValueError(f"credit_picture needs arrays of one shape [T, E] (steps, episodes); it was given {shapes}.")
    episodes = mask.shape[1]
    labels = [f"episode {e + 1}" for e in range(episodes)] if labels is None else labels
    if len(labels) != episodes:
        raise ValueError(f"{len(labels)} labels for {episodes} episodes: give one each.")
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(marks)}

    with styled_figure(path, title, width=max(6.4, 2.6 * episodes + 0.8), height=5.0) as figure:
        grid = figure.subplots(len(rows), episodes, sharex="col", sharey="row", squeeze=False)
        for row, (name, values) in enumerate(rows.items()):
            grid[row, 0].set_ylabel(name)
            for e, axes in enumerate(grid[row]):
                steps = np.flatnonzero(mask[:, e])
                _bars(axes, steps, values[steps, e], {mark: where[steps, e] for mark, where in marks.items()}, colours)
        for e, label in enumerate(labels):
            grid[0, e].set_title(label)
            grid[-1, e].set_xlabel(xlabel)
            grid[-1, e].xaxis.get_major_locator().set_params(integer=True)
        figure.align_ylabels(grid[:, 0])
        _legend_below(figure, colours)
    return figure


def heat_map(
    values: ArrayLike,
    xlabels: Sequence[Any],
    ylabels: Sequence[Any],
    path: str | Path | None = None,
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    title: str | None = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Draw a grid of results, such as a sweep over two hyperparameters, with the best cell framed.

    Args:
      values: `[rows, columns]`, higher is better; NaN cells (points that failed) stay empty.
      xlabels: the columns' settings.
      ylabels: the rows' settings, first at the bottom.
      path: where to write the picture, or None.
      xlabel: name of the setting that varies over columns.
      ylabel: name of the setting that varies over rows.
      label: what the values are, with their unit.
      title: headline above the axes.
      texts: what to write into the cells, row by row, where the values alone would mislead; then none is framed.
    Returns:
      The figure.
    Raises:
      ValueError: `values` is not `[len(ylabels), len(xlabels)]`, or all of it is NaN.
    """
    grid = np.asarray(values, dtype=np.float64)
    if grid.shape != (len(ylabels), len(xlabels)):
        raise ValueError(
            f"values has shape {grid.shape}; {len(ylabels)} ylabels and {len(xlabels)} xlabels need "
            f"({len(ylabels)}, {len(xlabels)})."
        )
    if np.isnan(grid).all():
        raise ValueError("heat_map has nothing to draw: every value is NaN.")
    rows, columns = grid.shape
    with styled_figure(path, title, width=2.4 + 0.62 * max(columns, 6), height=1.5 + 0.46 * max(rows, 4)) as figure:
        axes = figure.add_subplot()
        axes.grid(False)
        axes.spines[:].set_visible(False)
        image = axes.imshow(grid, cmap="cividis", aspect="auto", origin="lower")
        axes.set_xticks(range(columns), [short(x) for x in xlabels])
        axes.set_yticks(range(rows), [short(y) for y in ylabels])
        axes.tick_params(length=0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        write_cells(axes, grid, image, [[short(x) for x in row] for row in grid] if texts is None else texts)
        if texts is None:
            _frame_cell(axes, *divmod(int(np.nanargmax(grid)), columns))
        bar = figure.colorbar(image, ax=axes, pad=0.02, label=label, format=lambda value, _: short(value))
        bar.outline.set_visible(False)
    return figure


@contextmanager
def styled_figure(path: str | Path | None, title: str | None, *, width: float, height: float) -> Iterator[Figure]:
    """A figure in our style, `width` x `height` inches under a wrapped headline, written to `path` at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        if title:
            figure.suptitle(textwrap.fill(title, int(9.5 * width)), x=0.01, horizontalalignment="left")
        yield figure
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)


def _curve(label: str, steps: ArrayLike, values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    steps, values = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if steps.ndim != 1 or values.shape[1:] != steps.shape:
        raise ValueError(
            f"The curve of {label} must be (steps [N], values [seeds, N]); it has shapes {steps.shape}, {values.shape}."
        )
    return steps, values


def _mark_threshold(axes: Axes, threshold: float) -> None:
    axes.axhline(threshold, color=QUIET, linestyle=(0, (1, 2)), linewidth=1.2, zorder=1)
    axes.annotate(
        short(threshold),
        (0, threshold),
        xycoords=axes.get_yaxis_transform(),
        xytext=(4, 2),
        textcoords="offset points",
        color=QUIET,
        fontsize=8,
    )


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Write each line's name behind its end, in its colour, moved apart vertically where names would collide."""
    low, high = axes.get_ylim()
    gap = 0.065 * (high - low)
    order = sorted(ends, key=lambda label: ends[label][1])
    heights = np.array([ends[label][1] for label in order])
    # Apart from below, then pushed back into the axes from above.
    for i in range(1, len(order)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    heights -= np.clip(heights - (high - gap * np.arange(len(order))[::-1]), 0, None)
    right = max(x for x, _, _ in ends.values())
    for label, height in zip(order, heights, strict=True):
        axes.annotate(
            label,
            (right, height),
            xytext=(6, 0),
            textcoords="offset points",
            color=ends[label][2],
            fontweight="bold",
            verticalalignment="center",
            annotation_clip=False,
        )


def _bars(
    axes: Axes, steps: np.ndarray, values: np.ndarray, marks: Mapping[str, np.ndarray], colours: Mapping[str, str]
) -> None:
    """Bars over the steps of an episode; those of decisive steps coloured, with a faint band behind."""
    axes.grid(False, axis="x")
    axes.use_sticky_edges = False  # leaves room around bars that end at the top or bottom of the scale
    axes.bar(steps, values, width=0.8, color="#9AA3AD")
    axes.axhline(0, color=QUIET, linewidth=0.8)
    for name, where in marks.items():
        axes.bar(steps[where], values[where], width=0.8, color=colours[name])
        for step in steps[where]:
            axes.axvspan(step - 0.5, step + 0.5, color=colours[name], alpha=0.12, linewidth=0, zorder=0)


def _legend_below(figure: Figure, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for name, colour in colours.items()]
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), handlelength=1, handleheight=1)


def write_cells(axes: Axes, grid: np.ndarray, image: Any, texts: Sequence[Sequence[str]]) -> None:
    """Write a text into every cell of a heat map, in a colour that can be read on it; "nan" stays empty."""
    for (row, column), value in np.ndenumerate(grid):
        dark = not np.isnan(value) and image.norm(value) < 0.55
        cell = texts[int(row)][int(column)]
        if cell != "nan":
            axes.text(column, row, cell, color="white" if dark else INK, fontsize=8, ha="center", va="center")


def _frame_cell(axes: Axes, row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    frame = {"fill": False, "edgecolor": COLOURS[1], "linewidth": 2.5, "clip_on": False}
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **frame))


def short(value: Any) -> str:
    """Three digits of a float, all digits before the point, thousands separated; other things as they print."""
    if not isinstance(value, float | np.floating):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
