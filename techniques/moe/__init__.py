"""Schedules of mixture-of-experts layers."""
