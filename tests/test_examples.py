import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_heat_1d_reaches_the_gaussian_average(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("heat_1d", EXAMPLES / "heat_1d.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(tmp_path / "figure.svg") < 0.02
    assert (tmp_path / "figure.svg").stat().st_size > 1000
