"""The published results give the same numbers in every table of the report.

``tests/data/published_tables.json`` holds, by directory and table, the heads of the columns, and per row its first cell
and the numbers of each other cell with their units, as they are shown. After a change of words, write it again with
``python -m tests.test_published_results``. The difference must not contain a number.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from heatsmooth.reporting import build_report

RESULTS = Path(__file__).parents[1] / "results"
GOLDEN = Path(__file__).parent / "data/published_tables.json"
SOURCES = [*sorted(path.name for path in RESULTS.iterdir() if path.is_dir() and path.name != "benchmarks"), "."]
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?:\s?(?:%|×|(?:ms|s|min|h|points)\b))?|∞")


def cells(line: str) -> list[str]:
    return [cell.strip().replace("\\", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def parsed(markdown: str) -> dict[str, Any]:
    """The heads and the numbers of a table."""
    heads, _, *rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    numbers = [[row[0], *(" ".join(NUMBER.findall(cell)) for cell in row[1:])] for row in map(cells, rows)]
    return {"heads": cells(heads), "rows": numbers}


def tables_of(source: str) -> dict[str, Any]:
    """Every table of a directory of results."""
    with tempfile.TemporaryDirectory() as place:
        build_report([RESULTS / source], Path(place) / "report.html", tables=Path(place) / "tables")
        files = sorted((Path(place) / "tables").glob("*.md"))
        return {file.stem: parsed(file.read_text()) for file in files}


@pytest.mark.parametrize("source", SOURCES)
def test_every_table_has_the_numbers_it_was_published_with(source: str) -> None:
    assert tables_of(source) == json.loads(GOLDEN.read_text())[source]


def test_the_summary_of_a_comparison_is_about_the_default(tmp_path: Path) -> None:
    build_report([RESULTS / "public-resnet20"], tmp_path / "report.html")
    assert "The Gaussian average of “seed-0/bootcamp” is certified" in (tmp_path / "report.html").read_text()
    build_report([RESULTS / "public-resnet20/seed-0"], tmp_path / "report.html")
    assert "The Gaussian average of “bootcamp” is certified" not in (tmp_path / "report.html").read_text()


def write() -> None:
    """Write the numbers as they are now: one row a line, so that a difference is readable."""
    content = json.dumps({source: tables_of(source) for source in SOURCES}, ensure_ascii=False)
    GOLDEN.write_text(content.replace('], ["', '],\n["').replace('": {"heads"', '":\n{"heads"') + "\n")


if __name__ == "__main__":
    write()
