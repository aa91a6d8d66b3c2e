"""One table for the terminal, the page and papers."""

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
