"""This process's connection to a Ray: our own here, our own of emulated nodes, or a cluster by its address. One at a time."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

from orch.errors import OrchError, RunError
from orch.gang import system
from orch.gang.worker import Spec

if TYPE_CHECKING:
    from orch.cluster.node import Node
    from orch.gang.emulate_ray import EmulatedRay
    from orch.gang.local_workers import Workers
    from orch.gang.ray_local import LocalRay
    from orch.gang.ray_workers import Placement
    from orch.gang.shaping import Shaping

_ANSWERS_WITHIN_S = 3.0
_PATIENCE_S = 60.0
_BRIEFLY_S = 1.0
_CLIENT_PORT = 10001


class RaySession:
    """A connection made on construction. `address`: `local`, `emulate` (then `nodes`), `HOST:PORT` or `ray://HOST:PORT`.

    OrchError: Ray is not installed, nothing answers there, or this process is connected to a Ray that is not ours.
    """

    def __init__(self, address: str, num_gpus: int = 0, nodes: tuple[Node, ...] = ()) -> None:
        self.address = address
        self.nodes = nodes
        self._own: LocalRay | EmulatedRay | None = None
        self._doubtful = False
        self._closed = False
        self._shared: Placement | None = None
        self._idle: list[Placement] = []  # hosts without workers, their fork servers warm
        # Ray sets variables for its own debugger, and turns SIGTERM into an exception in the middle of anything.
        with system.kept_environment(), system.kept_handler(signal.SIGTERM):
            self._open(num_gpus)
        # Ray prints what it thinks of its nodes on standard output, which belongs to the command's result.
        self._patches = contextlib.ExitStack()
        with contextlib.suppress(AttributeError):
            self._patches.enter_context(mock.patch("ray._private.worker.print_to_stdstream", _log))

    def _open(self, num_gpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            text = "ray is not installed"
            raise OrchError(text, code="E720", hint="pip install 'orch[run]', or --on processes") from error
        if ray.is_initialized():
            raise OrchError("this process is already connected to a Ray that orch did not start", code="E720")
        if self.address == "local":
            from orch.gang.ray_local import LocalRay

            self._own = LocalRay(num_gpus)
        elif self.address == "emulate":
            from orch.gang.emulate_ray import EmulatedRay

            self._own = EmulatedRay(self.nodes)
        else:
            _connect(self.address)

    def workers(
        self,
        specs: Sequence[Spec],
        per_node: int | None,
        labels: Sequence[Sequence[tuple[str, str]]],
        make_room: Callable[[], None],
    ) -> Workers:
        """Return workers in one placement group, on nodes that carry `labels`, if any are asked for, one after the other;
        `make_room` ends what this process keeps warm, if that helps.
        """
        from orch.gang import ray_workers

        gpu = specs[0].device != "cpu"
        if self._own is not None and not gpu:
            # CPUs of our own are only numbers, so that one host a node serves every gang: no second import of torch.
            where = self._own.bundles
            bundles = ((1, False),) * len(where)
            self._shared = self._shared or ray_workers.place(bundles, False, _PATIENCE_S, self._problem, where)
            return self._start(self._shared, specs, [len(specs) // len(where)] * len(where))
        nodes = ray_workers.node_resources()
        counts = ray_workers.bundle_counts(len(specs), per_node, gpu, nodes) if self._own is None else [len(specs)]
        carried = [dict(each) for each in labels][: len(counts)]
        ray_workers.refuse_labels(carried)
        bundles = tuple((count, gpu) for count in counts)
        fits = [one for one in self._idle if (one.bundles, one.labels) == (bundles, carried)]
        idle = fits[0] if fits else None
        if idle is not None:
            self._idle.remove(idle)
            return self._start(idle, specs, counts)
        try:
            placement = ray_workers.place(bundles, per_node is not None, _BRIEFLY_S, self._problem, labels=carried)
        except RunError:
            make_room()
            while self._idle:
                self._idle.pop().end()
            placement = ray_workers.place(bundles, per_node is not None, _PATIENCE_S, self._problem, labels=carried)
        return self._start(placement, specs, counts)

    @property
    def shaping(self) -> Shaping | None:
        """The handles of our own emulated nodes; None where there are none."""
        return None if self._own is None else self._own.shaping

    @property
    def note(self) -> str:
        """What the user may want to know of how this Ray was made."""
        return "" if self._own is None else self._own.note

    def _start(self, placement: Placement, specs: Sequence[Spec], counts: Sequence[int]) -> Workers:
        try:
            return placement.start(specs, counts, self._done)
        except BaseException:
            self._done(placement, False)
            raise

    def _done(self, placement: Placement, well: bool) -> None:
        if not well:
            placement.end()
            self._shared = None if placement is self._shared else self._shared
            self._doubtful = self._own is not None  # a part of our own instance died: a new one is sure, and quick
        elif placement is not self._shared:
            self._idle.append(placement)

    def _problem(self) -> str:
        """Return what keeps Ray from being asked anything; nothing while all is well."""
        import ray

        if self._closed or not ray.is_initialized():
            return "its Ray session was closed"
        return self._own.problem() if self._own is not None else ""

    def serves(self, address: str, nodes: tuple[Node, ...]) -> bool:
        """Tell whether this is a connection to just that."""
        return (self.address, self.nodes) == (address, nodes)

    def alive(self) -> bool:
        """Tell whether the connection still works."""
        import ray

        try:
            return bool(not self._doubtful and not self._problem() and ray.nodes())
        except Exception:  # noqa: BLE001 - Ray has no one error for "gone"
            return False

    def close(self) -> None:
        """Disconnect; end the instance if it is ours."""
        import ray

        self._closed = True
        if self._own is not None:
            self._own.close()
        else:
            with contextlib.suppress(Exception):
                ray.shutdown()
        self._patches.close()


def _log(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    logging.getLogger(__name__).info("%s: %s", data.get("pid"), " ".join(data.get("lines", ())))


def _connect(address: str) -> None:
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        host, port = port, str(_CLIENT_PORT)
        address = f"ray://{host}:{port}"
    hint = "is it up, and reachable from here? ray status --address ..."
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise OrchError(f"no Ray cluster answers at {address}: {error}", code="E720", hint=hint) from error
    try:
        if address.startswith("ray://"):
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        else:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, configure_logging=False)
    except Exception as error:
        text = str(error).strip().splitlines()
        reason = text[0] if text else type(error).__name__
        raise OrchError(f"cannot join the Ray cluster at {address}: {reason}", code="E720", hint=hint) from error
