"""Every technique: one module a technique, grouped by family, found by name without being imported."""
