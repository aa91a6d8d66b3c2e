"""``python -m heatsmooth``, the same as ``heatsmooth``."""

from heatsmooth.cli import main

main()
