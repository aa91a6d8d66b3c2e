"""``python -m heatsmooth``."""

from heatsmooth.commands.line import main

main()
