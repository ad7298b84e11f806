"""Draws the cosines of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from embedlib.errors import ConfigError
from embedlib.fidelity.compare import Comparison
from embedlib.models.compiled.fidelity_report import Gate
from embedlib.packages.installing import install_line


def open_plot(path: Path) -> Callable[[Comparison, Gate], None]:
    """Check the file name and matplotlib, and return a function that draws into the file.

    Raises:
        ConfigError: matplotlib is not installed, the name does not end in .png, or its folder does
            not exist.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"plot needs matplotlib, which is not installed; {install_line('bench')}"
        ) from error
    if path.suffix != ".png" or not path.resolve().parent.is_dir():
        raise ConfigError(f"plot = {str(path)!r}; give a .png file in an existing folder")

    def draw(comparison: Comparison, gate: Gate) -> None:
        report = comparison.report
        found = np.sort(comparison.cosines)
        shares = 100 * np.arange(1, len(found) + 1) / len(found)
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(found, shares, drawstyle="steps-post")
        axes.axvline(gate.p1, linestyle=":", color="gray", label=f"gate, 1 %: {gate.p1}")
        axes.axvline(gate.mean, linestyle="--", color="gray", label=f"gate, mean: {gate.mean}")
        axes.axvline(report.mean, color="black", label=f"mean: {report.mean:.5f}")
        axes.set_xlabel(f"cosine to {report.reference}, {report.precision} on {report.engine}")
        axes.set_ylabel("share of texts with this cosine or a lower one, %")
        axes.legend()
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise ConfigError(f"plot = {str(path)!r} cannot be written: {error}") from error

    return draw
