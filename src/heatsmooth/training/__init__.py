"""Objectives, and the one loop that minimises them."""
