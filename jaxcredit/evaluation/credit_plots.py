"""Pictures of how good credit is: measures with their intervals, and the map over depth, breadth and density."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcredit.evaluation.plots import COLOURS, QUIET, short, styled_figure, write_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "gradient.snr_db": "signal to noise of one episode's gradient (dB)",
    "gradient.bias": "bias of the gradient",
    "decisive_share": "credit on decisive steps",
    "rank_correlation": "rank correlation of credit",
}


def fidelity_picture(table: Any, path: str | Path | None = None, *, title: str | None = None) -> Figure:
    """Draw what `fidelity_table` gives: one row per estimator, one panel per measure, a dot in its interval.

    Args:
      table: pandas DataFrame of `fidelity_table`.
      path: where to write the picture, or None.
      title: headline above all.
    Returns:
      The figure.  Measures that are not finite are left out.
    """
    names = list(table["credit"])
    measures = [measure for measure in PANELS if np.isfinite(table[measure].to_numpy(float)).any()]
    with styled_figure(path, title, width=2.2 + 2.5 * len(measures), height=1.4 + 0.34 * len(names)) as figure:
        grid = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
        for i, (axes, measure) in enumerate(zip(grid, measures, strict=True)):
            estimate, low, high = (table[measure + end].to_numpy(float) for end in ("", ".low", ".high"))
            places = np.flatnonzero(np.isfinite(estimate))
            axes.hlines(places, *(np.where(np.isfinite(x), x, estimate)[places] for x in (low, high)), color=QUIET)
            axes.scatter(estimate[places], places, color=COLOURS[i % len(COLOURS)], zorder=3)
            axes.set_xlabel("\n".join(_wrapped(PANELS[measure])))
            axes.set_yticks(range(len(names)), names)
            axes.margins(x=0.12)
        grid[0].set_ylim(len(names) - 0.5, -0.5)
    return figure


def credit_map_picture(
    panels: Mapping[str, tuple[Sequence[Any], np.ndarray]],
    methods: Sequence[str],
    path: str | Path | None = None,
    *,
    label: str,
    title: str | None = None,
    low: float = 0.0,
    high: float = 1.0,
) -> Figure:
    """Draw one heat map per knob, methods as rows, side by side on one colour scale.

    Args:
      panels: knob -> (its settings, values `[methods, settings]`); NaN cells stay empty.
      methods: names of the rows, from the top.
      path: where to write the picture, or None.
      label: what the values are.
      title: headline above all.
      low, high: ends of the colour scale.
    Returns:
      The figure.
    """
    widths = [len(settings) for settings, _ in panels.values()]
    with styled_figure(path, title, width=2.6 + 0.52 * sum(widths), height=1.5 + 0.4 * len(methods)) as figure:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)[0]
        image: Any = None
        for axes, (knob, (settings, values)) in zip(grid, panels.items(), strict=True):
            axes.grid(False)
            axes.spines[:].set_visible(False)
            image = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto")
            axes.set_xticks(range(len(settings)), [short(x) for x in settings])
            axes.set_yticks(range(len(methods)), methods)
            axes.tick_params(length=0)
            axes.set_xlabel(knob)
            write_cells(axes, values, image, [[_two_digits(x) for x in row] for row in values])
        bar = figure.colorbar(image, ax=list(grid), pad=0.01, label=label)
        bar.outline.set_visible(False)
    return figure


def _two_digits(x: float) -> str:
    return "nan" if np.isnan(x) else f"{x:.2f}".removeprefix("0") if 0 <= x < 0.995 else f"{x:.1f}"


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 26)
