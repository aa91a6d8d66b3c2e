"""How close certification comes to the raw forward pass, and how it compares with others, in one run.

    python benchmarks/certify_throughput.py [--from RUN] [--n 10000] [--rounds 5]
    python benchmarks/certify_throughput.py --engines [--from RUN] [--model small]
    python benchmarks/certify_throughput.py --from RUN --adaptive FIXED ADAPTIVE

Without --from the small CIFAR network has random weights: throughput does not depend on them. The second form measures
(g) alone. It needs pip install 'heatsmooth[export]', and measures openvino too if it is installed. The third compares
two finished `heatsmooth certify` runs over the same images, one with --n 10000 and one with --adaptive --radii R,R.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from heatsmooth.certification.certificates import certify, certify_each
from heatsmooth.certification.sampling import Job, Sampler, drawing
from heatsmooth.certification.settings import Sampling, Settings
from heatsmooth.data import ImageSet
from heatsmooth.models import NetworkSpec, build, for_inference, load
from heatsmooth.results.certificates import Certificates
from heatsmooth.runs import provenance, read_json
from heatsmooth.statistics.bounds import clopper_pearson_lower
from heatsmooth.statistics.radii import one_sided_radius

SIGMA, ALPHA, N0 = 0.25, 0.001, 100


def network(source: Path | None, name: str = "small") -> nn.Module:
    """The trained network, or one with random weights."""
    torch.manual_seed(0)
    return build(NetworkSpec(name)).eval() if source is None else load(source)


def plain_layout(model: nn.Module) -> nn.Module:
    """The network as most people have it: batch norm as it is, default memory layout."""
    twin = build(NetworkSpec("small"))
    twin.load_state_dict(model.state_dict())
    twin.mean, twin.std = model.mean, model.std  # type: ignore[assignment]
    twin.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return twin.eval()


def images(count: int) -> Tensor:
    """Some images; their content does not matter."""
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def raw_forward(model: nn.Module, batch: int, samples: int, workers: int) -> None:
    """Nothing but forward passes of one batch: all threads on one, or each thread on its own."""
    x = images(batch).contiguous(memory_format=torch.channels_last)
    threads = torch.get_num_threads()

    @torch.inference_mode()
    def passes(_: int) -> None:
        torch.set_num_threads(threads // workers)
        for _ in range(samples // workers // batch):
            model(x)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(passes, range(workers)))
    torch.set_num_threads(threads)


def beside_the_raw_pass(fast: nn.Module, turns: int, samples: int = 4000) -> None:
    """(a): the sampler, and the raw forward pass in every way that may be its best, in short turns."""
    sampler, threads = Sampler(fast, sigma=SIGMA, classes=10), torch.get_num_threads()
    ways: dict[str, Callable[[], object]] = {
        "sampler": lambda: list(sampler.run([Job(1, images(1)[0], drawing("estimation", samples))]))
    }
    for workers, batch in ((1, 100), (1, 200), (1, 400), (threads, 50), (threads, 100), (threads, 200)):
        how = "all threads on one" if workers == 1 else "each thread on its own"
        ways[f"raw forward pass, batch {batch}, {how}"] = lambda b=batch, w=workers: raw_forward(fast, b, samples, w)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, action in ways.items():
            spent = seconds(action)
            if turn > 0:
                times[name].append(spent)
    for name, found in times.items():
        print(f"  {name:56} {samples / statistics.median(found):6.0f} samples/s")
    best = min((name for name in ways if name != "sampler"), key=lambda name: statistics.median(times[name]))
    share = statistics.median(raw / ours for raw, ours in zip(times[best], times["sampler"], strict=True))
    print(f"(a) of the raw forward pass at its best:          {share:.3f}   (at least 0.9)")


def raw_engines(fast: nn.Module, file: Path) -> dict[str, Callable[[Tensor], object]]:
    """By engine, one pass of a batch on one thread: of the fused network, and of the exported file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    @torch.inference_mode()
    def fused(batch: Tensor) -> object:
        return fast(batch.contiguous(memory_format=torch.channels_last))

    return {
        "PyTorch, fused": fused,
        "onnxruntime": lambda batch: session.run(["probabilities"], {"images": batch.numpy()}),
    }


def openvino_pass(file: Path) -> Callable[[Tensor], object] | None:
    """One pass of a batch by OpenVINO on one thread, if it is installed; float32, where its default may be bfloat16."""
    try:
        import openvino
    except ImportError:
        return None
    compiled = openvino.compile_model(file, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    return lambda batch: compiled([batch.numpy()])


def cpu_seconds(action: Callable[[], object]) -> float:
    """The processor time of this process, which does not depend on what else the machine does."""
    start = time.process_time()
    action()
    return time.process_time() - start


def in_turns(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """The processor time of each way in each turn; a first turn warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, action in ways.items():
            spent = cpu_seconds(action)
            if turn > 0:
                times[name].append(spent)
    return times


def engines(model: nn.Module, turns: int, samples: int = 400) -> None:
    """(g): sampling against the raw forward pass of the fastest engine, on one thread, in turns.

    OpenVINO is compared with onnxruntime afterwards: its threads would take time from the others.
    """
    from heatsmooth.exporting import export_onnx

    threads, x = torch.get_num_threads(), images(200)
    torch.set_num_threads(1)
    fast = for_inference(model, x[:50])

    def passes(one_pass: Callable[[Tensor], object], batch: int) -> Callable[[], object]:
        whole = x[:batch].clone()
        return lambda: [one_pass(whole) for _ in range(samples // batch)]

    def sampling(sampled: nn.Module) -> Callable[[], object]:
        sampler = Sampler(sampled, sigma=SIGMA, classes=10)
        return lambda: list(sampler.run([Job(1, x[0], drawing("estimation", samples))]))

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "model.onnx"
        export = cpu_seconds(lambda: export_onnx(model, file, x[:1], sigma=SIGMA))
        raw = raw_engines(fast, file)
        ways = {"sampling by PyTorch, fused": sampling(fast), "sampling by onnxruntime": sampling(load(file))}
        ways |= {f"raw pass of {engine}, batch {n}": passes(raw[engine], n) for engine in raw for n in (100, 200)}
        times = in_turns(ways, turns)
        other = openvino_pass(file)
        if other is not None:
            beside = {"onnxruntime": passes(raw["onnxruntime"], 100), "OpenVINO": passes(other, 100)}
            vino = in_turns(beside, turns)
            ratio = statistics.median(a / b for a, b in zip(vino["onnxruntime"], vino["OpenVINO"], strict=True))
            print(f"speed of OpenVINO's raw pass, in units of onnxruntime's: {ratio:.2f}")
    torch.set_num_threads(threads)
    print(f"one thread, processor time, medians of {turns} turns; exporting took {export:.1f} s")
    for name, spent in times.items():
        print(f"  {name:56} {samples / statistics.median(spent):6.0f} samples/s")
    fastest = min((name for name in ways if name.startswith("raw")), key=lambda name: statistics.median(times[name]))
    for name in (name for name in ways if name.startswith("sampling")):
        share = statistics.median(raw / ours for raw, ours in zip(times[fastest], times[name], strict=True))
        least = min(times[fastest]) / min(times[name])
        print(f"(g) {name:30} of {fastest}: {share:.3f}, of the fastest turns {least:.3f}   (at least 0.93)")


@torch.inference_mode()
def plain_certify(model: nn.Module, x: Tensor, n: int, batch: int = 1000) -> list[float]:
    """CERTIFY as its pseudo-code reads: one image at a time, batches of 1,000 noisy copies, a count after each."""

    def counts(image: Tensor, samples: int) -> Tensor:
        total = torch.zeros(10, dtype=torch.long)
        while samples > 0:
            size = min(batch, samples)
            samples -= size
            copies = image.repeat(size, 1, 1, 1)
            total += model(copies + torch.randn_like(copies) * SIGMA).argmax(1).bincount(minlength=10)
        return total

    radii = []
    for image in x:
        chosen = int(counts(image, N0).argmax())
        lower = clopper_pearson_lower(int(counts(image, n)[chosen]), n, ALPHA)
        radii.append(float(one_sided_radius(lower, sigma=SIGMA)[0]))
    return radii


def toolbox(model: nn.Module) -> Callable[[Tensor, int, int], object] | None:
    """adversarial-robustness-toolbox's estimator, if it is installed."""
    try:
        from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
    except ImportError:
        return None
    estimator = PyTorchRandomizedSmoothing(
        model, nn.CrossEntropyLoss(), (3, 32, 32), 10, device_type="cpu", sample_size=N0, scale=SIGMA, alpha=ALPHA
    )
    return lambda x, n, batch: estimator.certify(x.numpy(), n=n, batch_size=batch)


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def throughput(arguments: argparse.Namespace) -> None:
    """(a), (b) and (c): samples a second, all variants taking turns."""
    model, n, rounds = network(arguments.source), arguments.n, arguments.rounds
    plain, x = plain_layout(model), images(rounds + 1)
    fast = for_inference(model, x.repeat(10, 1, 1, 1)[:50])
    print(f"n={n}, n0={N0}, {torch.get_num_threads()} threads, medians of {rounds} rounds")
    beside_the_raw_pass(fast, 3 * rounds)
    begin = time.perf_counter()
    records = certify_each(model, ImageSet.of("images", x, None), Settings(SIGMA, n=n, n0=N0), Sampling())
    next(records)
    first = time.perf_counter() - begin
    variants: dict[str, Callable[[Tensor], object]] = {
        "heatsmooth certify": lambda _: next(records),
        "plain Cohen, batch 1000": lambda image: plain_certify(plain, image, n),
    }
    peer, same = toolbox(plain), toolbox(model)
    if peer and same:
        for size in (128, 1000):
            variants[f"toolbox, batch {size}"] = lambda image, b=size: peer(image, n, b)  # type: ignore[misc]
        variants["toolbox, batch 128, channels last"] = lambda image: same(image, n, 128)
    for name, certify_one in variants.items():
        if name != "heatsmooth certify":
            certify_one(x[:1])
    times: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(rounds):
        for name, certify_one in variants.items():
            times[name].append(seconds(lambda: certify_one(x[i + 1 : i + 2])))  # noqa: B023
    speed = {name: (n + N0) / statistics.median(found) for name, found in times.items()}
    ours = speed["heatsmooth certify"]
    print(f"an image at a time; ours once set up, in {max(0.0, first - (n + N0) / ours):.2f} s")
    for name, value in speed.items():
        print(f"  {name:36} {value:8.0f} samples/s")

    def ratio(*others: str) -> float:
        """The median over the rounds, against the fastest of the others."""
        fastest = min(others, key=lambda name: statistics.median(times[name]))
        pairs = zip(times[fastest], times["heatsmooth certify"], strict=True)
        return statistics.median(theirs / mine for theirs, mine in pairs)

    print(f"(b) against a plain implementation of Cohen's:    {ratio('plain Cohen, batch 1000'):.2f}×  (at least 2.5)")
    if peer:
        better = ratio("toolbox, batch 128", "toolbox, batch 1000")
        print(f"(c) against the toolbox at its better batch size: {better:.2f}×  (at least 1.6)")
        print(f"    against it with our memory layout:            {ratio('toolbox, batch 128, channels last'):.2f}×")
    else:
        print("(c) adversarial-robustness-toolbox is not installed: pip install adversarial-robustness-toolbox")


def worker(what: str, n: int, source: Path | None, count: int) -> None:
    """One measurement in a process of its own: its time and peak memory, as JSON."""
    model, x = network(source), images(count)
    if what == "toolbox":
        peer = toolbox(plain_layout(model))
        assert peer is not None
        peer(x, 100, 128)
        spent = seconds(lambda: peer(x, n, 128))
    else:
        certify(model, x[:1], sigma=SIGMA, n=100)
        spent = seconds(lambda: certify(model, x, sigma=SIGMA, n=n))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": spent, "peak": peak, "samples": count * (n + N0)}))


def start(
    what: str, n: int, source: Path | None, count: int = 1, threads: int | None = None
) -> "subprocess.Popen[str]":
    """Begin a measurement."""
    words = [sys.executable, __file__, "--worker", what, "--n", str(n), "--images", str(count)]
    words += [] if source is None else ["--from", str(source)]
    environment = os.environ | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def result(process: "subprocess.Popen[str]") -> dict[str, float]:
    """The figures of a measurement."""
    answer: dict[str, float] = json.loads(process.communicate()[0].splitlines()[-1])
    return answer


def memory(arguments: argparse.Namespace) -> None:
    """(e), and the memory of (c)."""
    few, many = (result(start("ours", n, arguments.source)) for n in (1_000, 100_000))
    peaks = f"n=1,000 {few['peak']:.0f} MB, n=100,000 {many['peak']:.0f} MB"
    print(f"(e) peak memory: {peaks}: {many['peak'] / few['peak']:.3f}  (at most 1.1)")
    if toolbox(network(None)):
        theirs = result(start("toolbox", 100_000, arguments.source))
        print(f"(c) memory for n=100,000: toolbox {theirs['peak']:.0f} MB, ours {many['peak']:.0f} MB")


def scaling(arguments: argparse.Namespace) -> None:
    """(f): two processes of one thread against one."""
    ratios = []
    for _ in range(arguments.rounds):
        alone = result(start("ours", arguments.n, arguments.source, threads=1))
        both = [start("ours", arguments.n, arguments.source, threads=1) for _ in range(2)]
        together = [result(process) for process in both]
        single = alone["samples"] / alone["seconds"]
        ratios.append(sum(found["samples"] / found["seconds"] for found in together) / single)
    rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"(f) two processes of one thread against one:      {statistics.median(ratios):.2f}×  (at least 1.8)")
    print(f"    rounds: {rounds}")


def adaptive(fixed: Path, adapted: Path) -> None:
    """(d): two finished runs over the same images."""
    one, two = map(Certificates.read, (fixed, adapted))
    assert (one.indices == two.indices).all()
    radii = read_json(sorted(adapted.glob("run*.json"))[0])["settings"]["certificate"]["radii"]
    print(f"(d) {len(one.indices)} images, radii {radii}")
    means = one.counts.sum(1).mean(), two.counts.sum(1).mean()
    print(f"    draws an image: fixed {means[0]:.0f}, adaptive {means[1]:.0f}: {means[0] / means[1]:.1f}× fewer")
    print("    (at least 10)")
    apart = 100 * np.abs(one.certified_accuracy(radii) - two.certified_accuracy(radii))
    for radius, a, b in zip(radii, one.certified_accuracy(radii), two.certified_accuracy(radii), strict=True):
        print(f"    certified at {radius:g}: fixed {a:.1%}, adaptive {b:.1%}")
    print(f"    largest difference: {apart.max():.2f} points  (at most 0.5)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--images", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adaptive", nargs=2, type=Path, metavar=("FIXED", "ADAPTIVE"))
    parser.add_argument("--engines", action="store_true", help="measure (g) alone")
    parser.add_argument("--model", default="small", help="architecture of random weights, for --engines")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker, arguments.n, arguments.source, arguments.images)
        return
    facts = provenance()
    print(f"{facts['hardware']['cpu']}, {facts['hardware']['cores']} cores, torch {facts['versions']['torch']}")
    print(f"commit {facts['commit']}")
    if arguments.adaptive:
        adaptive(*arguments.adaptive)
        return
    engines(network(arguments.source, arguments.model), 4 * arguments.rounds)
    if arguments.engines:
        return
    throughput(arguments)
    memory(arguments)
    scaling(arguments)


if __name__ == "__main__":
    main()
