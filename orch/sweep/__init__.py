"""Sweeps: Optuna proposes settings by ask and tell, in the driver; each trial is a recipe, predicted or really run."""
