"""Calibration: constants of the cost model from measurements, and how well they predict what was not fitted."""
