"""Input: how batches get to the device."""
