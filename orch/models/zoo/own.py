"""Models that a recipe names by `python: pkg.mod:fn`: build them, and see their step by tracing it."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from orch.errors import OrchError
from orch.models.batches import Batch
from orch.models.profile import Profile
from orch.models.zoo.guard import RefusedError, guarded
from orch.models.zoo.objective import Objective
from orch.models.zoo.trace import trace

if TYPE_CHECKING:
    from orch.models.catalogue import PythonModel
    from orch.models.datasets import ChosenData

TRACED_BATCH = 2  # batch normalisation needs more than one value a channel


def build(chosen: PythonModel, seed: int) -> nn.Module:
    """Return `fn(**arguments)` of `pkg.mod:fn`, with torch's random state set from `seed` and put back afterwards.

    Raises OrchError (E424) when it cannot be imported, fails, or returns no module.
    """
    path, where = chosen.path, chosen.where
    module, _, function = path.partition(":")
    if chosen.root is not None and chosen.root not in sys.path:
        sys.path.append(chosen.root)
    try:
        make = getattr(importlib.import_module(module), function)
        with torch.random.fork_rng(devices=[]), nullcontext() if chosen.listed else guarded():
            torch.manual_seed(seed)
            model = make(**chosen.arguments)
    except RefusedError as error:
        hint = f'if it is yours to trust, write techniques = ["{module}"] in orch.toml'
        raise OrchError(f"model {path} may not be made so: {error}", code="E424", where=where, hint=hint) from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise OrchError(f"model {path} cannot be made: {reason}", code="E424", where=where) from error
    if not isinstance(model, nn.Module):
        message = f"model {path} returned {type(model).__name__}, not a torch.nn.Module"
        raise OrchError(message, code="E424", where=where)
    return model


def profile(path: str, model: nn.Module, data: ChosenData) -> Profile:
    """Return the profile of one step of `model` on the first samples of `data`. Raises OrchError (E424) if it fails."""
    loaded = data.load()
    inputs, targets = loaded.train.take(np.arange(TRACED_BATCH) % len(loaded.train))
    batch = Batch(inputs, targets, 0, 0.0)
    objective = Objective(loaded.interface.answers)
    source = f"traced: one step of {path} on {data.name}"
    try:
        return trace(model, lambda m: objective.loss(m, batch), batch=TRACED_BATCH, name=path, source=source)
    except OrchError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise OrchError(f"model {path} fails on data {data.name}: {reason}", code="E424") from error
