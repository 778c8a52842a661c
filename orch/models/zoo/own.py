"""Models that a recipe names by `python: pkg.mod:fn`: build them, and see their step by tracing it."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from orch.errors import OrchError, Position
from orch.models.batches import Batch
from orch.models.kinds import Classes
from orch.models.profile import Profile
from orch.models.zoo.guard import RefusedError, guarded
from orch.models.zoo.objective import Objective, logits_of
from orch.models.zoo.trace import trace

if TYPE_CHECKING:
    from orch.models.catalogue import ChosenModel, PythonModel
    from orch.models.datasets import ChosenData
    from orch.models.splits import Loaded

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
    batch = _first(loaded, TRACED_BATCH)
    objective = Objective(loaded.interface.answers)
    source = f"traced: one step of {path} on {data.name}"
    try:
        return trace(model, lambda m: objective.loss(m, batch), batch=TRACED_BATCH, name=path, source=source)
    except OrchError:
        raise
    except Exception as error:
        raise _misfit(path, loaded, error) from error


def refuse_misfit(chosen: ChosenModel, model: nn.Module, loaded: Loaded, batch: int) -> None:
    """Raise OrchError (E424), at the recipe's line for code of the user's, when `model`, freshly built and not trained
    any more, cannot take a step on `batch` samples: what of it can be known before any stack trains it.
    """
    where = getattr(chosen, "where", None)
    answers, samples = loaded.interface.answers, _first(loaded, batch)
    width = 0
    try:
        with torch.no_grad():
            Objective(answers).loss(model, samples)
            if isinstance(answers, Classes):
                width = logits_of(model(torch.from_numpy(samples.inputs))).shape[-1]
    except Exception as error:
        raise _misfit(chosen.name, loaded, error, where) from error
    if isinstance(answers, Classes) and width < answers.number:
        message = f"model {chosen.name} answers one of {width} classes, data {loaded.name} has {answers.number}"
        raise OrchError(message, code="E424", where=where)


def _first(loaded: Loaded, number: int) -> Batch:
    inputs, targets = loaded.train.take(np.arange(number) % len(loaded.train))
    return Batch(inputs, targets, 0, 0.0)


def _misfit(path: str, loaded: Loaded, error: Exception, where: Position | None = None) -> OrchError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return OrchError(f"model {path} fails on data {loaded.name}: {reason}", code="E424", where=where)
