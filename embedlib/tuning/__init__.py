"""Measures how a model runs fastest on this machine, and keeps it for later loads."""

from embedlib.tuning.tune import Tuned, TuneOptions, tune

__all__ = ["TuneOptions", "Tuned", "tune"]
