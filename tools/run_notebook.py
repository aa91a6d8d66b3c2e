"""Run a notebook from top to bottom, and store what its cells show.

    python tools/run_notebook.py examples/quickstart.ipynb

A cell that fails ends the run with its traceback. Times and versions are not stored, so that a second run of the same
code changes little.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from jupyter_client import KernelManager
from nbclient import NotebookClient

TRANSPORT = "tcp" if os.name == "nt" else "ipc"
"""Files where the system has them: ports may be taken."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main() -> None:
    """Run the notebook and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: in place)")
    arguments = parser.parse_args()
    notebook = nbformat.read(arguments.notebook, 4)
    with tempfile.TemporaryDirectory() as folder:
        kernel = KernelManager(transport=TRANSPORT, connection_file=f"{folder}/kernel.json")
        client = NotebookClient(notebook, km=kernel, timeout=600, record_timing=False)
        try:
            client.execute(cwd=str(arguments.notebook.parent))
        finally:
            kernel.shutdown_kernel(now=True)
    notebook.metadata = METADATA
    nbformat.write(notebook, arguments.out or arguments.notebook)


if __name__ == "__main__":
    main()
