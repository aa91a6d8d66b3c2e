"""Run the tests with the oldest or the newest versions that pyproject.toml allows.

    python tools/versions.py oldest [words for pytest]
    python tools/versions.py newest [words for pytest]

``uv`` resolves the versions, lists them in build/versions-oldest.txt, and makes an environment of its own,
.venv-oldest. A torch that was not installed from an index, such as 2.13.0+cpu, stays the same in both: another build
would bring CUDA with it. Then only the other packages vary.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("export", "hf", "peers")
TESTING = ("hypothesis", "pytest", "pytest-xdist", "statsmodels")
"""What the tests need beside the package, in its newest version."""
RESOLUTION = {"oldest": "lowest-direct", "newest": "highest"}


def uv(*words: str | Path) -> None:
    """Run uv, which finds local wheels where pip finds them."""
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True)
    links = found.stdout.decode().split()
    environment = os.environ | ({"UV_FIND_LINKS": ",".join(links)} if links else {})
    subprocess.run([sys.executable, "-m", "uv", *words], check=True, cwd=ROOT, env=environment)


def main() -> None:
    """Resolve, install, test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=tuple(RESOLUTION))
    arguments, words = parser.parse_known_args()
    place, build = ROOT / f".venv-{arguments.which}", ROOT / "build"
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    build.mkdir(exist_ok=True)
    listed, asked, fixed = build / f"versions-{arguments.which}.txt", build / "asked.txt", build / "fixed.txt"
    torch = version("torch")
    fixed.write_text(f"torch=={torch}\n" if "+" in torch else "", encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for name in EXTRAS for line in project["optional-dependencies"][name])]
    if arguments.which == "oldest":  # no newer ones, even where another package would like them
        wanted = [line if line.startswith("torch") else re.sub(r">=(.*)", r"==\1.*", line) for line in wanted]
    asked.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    how: list[str | Path] = [
        "--resolution",
        RESOLUTION[arguments.which],
        "--override",
        fixed,
        "--python",
        sys.executable,
    ]
    uv("pip", "compile", "--quiet", asked, *how, "--output-file", listed)
    uv("venv", "--quiet", "--clear", "--python", sys.executable, place)
    uv("pip", "install", "--quiet", "--python", python, "--requirement", listed)
    uv("pip", "install", "--quiet", "--python", python, "--constraint", listed, *TESTING)
    uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--editable", ".")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    sys.exit(subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, env=clean, check=False).returncode)


if __name__ == "__main__":
    main()
