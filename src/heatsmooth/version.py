"""The version, read by the build without importing anything else."""

VERSION = "0.1.0"
