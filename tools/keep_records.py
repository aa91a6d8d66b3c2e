"""Copy what a comparison recorded into ``results``: no weights, no pictures, no paths of this machine.

    python tools/keep_records.py runs/fashion-small results/fashion-small

Top-k certificates stay behind, as ``heatsmooth certify --recompute … --top-k`` makes them from the others' counts.
"""

import argparse
from pathlib import Path


def main() -> None:
    """Copy the records; say how many bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--cut", nargs="*", default=[], metavar="PREFIX", help="other paths to leave out")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    prefixes = sorted({f"{source.parent}/", *(f"{prefix.rstrip('/')}/" for prefix in arguments.cut)}, key=len)
    size = 0
    for file in sorted(source.rglob("*.json*")):
        place = file.relative_to(source)
        if "-top-" in str(place):
            continue
        text = file.read_text(encoding="utf-8")
        for prefix in reversed(prefixes):
            text = text.replace(prefix, "")
        (arguments.target / place).parent.mkdir(parents=True, exist_ok=True)
        (arguments.target / place).write_text(text, encoding="utf-8")
        size += len(text)
    print(f"{arguments.target}: {size:,} bytes")


if __name__ == "__main__":
    main()
