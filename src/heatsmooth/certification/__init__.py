"""How large a perturbation the averaged classifier withstands: counts, bounds, radii, certificates."""
