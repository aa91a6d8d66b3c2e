"""Draw the README's picture: certified accuracy of a network before and after ``heatsmooth smooth``.

    python tools/draw_benefit.py

It reads the certificates in ``results`` and writes ``docs/figures/benefit-light.svg`` and
``benefit-dark.svg``, one for each theme of the page that shows it. The same records give the same files, to the byte.
"""

import argparse
import re
from html import escape
from pathlib import Path

import numpy as np

from heatsmooth.reporting.chart import Chart, Mark, Series, grid
from heatsmooth.reporting.svg import drawings
from heatsmooth.results.certificates import Certificates
from heatsmooth.runs import read_json

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "results"
FIGURES = ROOT / "docs/figures"
NETWORKS = {
    "public-resnet20/seed-0/undefended-certified": ("A public ResNet-20", 1, "teacher_accuracy"),
    "public-resnet20/seed-0/bootcamp-certified": (
        "The same network after one epoch of smooth, without labels",
        0,
        "accuracy",
    ),
}
"""Run directory: the name and the style of its curve, and which accuracy on all test images it has in ``SMOOTHED``."""
SMOOTHED = "public-resnet20/seed-0/bootcamp"
THEMES = {
    "light": {
        "ink": "#17191e",
        "soft": "#5b616e",
        "faint": "#e5e6e3",
        "line": "#d3d5d1",
        "s0": "#0b62c4",
        "s1": "#c2410c",
    },
    "dark": {
        "ink": "#eceef2",
        "soft": "#a3aab8",
        "faint": "#2a2e37",
        "line": "#3b404b",
        "s0": "#6fabff",
        "s1": "#ff9457",
    },
}
"""The colours of the report. The ground is left to the page."""
STYLE = """
text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: {ink} }}
.tick, .axis, .mark-name {{ fill: {soft} }}
.grid {{ stroke: {faint} }}
.base {{ stroke: {line}; fill: none }}
.line {{ fill: none; stroke-width: 2.5; stroke-linejoin: round }}
.band {{ fill-opacity: .14 }}
.mark {{ stroke: {soft}; stroke-width: 1.3; stroke-dasharray: 2 3; fill: none }}
"""
SERIES_STYLE = ".line.s{0}, .s{0} .line {{ stroke: {1} }} .dot.s{0}, .s{0} .dot, .band.s{0} {{ fill: {1} }}\n"


def benefit(runs: Path) -> Chart:
    """Certified accuracy against radius of the networks, with 95 % bands over images."""
    networks = {name: Certificates.read(runs / name) for name in NETWORKS}
    measured = read_json(runs / SMOOTHED / "run.json")["summary"]
    largest = max(float(certificates.radii.max()) for certificates in networks.values())
    at = np.append(grid(largest)[:-1], largest)
    series = []
    for directory, certificates in networks.items():
        name, style, accuracy = NETWORKS[directory]
        clean = f"{name} (clean accuracy {100 * measured[accuracy]:.0f} %)"
        low, high = certificates.certified_accuracy_band(at, alpha=0.05)
        series.append(Series(clean, style, at, certificates.certified_accuracy(at), low, high))
    before, after = (certificates.certified_accuracy([0.25])[0] for certificates in networks.values())
    return Chart(
        key="benefit",
        title="Certified accuracy against radius, before and after smoothing",
        caption="",
        x_title="certified L2 radius r of the network's Gaussian average (pixels in [0, 1])",
        y_title="certified accuracy: images with the correct class and a radius of at least r",
        series=tuple(series),
        x_max=0.65,
        y_max=0.8,
        shape="step",
        marks=(
            Mark(0.25, f"at 0.25: from {100 * before:.0f} % to {100 * after:.0f} %", ""),
            Mark(largest, "largest radius that 1,000 samples can certify", ""),
        ),
        percent=True,
    )


def picture(chart: Chart, theme: str) -> str:
    """The wide drawing of ``chart`` as a file of its own, in the colours of ``theme``."""
    colours = THEMES[theme]
    style = STYLE.format(**colours)
    style += "".join(SERIES_STYLE.format(series.style, colours[f"s{series.style}"]) for series in chart.series)
    drawing = drawings(chart).split("</svg>")[0]
    opening, content = drawing.split(">", 1)
    opening = re.sub(r' (class|data-\w+)="[^"]*"', "", opening).replace(
        "<svg", '<svg xmlns="http://www.w3.org/2000/svg"'
    )
    content = content.replace('<g class="cursor"></g>', "").replace("><", ">\n<")
    return f"{opening}>\n<title>{escape(chart.title)}</title>\n<style>{style}</style>\n{content}\n</svg>\n"


def main() -> None:
    """Write a picture for each theme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FIGURES, metavar="FOLDER", help="where to write the pictures")
    folder = parser.parse_args().out
    chart = benefit(RUNS)
    for theme in THEMES:
        file = folder / f"benefit-{theme}.svg"
        file.write_text(picture(chart, theme), encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
