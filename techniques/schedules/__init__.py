"""Schedules: which gradients share a collective, and when it is sent."""
