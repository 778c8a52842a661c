"""Runs a plan in one worker, with torch: hooks drive the compute stream, process groups are arguments."""
