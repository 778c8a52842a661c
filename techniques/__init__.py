"""The techniques that ship with orch: one module each, found by name. Nothing in `orch/` imports them by name."""
