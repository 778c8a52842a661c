"""Experiments: a recipe's stacks predicted on costs, or really run, and compared."""
