"""Print the size and complexity of the package as a table, beside the values wanted.

    python tools/metrics.py [CHECKOUT] [--duplicates COMMAND]

How each row is counted:

- A function is a ``def`` or ``async def``, also inside a class or another function. Its lines include the docstring
  and exclude the decorators.
- Parameters include keyword-only ones. They exclude ``self``, ``cls``, ``*args`` and ``**kwargs``. Fields of a
  dataclass are not parameters.
- Lines of the package are all lines of its Python files, with comments and blank lines.
- Pairs of duplicates come from a command of your choice. It gets ``--repo FOLDER`` and must print the number of pairs
  first. Without ``--duplicates`` they are not measured.
- Complexity is radon's: the number of functions, methods and classes above 10. Without radon (``pip install radon``)
  it is not measured.
"""

import argparse
import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OUTER_ROOMS = ("cli", "workflows", "commands", "compare")
"""What lies between the command line and the library. The last two replace the first two; those that exist count."""
MANY_PARAMETERS = 5
COMPLEX = 10
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Function:
    """The size of one function."""

    parameters: int
    lines: int


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function of a parsed file; declarations for the type checker (``@overload``) are not functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_overload(node):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            own = len(names) - (names[:1] in (["self"], ["cls"]))
            yield Function(own, (node.end_lineno or node.lineno) - node.lineno + 1)


def _is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(name, ast.Name) and name.id == "overload" for name in node.decorator_list)


def duplicate_pairs(command: str, folder: Path) -> int:
    """The first number that ``command`` prints about ``folder``; 0 if it prints that there are no duplicates."""
    done = subprocess.run(
        [*shlex.split(command), "--repo", str(folder)], capture_output=True, text=True, check=True, timeout=600
    )
    if done.stdout.startswith("no duplicates"):
        return 0
    number = re.match(r"\d+", done.stdout)
    if number is None:
        raise SystemExit(f"--duplicates {command}: expected the number of pairs first, got {done.stdout[:80]!r}")
    return int(number[0])


def complex_blocks(texts: list[str]) -> int | None:
    """The number of functions, methods and classes with a complexity above 10; None without radon."""
    try:
        visit = importlib.import_module("radon.complexity").cc_visit
    except ImportError:
        return None
    return len([block for text in texts for block in visit(text) if block.complexity > COMPLEX])


@dataclass(frozen=True)
class Row:
    """One measure, its value, and the value wanted."""

    measure: str
    value: str
    wanted: str


def measure(root: Path, duplicates: str | None = None) -> list[Row]:
    """The table for the checkout ``root``; ``duplicates`` is the command that finds duplicates."""
    package = root / "src/heatsmooth"
    files = {file.relative_to(package): file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}
    sizes = [size for text in files.values() for size in functions(ast.parse(text))]
    lines = {file: text.count("\n") for file, text in files.items()}
    rooms = [room for room in OUTER_ROOMS if (package / room).is_dir()]
    pairs = NOT_MEASURED
    if duplicates is not None:
        pairs = " / ".join(str(duplicate_pairs(duplicates, folder)) for folder in (root, root / "src"))
    blocks = complex_blocks(list(files.values()))
    return [
        Row("`dict[str, Any]` in `src`", str(sum(text.count("dict[str, Any]") for text in files.values())), "≤ 40"),
        Row("most parameters of a function", str(max(size.parameters for size in sizes)), "≤ 12"),
        Row("lines of the longest function", str(max(size.lines for size in sizes)), "≤ 60"),
        Row(
            f"functions with more than {MANY_PARAMETERS} parameters",
            str(sum(size.parameters > MANY_PARAMETERS for size in sizes)),
            "≤ 20",
        ),
        Row(
            f"lines of {' + '.join(f'`{room}`' for room in rooms)}",
            f"{sum(count for file, count in lines.items() if file.parts[0] in rooms):,}",
            "≤ 2,700",
        ),
        Row("lines of the package", f"{sum(lines.values()):,}", "≤ 12,700"),
        Row("pairs of duplicates in the tree / in `src`", pairs, "≤ 12"),
        Row(f"radon complexity above {COMPLEX}", NOT_MEASURED if blocks is None else str(blocks), "≤ 15"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--duplicates", metavar="COMMAND", help="a program that finds pairs of duplicates")
    arguments = parser.parse_args()
    rows = [Row("measure", "value", "wanted"), *measure(arguments.checkout, arguments.duplicates)]
    rows.insert(1, Row("---", "---", "---"))
    for row in rows:
        print(f"| {row.measure} | {row.value} | {row.wanted} |")


if __name__ == "__main__":
    main()
