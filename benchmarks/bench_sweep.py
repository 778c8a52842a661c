"""How many trials a second a sweep makes: `python -m benchmarks.bench_sweep`. Bars: 300 simulated ones with a random sampler,
100 with TPE, and 10 real ones of a trivial job of 2 workers that stay warm.

Beside them, in the same process: plain Optuna on the same space, in memory and with its own journal file, with an objective
that costs nothing, which is what proposing and keeping alone take; and, with `--ray`, Ray Tune with trials that do nothing, each
in a process of its own and in processes that are kept.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from time import perf_counter

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from orch.experiment.show import Terminal
from orch.gang import end_all
from orch.sweep.doing import Asked
from orch.sweep.invoke import sweep
from orch.sweep.study import storage_of

BARS = {"random": 300.0, "TPE": 100.0, "real": 10.0}
RECIPE = """\
orch: 1
name: rate
model: resnet-digits
data: digits8
train: {batch_per_worker: 8, optimizer: {sgd: {lr: 0.05}}}
cluster: {use: local-4, devices_per_node: 2}
stacks: {wfbp: [wfbp], buckets: [bucketed]}
baseline: wfbp
measure: {blocks: 1, steps: 1, warmup: 0}
sweep:
  over: {stack: [buckets], techniques.bucketed.cap: {low: 1KiB, high: 1MiB}}
  minimize: step_time
  confirm: false
"""


def swept_per_s(root: Path, trials: int, *overrides: str, on: str | None = None, warm: int = 1) -> float:
    """Return trials a second of a sweep: from the end of its first `warm` trials, with which all start-up ends, to that of
    its last.
    """
    recipe = root / "rate.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    runs = root / f"runs{len(list(root.iterdir()))}"
    asked = Asked(str(recipe), overrides, on=on, simulate=on is None, trials=warm + trials, runs=runs, track=False)
    found = sweep(asked, Terminal(io.StringIO()))
    study = optuna.load_study(study_name=found["study"], storage=storage_of(found["storage"]))
    ended = sorted(trial.datetime_complete for trial in study.trials if trial.datetime_complete is not None)
    if len(ended) != warm + trials:
        raise RuntimeError(f"{len(ended)} of {warm + trials} trials ended")
    return trials / (ended[-1] - ended[warm - 1]).total_seconds()


def optuna_per_s(root: Path, trials: int, sampler: optuna.samplers.BaseSampler, *, kept: bool) -> float:
    """Return trials a second of plain Optuna on the same space: `kept` in its journal file, or in memory."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = root / f"plain{len(list(root.iterdir()))}.journal"
    storage = JournalStorage(JournalFileBackend(str(path))) if kept else None
    study = optuna.create_study(storage=storage, sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        return float(trial.suggest_int("cap", 1 << 10, 1 << 20))

    begin = perf_counter()
    study.optimize(objective, n_trials=trials)
    return trials / (perf_counter() - begin)


def tune_per_s(root: Path, trials: int, *, reuse: bool) -> float:
    """Return trials a second of Ray Tune whose trainable returns at once, in actors that it reuses or in new ones. It needs
    the extras of ray[tune].
    """
    import ray
    from ray import tune

    class Nothing(tune.Trainable):
        def setup(self, config: dict[str, float]) -> None:
            self.x = config["x"]

        def step(self) -> dict[str, object]:
            return {"x": self.x, "done": True}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Keep nothing: Tune asks for it when it ends or pauses a trial."""

        def reset_config(self, new_config: dict[str, float]) -> bool:
            self.x = new_config["x"]
            return True

    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        tuner = tune.Tuner(
            Nothing,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=reuse),
            run_config=tune.RunConfig(storage_path=str(root / f"tune{reuse}"), verbose=0),
        )
        begin = perf_counter()
        with redirect_stdout(io.StringIO()):
            ended = tuner.fit()
        if ended.errors:
            raise RuntimeError(f"{len(ended.errors)} of {trials} trials of Ray Tune failed: {ended.errors[0]}")
        return trials / (perf_counter() - begin)
    finally:
        ray.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print trials a second beside their bars; return how many bars were missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400, help="simulated trials of each sampler")
    parser.add_argument("--real", type=int, default=40, help="real trials; 0 leaves them out")
    parser.add_argument("--ray", action="store_true", help="Ray Tune beside them")
    asked = parser.parse_args(arguments)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rates = {
            "random": swept_per_s(root, asked.trials, "sweep.sampler=RandomSampler"),
            "TPE": swept_per_s(root, asked.trials, "sweep.sampler=TPESampler"),
        }
        if asked.real:
            rates["real"] = swept_per_s(root, asked.real, "sweep.sampler=RandomSampler", on="processes", warm=2)
            end_all()
        for name, rate in rates.items():
            missed += rate < BARS[name]
            print(f"orch sweep, {name:6}  {rate:7.1f} trials/s  (bar {BARS[name]:.0f})")
        kinds = {"random": optuna.samplers.RandomSampler, "TPE": optuna.samplers.TPESampler}
        for name, kind in kinds.items():
            for kept, where in ((False, "in memory"), (True, "its journal")):
                rate = optuna_per_s(root, asked.trials, kind(seed=0), kept=kept)
                print(f"plain Optuna, {name:6}{rate:7.1f} trials/s  ({where}, objective free)")
        for reuse in (False, True) if asked.ray else ():
            rate = tune_per_s(root, 20, reuse=reuse)
            print(f"Ray Tune              {rate:7.1f} trials/s  (trials that do nothing{', actors reused' * reuse})")
    return missed


if __name__ == "__main__":
    sys.exit(main())
