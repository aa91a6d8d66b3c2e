"""Published certification logs and own runs on one page: certified accuracy at fixed radii, row by row."""

from heatsmooth.reporting.board.page import build_board

__all__ = ["build_board"]
