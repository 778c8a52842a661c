"""Calibration: a few minutes of micro-runs that write a cluster file and a profile, with what they rest on."""

from orch.calibrate.calibrate import Asked, Calibration, calibrate

__all__ = ["Asked", "Calibration", "calibrate"]
