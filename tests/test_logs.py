"""The published logs give the published figures."""

from pathlib import Path

import numpy as np
import pytest

from heatsmooth import InputError
from heatsmooth.results.logs import read_log
from heatsmooth.results.radii import radii_of

PUBLISHED = Path(__file__).parents[2] / "shared/data/cohen-logs"
HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime"


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published logs")
@pytest.mark.parametrize(
    ("name", "expected", "abstained"),
    [
        ("certify/cifar10/noise_0.25_sigma_0.25.tsv", {0.25: 0.600, 0.5: 0.428, 0.75: 0.266}, 43),
        ("certify/cifar10/noise_0.50_sigma_0.50.tsv", {0.25: 0.546, 1.0: 0.234}, None),
        ("certify/imagenet/noise_0.50_sigma_0.50.tsv", {1.0: 0.372, 1.5: 0.286}, None),
    ],
)
def test_published_certificates(name: str, expected: dict[float, float], abstained: int | None) -> None:
    rows = read_log(PUBLISHED / name)
    assert len(rows) == 500
    shares = radii_of(rows).certified_accuracy(list(expected)).tolist()
    assert dict(zip(expected, shares, strict=True)) == expected
    if abstained is not None:
        assert sum(row.abstain for row in rows) == abstained


@pytest.mark.skipif(not PUBLISHED.exists(), reason="needs the published logs")
def test_published_predictions() -> None:
    rows = read_log(PUBLISHED / "predict/imagenet/noise_0.25_N_1000.tsv")
    assert np.mean([row.correct for row in rows]) == 0.680
    assert np.mean([row.abstain for row in rows]) == 0.032
    assert rows[0].radius is None
    assert rows[0].seconds == pytest.approx(6.513843)


def test_every_variant_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_bytes((HEADER + "\r\n0\t3\t3\t0.378\t1\t15.4\r\n20\t7\t-1\t0.0\t0\t0:00:15\r\n40\t4\t4\t0.3").encode())
    rows = read_log(path)
    assert [row.index for row in rows] == [0, 20]
    assert [row.abstain for row in rows] == [False, True]
    assert rows[1].seconds == 15
    path.write_text(HEADER + "\n")
    assert read_log(path) == []
    path.write_text("idx\tlabel\tpredict\tbasePredict\tradius\tcorrect\ttime\n1\t2\t2\t5\t0.25\t1\t0:01:00\n")
    assert read_log(path)[0].base_predicted == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "an empty file"),
        ("a\tb\n1\t2\n", "expected columns idx"),
        (HEADER + "\nx\t1\t1\t0\t1\t1\n0\t3\t3\t0.378\t1\t15.4\n", ":2: expected 6 columns"),
    ],
)
def test_broken_logs_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "log.tsv").write_text(content)
    with pytest.raises(InputError, match=message):
        read_log(tmp_path / "log.tsv")
    with pytest.raises(InputError, match=r"none\.tsv"):
        read_log(tmp_path / "none.tsv")
