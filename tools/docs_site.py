"""What turns docs/ into the site: hooks of mkdocs, and one of griffe, which reads the docstrings.

The pages of docs/ are written for a code host as well. So this file, and not the pages, bridges the differences: the
README becomes the first page, files outside docs/ that a page links to become part of the site (notebooks as pages),
and nested lists get the indentation that Python-Markdown expects.
"""

import json
import os
import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r'(?P<before>\]\(|\b(?:src|srcset)=")(?!https?:|data:|#)(?P<path>[^)"#\s]+)')
TEXT_TO_FOLDER = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>[^)#\s:]+)\)")
PICTURE = re.compile(
    r"<picture>\s*<source [^>]*dark[^>]* srcset=\"([^\"]+)\">\s*<img alt=\"([^\"]+)\" src=\"([^\"]+)\">\s*</picture>"
)
ITEM = re.compile(r"(\s*)([-*]|\d+\.)(\s+)(.*)")
PARAMETER = r"(?:- )?``\*{0,2}\w+``(?: and ``\w+``)*:\s"
STARTS = re.compile(rf"(?:^\s*|(?<=\.\s)){PARAMETER}", re.MULTILINE)
"""A parameter begins a line or follows a full stop."""
INDENT = 4
"""What Python-Markdown takes for one level."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and every file outside docs/ that a page links to, directly or not."""
    pages, outside = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], set[Path]()
    while pages:
        page = pages.pop()
        targets = {(page.parent / link["path"]).resolve() for link in LINK.finditer(page.read_text(encoding="utf-8"))}
        new = {path for path in targets if path.is_file() and not path.is_relative_to(DOCS)} - outside
        outside |= new
        pages += [path for path in new if path.suffix == ".md"]
    for path in sorted({ROOT / "README.md", *outside}):
        if path.suffix == ".ipynb":
            files.append(File.generated(config, _address(path), content=moved(notebook_page(path), path)))
        else:
            files.append(File.generated(config, _address(path), abs_src_path=str(path)))
    return files


def _address(path: Path) -> str:
    """Where a file of this repository is on the site."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.suffix == ".ipynb":
        path = path.with_suffix(".md")
    return path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """A page of a code host as Python-Markdown reads it, with links to where things are on the site."""
    source = page.file.abs_src_path
    return nested(markdown if source is None else moved(markdown, Path(source).resolve()))


def notebook_page(file: Path) -> str:
    """A notebook as a page: its text, its code, and what its cells show."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_shown(output.get("data", {})) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(data: dict[str, str | list[str]]) -> str:
    """The output of a cell, as a notebook would show it."""
    kind = next((kind for kind in ("text/html", "image/png", "text/plain") if kind in data), None)
    if kind is None:
        return ""
    content = "".join(data[kind])
    if kind == "text/html":
        return "".join(line for line in content.splitlines(keepends=True) if line.strip())
    if kind == "image/png":
        return f'<img alt="A figure of the notebook" src="data:image/png;base64,{content.strip()}">'
    return f"```text\n{content}\n```"


def moved(markdown: str, source: Path) -> str:
    """The page of the file ``source``, as it is on the site.

    Links lead to where things are there; of a folder, which is not on it, only the name stays. A picture that has a
    dark version follows the colours that the reader chose.
    """

    def text(match: re.Match[str]) -> str:
        return match["text"] if (source.parent / match["path"]).is_dir() else match[0]

    def link(match: re.Match[str]) -> str:
        target = (source.parent / match["path"]).resolve()
        if not target.is_file():
            return match[0]
        here = Path(_address(source)).parent
        return match["before"] + Path(os.path.relpath(_address(target), here)).as_posix()

    pictured = PICTURE.sub(r"![\2](\3#only-light) ![\2](\1#only-dark)", markdown)
    return LINK.sub(link, TEXT_TO_FOLDER.sub(text, pictured))


def nested(markdown: str) -> str:
    """Indent what belongs to a list item by four spaces per level, and begin lists after an empty line."""
    lines: list[str] = []
    contents: list[int] = []  # where the text of each open item begins
    fenced, empty, loose = False, True, False
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        item = ITEM.fullmatch(line)
        fence = line.lstrip().startswith("```")
        if fence and indent == 0:
            contents.clear()
        if fence or fenced or not line.strip():
            lines.append(line)
            fenced = fenced != fence
        elif item:
            if not empty and (loose or not contents):
                lines.append("")
            loose = False
            while contents and indent < contents[-1]:
                contents.pop()
            lines.append(" " * INDENT * len(contents) + f"{item[2]} {item[4]}")
            contents.append(item.start(4))
        else:
            while empty and contents and indent < contents[-1]:
                contents.pop()
            loose = loose or empty
            begin = contents[-1] if contents else 0
            lines.append(" " * (INDENT * len(contents) + max(0, indent - begin)) + line.lstrip())
        empty = not line.strip()
    return "\n".join(lines) + "\n"


class Docstrings(griffe.Extension):
    """Lists the parameters of a docstring one per line, and shows its examples as code."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of one function, class or field."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text.strip()))


def _block(block: str) -> str:
    if block.lstrip().startswith(">>>"):
        return f"```pycon\n{block}\n```"
    if not re.match(PARAMETER, block):
        return block
    starts = [match.start() for match in STARTS.finditer(block)]
    parts = [" ".join(block[start:end].split()) for start, end in zip(starts, [*starts[1:], len(block)], strict=True)]
    return "\n".join(part if part.startswith("- ") else f"- {part}" for part in parts)
