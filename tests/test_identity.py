"""A network is known by its architecture, its weights and its answers, and known again within rounding."""

import importlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heatsmooth import InputError
from heatsmooth.commands.line import run
from heatsmooth.identity import Identity, first_difference, network_settings, recorded_identity
from heatsmooth.models import Classifier, NetworkSpec, build, for_inference, identify, is_known_as, model_hash, save
from heatsmooth.models.probes import probe_images
from heatsmooth.results.certificates import read_certificates
from heatsmooth.runs import read_json, write_json
from tests.conftest import tiny_classifier

SHAPE = (3, 12, 12)
NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, sign=1.0, shift=0.0, hidden=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(16, 5)
        self.sign, self.shift = sign, shift
        self.register_buffer("hidden", torch.tensor([hidden, 0, 0, 0, 0]), persistent=False)

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(self.conv(x).relu(), 2).flatten(1)
        return self.sign * self.fc(x) + self.hidden + self.shift * x[:, :1]

def a(): return Net()
def same_code(): return Net()
def flipped(): return Net(sign=-1.0)
def edited(): return Net(shift=0.5)
def buffered(): return Net(hidden=0.1)
"""
CERTIFY = "certify --data npz:i.npz --sigma 0.25 --n 50 --n0 10 --quiet --device cpu"
CALIBRATE = "calibrate --certificates c --epsilon 0.4 --out"
ONE_PASS = "one-pass --model alike:a --data npz:i.npz --quiet --device cpu"


@pytest.fixture
def nets(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's module of networks that share their weights and differ in what they answer, and images."""
    monkeypatch.delitem(sys.modules, "alike", raising=False)
    (in_tmp / "alike.py").write_text(NETS)
    monkeypatch.syspath_prepend(in_tmp)
    np.savez("i.npz", images=np.random.default_rng(0).random((36, 12, 12, 3), dtype=np.float32))
    return in_tmp


@pytest.mark.parametrize("other", ["same_code", "flipped", "edited", "buffered"])
def test_shards_of_networks_that_share_their_weights_do_not_mix(
    nets: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{CERTIFY} --images 4 --out c"
    assert run([*words.split(), "--from", "alike:a", "--shard", "1/2"]) == 0
    assert run([*words.split(), "--from", f"alike:{other}", "--shard", "2/2"]) == 2
    assert f"expected the model architecture it was started with, 'alike:a', got 'alike:{other}'" in (
        capsys.readouterr().err
    )
    assert run([*words.split(), "--from", "alike:a", "--shard", "2/2"]) == 0
    assert len({json.loads(line)["index"] for f in nets.glob("c/*.jsonl") for line in f.read_text().splitlines()}) == 4


@pytest.mark.parametrize("other", ["flipped", "edited", "buffered"])
def test_the_same_name_with_other_answers_is_another_network(
    nets: Path, other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever edits the code, an attribute or a buffer that is not saved, must certify again."""
    words = [*f"{CERTIFY} --images 4 --out c --from alike:a".split(), "--shard"]
    assert run([*words, "1/2"]) == 0
    module = importlib.import_module("alike")
    monkeypatch.setattr(module, "a", getattr(module, other))
    assert run([*words, "2/2"]) == 2
    assert "expected the model answer to a probe image it was started with" in capsys.readouterr().err
    for command in ("attack --attack ddn --steps 2", "audit --sigma 0.25 --n 50 --steps 2", "smooth --sigma 0.25"):
        np.savez("l.npz", images=np.load("i.npz")["images"][:6], labels=np.arange(6) % 5)
        start = f"{command} --data npz:l.npz --from alike:a --quiet --device cpu --out {command.split()[0]}".split()
        assert run(start) == 0
        monkeypatch.setattr(module, "a", module.same_code)
        assert run(start) == 2
        assert "answer to a probe image it was started with" in capsys.readouterr().err
        monkeypatch.setattr(module, "a", getattr(module, other))


def test_certificates_of_another_network_do_not_calibrate(
    nets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{CERTIFY} --from alike:a --out c".split()) == 0
    for other in ("same_code", "flipped", "buffered"):
        assert run([*CALIBRATE.split(), "x", "--from", f"alike:{other}"]) == 2
        assert (
            f"those of the model (architecture 'alike:{other}'), got another's ('alike:a')" in capsys.readouterr().err
        )
    assert run([*CALIBRATE.split(), "k", "--from", "alike:a"]) == 0
    assert run([*CALIBRATE.split(), "again", "--from", "k", "--model", "alike:a"]) == 0
    one_pass = f"{ONE_PASS} --from k".split()
    assert run([*one_pass, "--out", "p"]) == 0
    assert run([*one_pass, "--out", "p"]) == 0
    module = importlib.import_module("alike")
    monkeypatch.setattr(module, "a", module.flipped)
    assert run([*one_pass, "--out", "q"]) == 2
    assert "expected a calibration of this model, got another's" in capsys.readouterr().err
    assert run([*CALIBRATE.split(), "x", "--from", "alike:a"]) == 2
    assert "expected those of the model (answer to a probe image" in capsys.readouterr().err


def test_runs_begun_before_networks_had_an_identity_go_on(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their run.json and calibration.json hold the hash of the weights alone."""
    assert run(f"{CERTIFY} --from alike:a --out whole".split()) == 0
    shutil.copytree("whole", "c")
    lines = Path("c/certificates.jsonl").read_text().splitlines(keepends=True)
    Path("c/certificates.jsonl").write_text("".join(lines[:5]))
    info = read_json(Path("c/run.json"))
    del info["settings"]["networks"]
    assert len(info["settings"]["model"]) == 16
    write_json(Path("c/run.json"), info | {"status": "running"})
    assert run(f"{CERTIFY} --from alike:a --out c".split()) == 0
    seen = [[(row.index, row.counts) for row in read_certificates(Path(name))] for name in ("c", "whole")]
    assert seen[0] == seen[1]
    assert run(f"{CALIBRATE} k --from alike:a".split()) == 0
    old = read_json(Path("k/calibration.json"))
    assert recorded_identity({"model": old["model_hash"]}) == Identity(old["model_hash"])
    del old["network"]
    write_json(Path("k/calibration.json"), old)
    assert run(f"{ONE_PASS} --from k --out p".split()) == 0
    save(tiny_classifier(channels=3), Path("other.safetensors"))
    assert run(f"{CERTIFY} --from other.safetensors --out c".split()) == 2
    assert "expected the model it was started with" in capsys.readouterr().err


class Perturbed(nn.Module):
    """The same network whose logits are off by a relative error, another in each."""

    def __init__(self, network: nn.Module, error: float) -> None:
        super().__init__()
        self.network, self.error = network, error
        self.state_dict = network.state_dict  # type: ignore[method-assign]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        signs = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)).sub(0.5).sign()
        return logits * (1 + self.error * signs)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_a_network_is_known_again_within_rounding(classes: int) -> None:
    spec = NetworkSpec("small", classes, 3, (0.5,), (0.25,), 12)
    model = build(spec).eval()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.normal_(0, 0.3)  # type: ignore[union-attr]
    known = identify(model, SHAPE)
    assert known.answers is not None
    assert max(map(len, known.answers)) <= 10
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    assert is_known_as(model, known)
    torch.set_num_threads(threads)
    plain = build(spec).eval()
    plain.load_state_dict(model.state_dict())
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    assert is_known_as(plain, known)
    folded = for_inference(model, probe_images(SHAPE))
    theirs = identify(folded, SHAPE)
    assert folded.network is not model.network
    assert Identity(known.weights, known.architecture, theirs.shape, theirs.answers).difference(known) is None
    for error, same in ((1e-6, True), (1e-5, True), (1e-2, False)):
        assert is_known_as(Classifier(Perturbed(model.network, error), spec), known) is same
    assert Identity.from_json(json.loads(json.dumps(known.to_json()))) == known
    assert known.weights == model_hash(model)
    with torch.no_grad():
        next(model.parameters())[0] += 1e-3
    assert not is_known_as(model, known)


@pytest.mark.parametrize("classes", [5, 1000])
def test_two_classes_in_each_others_place_are_noticed(classes: int) -> None:
    class Swapped(nn.Module):
        def __init__(self, order: list[int]) -> None:
            super().__init__()
            self.fc, self.order = nn.Linear(3 * 144, classes), order

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.fc(images.flatten(1))
            return logits[:, self.order]

    order = list(range(classes))
    plain = Swapped(order)
    known = identify(plain, SHAPE)
    for first in range(0, classes - 1, max(1, classes // 50)):
        swapped = [*order]
        swapped[first], swapped[first + 1] = order[first + 1], order[first]
        plain.order = swapped
        assert not is_known_as(plain, known)


def test_networks_that_draw_at_random_are_known_by_architecture_and_weights() -> None:
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.noise = nn.Linear(3 * 144, 10), 0.5

        def forward(self, images: Tensor) -> Tensor:
            return nn.functional.dropout(self.fc(images.flatten(1)), self.noise, training=True)

    model = Random()
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    known = identify(model, SHAPE)
    assert known.answers is None
    assert torch.equal(torch.random.get_rng_state(), before)
    assert is_known_as(model, known)
    model.noise = 0.0
    assert not is_known_as(model, known)


def test_answers_that_are_not_finite_do_not_spoil_the_record() -> None:
    class Infinite(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :3].log() / torch.tensor([1.0, 0.0, 0.0])

    known = identify(Infinite(), SHAPE)
    assert "NaN" not in json.dumps(known.to_json())
    assert "Infinity" not in json.dumps(known.to_json())
    assert is_known_as(Infinite(), known)


def test_probe_images_never_change() -> None:
    """They are part of published records: if this fails, give the new ones a new format number."""
    images = probe_images((3, 32, 20))
    assert images.shape == (4, 3, 32, 20)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    assert [round(float(image.double().mean()), 6) for image in images] == [0.485649, 0.520702, 0.46521, 0.47636]


def test_settings_are_compared_number_by_number_but_networks_within_rounding() -> None:
    one = Identity("w", "nets:a", (1, 2, 2), ((1.0, 2.0),))
    other = Identity("w", "nets:a", (1, 2, 2), ((1.00001, 2.0),))
    before, now = ({"seed": 0, **network_settings(model=i, teacher=None)} for i in (one, other))
    assert before["teacher"] is None
    assert first_difference(before, now) is None
    assert first_difference({"seed": 0, "model": "w", "teacher": None}, now) is None
    assert first_difference({"seed": 1, "model": "w"}, {"seed": 0, "model": "w"}) == ("seed", 1, 0)
    assert first_difference({"a": {"b": False}}, {"a": {"b": None}}) == ("a b", False, None)
    assert first_difference({"a": 0}, {}) == ("a", 0, None)
    for damage in ({"format": 99}, {"shape": [1, 2]}, {"shape": None}, {"answers": [[float("nan")]]}, {"answers": 3}):
        with pytest.raises(InputError, match="expected the identity of a network"):
            Identity.from_json(one.to_json() | damage)


def test_a_network_of_transformers_is_known_wherever_it_lies() -> None:
    """Its name is a path or one on the hub; its configuration is part of the hash."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 4))
    here, there = (Classifier(network, NetworkSpec(name, 4, config="{}")) for name in ("hf:net", "hf:/abs/net"))
    assert is_known_as(there, identify(here, SHAPE))
    assert not is_known_as(Classifier(network, NetworkSpec("hf:net", 4, config="{1}")), identify(here, SHAPE))


@pytest.mark.parametrize("classes", [5, 1000])
@pytest.mark.parametrize("masked", [-1e4, -1e9, -torch.inf, torch.nan])
def test_one_huge_logit_does_not_hide_what_the_others_say(classes: int, masked: float) -> None:
    class Masked(nn.Module):
        """The logits of all classes but one, times a sign that no weight tells."""

        def __init__(self, sign: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.sign, self.fc = sign, nn.Linear(3 * 12 * 12, classes - 1)

        def forward(self, x: Tensor) -> Tensor:
            logits = self.sign * self.fc(x.flatten(1))
            return torch.cat([logits, torch.full_like(logits[:, :1], masked)], 1)

    plain, flipped = (identify(Masked(sign), SHAPE) for sign in (1.0, -1.0))
    assert plain.difference(identify(Masked(1.0), SHAPE)) is None
    assert plain.difference(flipped) is not None


def test_parts_that_begin_together_are_compared_with_each_other(tmp_path: Path) -> None:
    """Two processes that look for another's settings before either has written its own would mix two networks."""
    code = """
import sys, time
from pathlib import Path
from heatsmooth.runs import Run
number, begin = sys.argv[1:]
time.sleep(max(0, float(begin) - time.time()))
try:
    Run(Path("R"), "certify", {"model": number}, part=f"-{number}-of-2").close()
except ValueError as error:
    sys.exit(str(error))
"""
    for _ in range(3):
        shutil.rmtree(tmp_path / "R", ignore_errors=True)
        begin = str(time.time() + 1.5)
        words = ([sys.executable, "-c", code, number, begin] for number in "12")
        both = [subprocess.Popen(each, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for each in words]
        told = [process.communicate(timeout=60)[1] for process in both]
        assert sorted(process.returncode for process in both) == [0, 1]
        assert "expected the model it was started with" in "".join(told)


def test_parts_of_two_networks_that_were_copied_together_are_refused(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("a", "flipped"), start=1):
        assert run(f"{CERTIFY} --from alike:{name} --shard {number}/2 --out {name}".split()) == 0
    for file in Path("flipped").glob("*2-of-2*"):
        shutil.copy(file, "a")
    capsys.readouterr()
    assert run(["calibrate", "--certificates", "a", "--epsilon", "0.4", "--from", "alike:a", "--out", "out"]) == 2
    assert "expected parts of one run, got parts with other settings" in capsys.readouterr().err
    assert run(["report", "a", "--out", "page.html"]) == 2
    assert "parts with other settings" in capsys.readouterr().err
