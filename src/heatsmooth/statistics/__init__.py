"""The mathematics of certificates: bounds, confidence sequences, radii, accuracies. Arrays only, no torch."""
