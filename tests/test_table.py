"""One table for the terminal, the page and papers."""

import pytest

from heatsmooth.table import Column, Table

COLUMNS = (
    Column("name", lambda item: item[0], words=True),
    Column("share", lambda item: item[1], "{:.1%}".format, about="average"),
    Column("never", lambda item: None),
)


def test_columns_without_values_are_left_out_and_missing_ones_are_a_dash() -> None:
    table = Table.of("Title", COLUMNS, [("a", 0.25), ("b", None)])
    assert [column.head for column in table.columns] == ["name", "share"]
    assert table.cells == [["a", "25.0%"], ["b", "–"]]
    assert table.rows == (("a", 0.25), ("b", None))
    assert table.groups == [("", 1), ("average", 1)]


def test_the_terminal_shows_title_rule_and_aligned_columns() -> None:
    table = Table("Title", (Column("name"), Column("share")), (("a", 1), ("bcd", 10)))
    title, heads, rule, *rows = [line.strip() for line in table.text().splitlines() if line.strip()]
    assert (title, heads, set(rule)) == ("Title", "name   share", {"─"})
    assert rows == ["a          1", "bcd       10"]


def test_a_narrow_terminal_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = (("certified accuracy at 0.25: one method > another method", "0.5240.550", "-0.026 (-0.0587 to +0.00692)"),)
    shown = Table("Title", (Column("claim"), Column("values"), Column("difference")), rows).text()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 60
    letters = sorted(shown.split("─")[-1].replace("\n", "").replace(" ", ""))
    assert letters == sorted("".join(rows[0]).replace(" ", ""))
