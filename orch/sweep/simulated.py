"""A simulated trial: the plan of one stack, its step time and bytes. Nothing is drawn up that no metric asks for."""

from __future__ import annotations

from collections.abc import Sequence

from orch.experiment.predict import Inputs, described, footprint, plan_stack
from orch.plan import Plan
from orch.recipe import Recipe
from orch.simulate import simulate
from orch.sweep.metrics import InfeasibleError
from orch.sweep.settings import Trial

_BYTES = ("payload", "wire", "memory")
_KEPT = 64


class Simulator:
    """Predicts the metrics of trials; what trials share that differ in knobs only is worked out once."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = metrics
        self._inputs: dict[int, tuple[Recipe, Inputs]] = {}
        self._baselines: dict[int, tuple[Recipe, float]] = {}

    def values(self, trial: Trial) -> dict[str, float]:
        """Return the metrics of a trial. Raises InfeasibleError for a plan that does not fit the device's memory."""
        recipe, stack = trial.recipe, trial.stack
        inputs = self._described(recipe)
        plan, _ = plan_stack(recipe, stack, inputs, timed=False)
        held = footprint(recipe, stack, inputs, plan)
        room = inputs.cluster.device.memory_bytes
        if room is not None and held.peak_memory > room:
            raise InfeasibleError(
                f"out of memory: {held.peak_memory / 2**30:.1f} of {room / 2**30:.1f} GiB (predicted)"
            )
        found = {"payload": held.payload, "wire": held.wire, "memory": float(held.peak_memory)}
        found |= self._times(recipe, stack, inputs, plan)
        return {name: found[name] for name in self._metrics}

    def _times(self, recipe: Recipe, stack: str, inputs: Inputs, plan: Plan) -> dict[str, float]:
        if all(name in _BYTES for name in self._metrics):
            return {}
        seconds = simulate(plan, inputs.cluster).step_time_s
        samples = recipe.layout.readers * recipe.batch_per_worker(stack)
        found = {"step_time": seconds, "throughput": samples / seconds}
        if "exposed_time" in self._metrics:
            free = simulate(plan, inputs.cluster.communication_free()).step_time_s
            found["exposed_time"] = max(0.0, seconds - free)
        if "speedup" in self._metrics:
            found["speedup"] = self._baseline_s(recipe, inputs) / seconds
        return found

    def _described(self, recipe: Recipe) -> Inputs:
        key = id(recipe.cluster)
        known = self._inputs.get(key)
        if known is None or known[0].cluster is not recipe.cluster:
            if len(self._inputs) > _KEPT:
                self._inputs.clear()
                self._baselines.clear()
            known = self._inputs[key] = (recipe, described(recipe))
        return known[1]

    def _baseline_s(self, recipe: Recipe, inputs: Inputs) -> float:
        """Return the step time of the recipe's baseline with the same model, batch and cluster."""
        key = id(recipe.cluster)
        if key not in self._baselines:
            plan, _ = plan_stack(recipe, recipe.baseline.name, inputs, timed=False)
            self._baselines[key] = (recipe, simulate(plan, inputs.cluster).step_time_s)
        return self._baselines[key][1]
