"""Measurements of speed, side by side in one process."""
