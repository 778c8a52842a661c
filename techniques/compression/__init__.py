"""Compressors, feedback and exchanges: what is sent in place of a dense gradient."""
