"""Real processes for the runtime's tests: a small forked world with gloo groups, no port chosen by us, nothing global."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo

TIMEOUT_S = 90.0


class World:
    """What a function of `run` is given: its rank, the world size, and groups over all ranks."""

    def __init__(self, rank: int, size: int, store: dist.Store) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._kept: list[Any] = []

    def group(self, name: str = "world", threads: int = 2) -> ProcessGroup:
        """Return a new gloo group over all ranks; every rank must ask for it."""
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        options._threads = threads
        store = dist.PrefixStore(name, self._store)
        group = ProcessGroup(store, self.rank, self.size)
        backend = ProcessGroupGloo(dist.PrefixStore("gloo", store), self.rank, self.size, options)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, backend)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._kept.append((group, backend))
        return group

    def groups(self) -> dict[str, ProcessGroup]:
        """Return the groups of a plain plan."""
        return {"world": self.group()} if self.size > 1 else {}


def run(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `function(world, *arguments)` on `size` ranks; return what each returned. The first failing rank fails the
    call.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torch._dynamo", "hydra.utils", "orch.runtime.engine", "tests.runtime.worlds"]
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "store")
        ranks = []
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_main, args=(there, rank, size, path, function, arguments), daemon=True)
            process.start()
            there.close()
            ranks.append((process, here))
        try:
            results = [_result(rank, pipe) for rank, (_, pipe) in enumerate(ranks)]
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()
    for rank, (good, value) in enumerate(results):
        assert good, f"rank {rank}: {value}"
    return [value for _, value in results]


def _result(rank: int, pipe: Any) -> tuple[bool, Any]:
    if not pipe.poll(TIMEOUT_S):
        return False, "hangs"
    try:
        return pipe.recv()  # type: ignore[no-any-return]
    except EOFError:
        return False, "died"


def _main(pipe: Any, rank: int, size: int, path: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    try:
        result = (True, function(World(rank, size, dist.FileStore(path, size)), *arguments))
    except BaseException:  # noqa: BLE001  (the parent shows it)
        result = (False, traceback.format_exc())
    pipe.send(result)
    pipe.close()
    os._exit(0)
