"""Comparisons of methods: recipes as data, and what their runs show."""
