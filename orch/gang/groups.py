"""Process groups as values: made from a store and handed on as arguments; torch's global default group stays unset.

So several groups, runs and tests live in one process, and nothing has to be destroyed in the right order.
"""

from __future__ import annotations

import datetime
import socket

import torch
from torch.distributed import (  # type: ignore[attr-defined]  # torch re-exports them without saying so
    HashStore,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

__all__ = ["HashStore", "PrefixStore", "ProcessGroup", "join_store", "make_group", "open_store"]

# A collective that lasts longer has failed. Hangs are found by the driver within seconds; this is for no driver at all.
TIMEOUT = datetime.timedelta(hours=1)


def open_store(host: str, port: int = 0) -> tuple[TCPStore, int]:
    """Return a store that serves on `host`, and its port. For 0 the kernel picks one, and keeps it while we hold it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, port))
    listener.listen(1024)
    port = listener.getsockname()[1]
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=TIMEOUT, master_listen_fd=listener.detach()
    )
    return store, port


def join_store(host: str, port: int) -> TCPStore:
    """Return a client of the store that rank 0 opened at `host`, `port`."""
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


def make_group(store: Store, rank: int, size: int, *, host: str, device: str, threads: int) -> ProcessGroup:
    """Return a group of `size` ranks that meet in `store`: gloo for CPU tensors, and NCCL for those of a GPU `device`.

    `host`: this machine's address on the network that carries the collectives. `threads`: of gloo, 1 keeps the order of
    completion that of the launches, 2 is what torch's own DDP runs on.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # absent from torch's stubs
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._threads = threads
    options._timeout = TIMEOUT
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    gloo = ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(torch.device(device))
        from torch.distributed import ProcessGroupNCCL  # only CUDA builds have it

        nccl_options = ProcessGroupNCCL.Options()
        nccl_options._timeout = TIMEOUT
        nccl = ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, nccl_options)
        group._set_default_backend(ProcessGroup.BackendType.NCCL)
        group._register_backend(torch.device("cuda"), ProcessGroup.BackendType.NCCL, nccl)
    return group
