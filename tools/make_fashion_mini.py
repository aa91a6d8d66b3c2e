"""Make ``src/heatsmooth/data/fashion-mini.npz`` from the full Fashion-MNIST (``--data fashion-mnist``).

    python tools/make_fashion_mini.py

It takes 1,200 training and 200 test images per class, selected with a fixed seed, in their original order. The indices
into the full set are stored beside the images.
"""

from pathlib import Path

import numpy as np
import torch

from heatsmooth.data import load_images

TARGET = Path(__file__).parents[1] / "src/heatsmooth/data/fashion-mini.npz"
PER_CLASS = {"train": 1200, "test": 200}


def main() -> None:
    """Select and store the images, and print what was stored."""
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        full = load_images("fashion-mnist", split)
        labels = full.known_labels().numpy()
        rng = np.random.default_rng(2021)
        selected = np.sort(
            np.concatenate([rng.permutation(np.flatnonzero(labels == c))[: PER_CLASS[split]] for c in range(10)])
        )
        arrays[f"{split}_images"] = full.raw(torch.from_numpy(selected)).squeeze(1).numpy()
        arrays[f"{split}_labels"] = labels[selected].astype(np.uint8)
        arrays[f"{split}_indices"] = selected.astype(np.uint16)
    np.savez_compressed(TARGET, allow_pickle=False, **arrays)
    counts = f"{len(arrays['train_labels'])} training and {len(arrays['test_labels'])} test images"
    print(f"{TARGET}: {counts}, {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
