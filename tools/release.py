"""Check a release, and say what its tag says: version, changelog and files from one place each.

    python tools/release.py version              the version
    python tools/release.py notes                the section of CHANGELOG.md for this version: the message of the tag
    python tools/release.py check DIST           what the wheel and the source archive hold, and that nothing is missing
    python tools/release.py try DIST             install the wheel into an empty environment and run the demo there

The version is written in src/heatsmooth/version.py alone. ``make release`` runs all of them.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LARGEST = 8_000_000
"""Bytes of a wheel or source archive."""
IN_SOURCE = ("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml")
"""Files that the source archive must hold beside the package."""


def version() -> str:
    """The version of this tree."""
    return str(runpy.run_path(str(SOURCE / "heatsmooth/version.py"))["VERSION"])


def notes(changelog: str, wanted: str) -> str:
    r"""The section of a version, without its heading; that of "Unreleased" where the version has none yet.

    >>> notes("# Changelog\n\n## 1.1.0 (2026-01-01)\n\n- New.\n\n## 1.0.0\n\n- Old.\n", "1.0.0")
    '- Old.'
    """
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for heading in (wanted, "Unreleased"):
        for section in sections:
            first, _, body = section.partition("\n")
            if re.split(r"[\s\[\]]+", first.strip("[ "))[0] == heading:
                return body.strip()
    raise SystemExit(f"CHANGELOG.md: expected a section '## {wanted}' or '## Unreleased', got neither; add one")


def expected_files() -> set[str]:
    """The files of the package in this tree, as a wheel names them: code, and what ``package-data`` declares."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["heatsmooth"]
    package = SOURCE / "heatsmooth"
    declared = {file for pattern in patterns for file in package.glob(pattern)}
    present = {file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    forgotten = sorted(str(file.relative_to(SOURCE)) for file in present - declared if file.suffix != ".py")
    if forgotten:
        raise SystemExit(f"pyproject.toml: expected package-data for {', '.join(forgotten)}, got none; add a pattern")
    return {file.relative_to(SOURCE).as_posix() for file in present}


def missing_from_wheel(wheel: Path) -> tuple[list[str], list[str]]:
    """The files of the package that the wheel lacks, and those that it has beyond them."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = expected_files()
    return sorted(expected - held), sorted(held - expected)


def the_one(dist: Path, pattern: str) -> Path:
    """The only file in ``dist`` that matches."""
    files = sorted(dist.glob(pattern))
    if len(files) != 1:
        raise SystemExit(f"{dist}: expected one {pattern}, got {[file.name for file in files]}; remove the old ones")
    return files[0]


def check(dist: Path) -> None:
    """Print what is in the files to be published; end with an error if something is missing, extra or too large."""
    wheel, archive = the_one(dist, "*.whl"), the_one(dist, "*.tar.gz")
    with zipfile.ZipFile(wheel) as content:
        for item in content.infolist():
            print(f"{item.file_size:>10}  {item.filename}")
    missing, extra = missing_from_wheel(wheel)
    with tarfile.open(archive) as source:
        held = {name.partition("/")[2] for name in source.getnames()}
    missing += [f"{name} (source archive)" for name in IN_SOURCE if name not in held]
    missing += [f"{name} (source archive)" for name in sorted(expected_files()) if f"src/{name}" not in held]
    for file in (wheel, archive):
        size = file.stat().st_size
        print(f"{file.name}: {size / 1e6:.1f} MB (at most {LARGEST / 1e6:g})")
        if size > LARGEST:
            raise SystemExit(f"{file.name}: expected at most {LARGEST} bytes, got {size}")
        if f"heatsmooth-{version()}" not in file.name:
            raise SystemExit(f"{file.name}: expected version {version()}; build again")
    if missing or extra:
        raise SystemExit(f"expected the files of src/heatsmooth, got missing {missing}, extra {extra}")


def attempt(dist: Path, words: list[str]) -> None:
    """Install the wheel, with the versions of constraints.txt, where nothing else is; run the demo outside the tree."""
    wheel = the_one(dist, "*.whl").resolve()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "empty"), with_pip=True)
        python = Path(folder, "empty", "Scripts" if sys.platform == "win32" else "bin", "python")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def run(*command: str | Path) -> None:
            subprocess.run([python, *command], check=True, cwd=folder, env=clean)

        run("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
        where = "import heatsmooth, sys; sys.exit(not heatsmooth.__file__.startswith(sys.prefix))"
        run("-c", where)
        run("-m", "heatsmooth", "--version")
        run("-m", "heatsmooth", "demo", *words, "--out", "demo")
        page = Path(folder, "demo/report.html")
        print(f"the demo of the installed wheel wrote a report of {page.stat().st_size} bytes")


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("version", "notes", "check", "try"))
    parser.add_argument("dist", type=Path, nargs="?", default=ROOT / "dist")
    arguments, words = parser.parse_known_args()
    if arguments.what == "version":
        print(version())
    elif arguments.what == "notes":
        print(f"heatsmooth {version()}\n\n{notes((ROOT / 'CHANGELOG.md').read_text(encoding='utf-8'), version())}")
    elif arguments.what == "check":
        check(arguments.dist)
    else:
        attempt(arguments.dist, words)


if __name__ == "__main__":
    main()
