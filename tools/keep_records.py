"""Copy the records of a comparison into ``results``, without weights, pictures and paths of this machine.

    python tools/keep_records.py runs/fashion-small results/fashion-small

Top-k certificates are left out: ``heatsmooth recompute --top-k`` makes them from the stored counts.
"""

import argparse
from pathlib import Path

from heatsmooth.runs import Records, read_records


def main() -> None:
    """Copy the records and print their size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--cut", nargs="*", default=[], metavar="PREFIX", help="other paths to leave out")
    parser.add_argument("--drop", nargs="*", default=[], metavar="FIELD", help="fields of certificates, as sums")
    arguments = parser.parse_args()
    source = arguments.source.resolve()
    prefixes = sorted({f"{source.parent}/", *(f"{prefix.rstrip('/')}/" for prefix in arguments.cut)}, key=len)
    size = 0
    for file in sorted(source.rglob("*.json*")):
        copy = arguments.target / file.relative_to(source)
        if "-top-" in str(copy):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        if file.suffix == ".jsonl":
            with Records(copy) as records:
                for record in read_records(file):
                    records.append({name: value for name, value in record.items() if name not in arguments.drop})
        else:
            text = file.read_text(encoding="utf-8")
            for prefix in reversed(prefixes):
                text = text.replace(prefix, "")
            copy.write_text(text, encoding="utf-8")
        size += copy.stat().st_size
    print(f"{arguments.target}: {size:,} bytes")


if __name__ == "__main__":
    main()
