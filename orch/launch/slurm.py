"""A batch script for Slurm: Ray on every node, or plain srun where there is none; stopped in order and queued again when
its time is up.

The batch shell runs on the first node of the allocation, where the driver is: so it can ask the driver to stop, and hand
the run on to the job's next start. Nothing here knows a site; `--job KEY=VALUE` becomes `#SBATCH --KEY=VALUE`.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
from pathlib import Path

from orch import __version__
from orch.errors import OrchError
from orch.launch.job import Job

_SIGNAL_BEFORE_S = 120
_SUBMITS_WITHIN_S = 60
VIA = ("ray", "srun")

_HEAD = """\
#!/bin/bash
{directives}
# Written by orch {version} for: orch {command} --on slurm
set -u
python={python}
export ORCH_RUNS={runs}
export PATH="$(dirname "$python"):$PATH"
log="orch-$SLURM_JOB_ID.log"

# A job that was queued again goes on with the run that it began.
todo=({command})
run=$("$python" -m orch.launch.current)
if [ -n "$run" ]; then todo=(run --resume "$(basename "$run")"); fi

queue_again() {{  # {signal} s before the time limit
  run=$("$python" -m orch.launch.current)
  if [ -n "$run" ]; then "$python" -m orch runs stop "$(basename "$run")"; fi
  scontrol requeue "$SLURM_JOB_ID"
}}
trap queue_again USR1

keep_log() {{
  run=$("$python" -m orch.launch.current)
  if [ -n "$run" ] && [ -f "$log" ]; then mkdir -p "$run/logs" && cat "$log" >> "$run/logs/slurm-$SLURM_JOB_ID.log" && rm "$log"; fi
}}
trap keep_log EXIT

address=$("$python" -m orch.launch.address)  # of this node, the first: on $ORCH_INTERFACE if that is set
port=$((20000 + SLURM_JOB_ID % 20000))
secret=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
"""

# One `ray start` a node; the driver on the first. A token for this job, in its environment only.
_RAY = """\
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN="$secret"
srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none \\
  ray symmetric-run --address "$address:$port" --min-nodes {nodes} --num-cpus {per_node}{gpus} --disable-usage-stats \\
  -- "$python" -m orch "${{todo[@]}}" --on "$address:$port" &
"""

# One process a worker; the first is the driver. Its store listens on this node's address, and asks for the secret.
_SRUN = """\
export ORCH_SECRET="$secret" MASTER_ADDR="$address" MASTER_PORT="$port" WORLD_SIZE={world} LOCAL_WORLD_SIZE={per_node}
srun --nodes={nodes} --ntasks={world} --ntasks-per-node={per_node} --cpu-bind=none \\
  bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' rank "$python" -m orch "${{todo[@]}}" --on torchrun &
"""

_TAIL = """\
step=$!
wait "$step"; code=$?
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done  # a signal ends the first wait early
exit "$code"
"""


def script(job: Job, folder: Path) -> str:
    """Return the batch script of a job that is submitted in `folder`. OrchError: `via` is neither ray nor srun."""
    settings = dict(job.settings)
    via = settings.pop("via", "ray" if importlib.util.find_spec("ray") else "srun")
    if via not in VIA:
        raise OrchError(
            f"--job via={via}: there are ray and srun", code="E727", hint="leave it out to take Ray if there is one"
        )
    tasks = 1 if via == "ray" else job.per_node
    directives = {
        "job-name": f"orch-{job.name}",
        "chdir": str(folder),
        "output": "orch-%j.log",
        "open-mode": "append",
        "nodes": str(job.nodes),
        "ntasks-per-node": str(tasks),
        "mincpus": str(job.per_node),
        **({"gpus-per-node": str(job.per_node)} if job.gpu else {}),
        "exclusive": "",
        "requeue": "",
        "signal": f"B:USR1@{_SIGNAL_BEFORE_S}",
        **settings,
    }
    lines = [f"#SBATCH --{key}{f'={value}' if value else ''}" for key, value in directives.items()]
    head = _HEAD.format(
        directives="\n".join(lines),
        version=__version__,
        command=shlex.join(job.command),
        python=shlex.quote(job.python),
        runs=shlex.quote(str(job.runs)),
        signal=_SIGNAL_BEFORE_S,
    )
    gpus = f" --num-gpus {job.per_node}" if job.gpu else ""
    body = _RAY if via == "ray" else _SRUN
    world = job.nodes * job.per_node
    return head + body.format(nodes=job.nodes, per_node=job.per_node, gpus=gpus, world=world) + _TAIL


def submit(text: str) -> str:
    """Hand a batch script to sbatch; return the job's id. OrchError: there is no sbatch, or it refuses."""
    if shutil.which("sbatch") is None:
        hint = "on a login node; --print writes the script, for sbatch elsewhere"
        raise OrchError("there is no sbatch on this machine", code="E728", hint=hint)
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=text, capture_output=True, text=True, timeout=_SUBMITS_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OrchError(
            f"sbatch does not answer within {_SUBMITS_WITHIN_S} s", code="E728", hint="sinfo; squeue"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or "it says nothing").splitlines()[-1].removeprefix("sbatch: error: ")
        raise OrchError(
            f"sbatch refuses: {said}", code="E728", hint="mend it by --job KEY=VALUE, such as --job account=A"
        )
    return done.stdout.strip().partition(";")[0]
