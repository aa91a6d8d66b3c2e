"""Which room may import which; what the design says, held by a test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src/heatsmooth"
EVERYWHERE = {"errors", "version", "progress", "noise", "device", "settings"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "progress": set(),
    "noise": set(),
    "device": set(),
    "settings": set(),
    "table": set(),
    "identity": set(),
    "locks": set(),
    "environment": set(),
    "runs": {"environment", "identity", "locks"},
    "statistics": set(),
    "results": {"identity", "runs", "statistics"},
    "data": {"runs"},
    "models": {"identity", "runs"},
    "attacks": set(),
    "evaluate": {"data", "models"},
    "training": {"data", "models", "attacks", "runs", "statistics"},
    "certification": {"data", "models", "results", "statistics"},
    "auditing": {"attacks", "certification", "data", "models", "results", "runs", "statistics"},
    "learnt_radius": {"results", "statistics"},
    "calibration": {"learnt_radius", "results", "statistics"},
    "under_attack": {"calibration", "learnt_radius", "results", "statistics"},
    "checking": {"data", "evaluate", "models"},
    "exporting": {"calibration", "learnt_radius", "models", "results", "runs", "statistics"},
    "peers": {"models"},
    "predicting": {"calibration", "certification", "data", "models", "results", "runs", "statistics", "under_attack"},
    "comparing": {"certification", "device", "models", "results", "runs", "statistics", "training"},
    "reporting": {"calibration", "certification", "identity", "results", "runs", "statistics", "table"},
    "serving": {"attacks", "calibration", "certification", "data", "models", "results", "statistics"},
    "commands": {
        *(
            "attacks",
            "auditing",
            "calibration",
            "certification",
            "checking",
            "comparing",
            "data",
            "evaluate",
            "exporting",
        ),
        *(
            "identity",
            "models",
            "predicting",
            "reporting",
            "results",
            "runs",
            "serving",
            "statistics",
            "table",
            "training",
            "under_attack",
        ),
    },
    "functions": {"commands", "reporting", "results"},
    "__main__": {"commands"},
    "__init__": {
        *(
            "attacks",
            "auditing",
            "calibration",
            "certification",
            "data",
            "exporting",
            "functions",
            "models",
            "predicting",
        ),
        *("reporting", "results", "statistics", "training", "under_attack"),
    },
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module] if node.module != "heatsmooth" else [f"heatsmooth.{alias.name}" for alias in node.names]
            )
        found |= {name.split(".")[1] for name in names if name.startswith("heatsmooth.")}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in ALLOWED, f"say in this test what the new room {room} may import"
    assert imports(path) - {room} <= ALLOWED[room] | EVERYWHERE


@pytest.mark.parametrize("room", ["statistics", "results"])
def test_results_and_statistics_need_no_torch(room: str) -> None:
    for path in sorted((ROOT / room).glob("*.py")):
        assert not re.search(r"^\s*(import|from) torch\b", path.read_text(), re.MULTILINE), path
        assert "device" not in imports(path)


def test_the_attacks_and_the_objective_stand_alone() -> None:
    assert imports(ROOT / "training/heat.py") <= {"errors", "noise", "training"}
    assert "training" not in imports(ROOT / "attacks.py")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
