"""What is published: the wheel, its version and notes, and what a public host checks."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml

from heatsmooth.version import VERSION

ROOT = Path(__file__).parents[1]
SYSTEMS = {"ubuntu-latest", "macos-latest", "windows-latest"}


@pytest.fixture(scope="module")
def release() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once from a copy, so that nothing of an earlier build is in it."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=unwanted)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(copy)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path, release: Any) -> None:
    assert release.missing_from_wheel(wheel) == ([], [])
    assert wheel.stat().st_size < release.LARGEST
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Parser().parsestr(archive.read(f"heatsmooth-{VERSION}.dist-info/METADATA").decode())
        scripts = archive.read(f"heatsmooth-{VERSION}.dist-info/entry_points.txt").decode()
    assert metadata["Version"] == VERSION
    assert "heatsmooth = heatsmooth.commands.line:main" in scripts
    assert {"heatsmooth/data/fashion-mini.npz", "heatsmooth/py.typed"} <= set(names)


def test_a_file_that_the_wheel_lacks_is_named(wheel: Path, release: Any, tmp_path: Path) -> None:
    less = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(less, "w") as part:
        for name in whole.namelist():
            if not name.endswith("page.css"):
                part.writestr(name, whole.read(name))
    missing, extra = release.missing_from_wheel(less)
    assert "heatsmooth/reporting/page.css" in missing
    assert extra == []


def test_the_tag_says_what_the_changelog_says(release: Any) -> None:
    log = "# Changelog\n\n## Unreleased\n\n- Next.\n\n## 2.0.0 (2027-01-01)\n\n- More.\n\n## 1.0.0\n\n- Old.\n"
    assert release.notes(log, "2.0.0") == "- More."
    assert release.notes(log, "3.0.0") == "- Next."
    with pytest.raises(SystemExit, match=r"expected a section '## 3\.0\.0' or '## Unreleased'"):
        release.notes("# Changelog\n\n## 1.0.0\n", "3.0.0")
    assert release.version() == VERSION
    assert release.notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), VERSION)


def test_a_public_host_runs_the_targets_of_the_makefile_on_three_systems() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    defined = {name for line in re.findall(r"^([a-z][\w -]*):", makefile, re.MULTILINE) for name in line.split()}
    used = set()
    for job in jobs.values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            if "run" not in step:
                assert step["uses"].startswith("actions/")
                continue
            call = re.fullmatch(r"make (\S+|test-\$\{\{ matrix\.which \}\}) PYTHON=python", step["run"])
            assert call is not None, step["run"]
            used |= {re.sub(r"\$\{\{.*\}\}", which, call[1]) for which in matrix.get("which", [""])}
    assert used <= defined
    assert {"lint", "types", "pytest", "docs", "release", "test-oldest", "test-newest"} <= used
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [name.rpartition(" ")[2] for name in settings["classifiers"] if "Python :: 3." in name]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == pythons
    assert settings["requires-python"] == f">={pythons[0]}"
    for job in ("tests", "wheel"):
        assert set(jobs[job]["strategy"]["matrix"]["os"]) == SYSTEMS
