"""Peak memory: what a step must hold, by hand."""

from __future__ import annotations

from dataclasses import replace

from orch.experiment.memory import peak_memory_bytes
from orch.models.profile import Module, Profile, Tensor
from orch.testing.small import cluster, member, planned
from orch.workload import data_parallel
from techniques.compression import acp_sgd
from techniques.schedules import bucketed

MODEL = Profile(
    "m",
    (Module("a", 1.0, 3.0), Module("b", 1.0, 5.0)),
    (Tensor("a.w", (10,), ("a",)), Tensor("b.w", (6, 5), ("b",))),
    ("b.w", "a.w"),
    "made up",
)
ALONE = data_parallel(MODEL, 1, 8)


def test_one_worker_holds_parameters_gradients_state_and_activations() -> None:
    assert peak_memory_bytes(ALONE, MODEL, 8, "fp32", "sgd") == 4 * 40 + 4 * 40 + 4 * 8 * 8
    assert peak_memory_bytes(ALONE, MODEL, 8, "bf16", "sgd") == 4 * 40 + 4 * 40 + 2 * 8 * 8


def test_optimisers_differ_by_their_state() -> None:
    sgd = peak_memory_bytes(ALONE, MODEL, 8, "fp32", "sgd")
    assert peak_memory_bytes(ALONE, MODEL, 8, "fp32", "sgd-momentum") == sgd + 160
    assert peak_memory_bytes(ALONE, MODEL, 8, "fp32", "adamw") == sgd + 320


def test_a_gradient_that_never_comes_takes_no_room() -> None:
    frozen = replace(MODEL, ready_order=("b.w",))
    assert peak_memory_bytes(ALONE, MODEL, 1, "fp32", "sgd") - peak_memory_bytes(ALONE, frozen, 1, "fp32", "sgd") == 40


def test_buffers_and_what_compressors_keep_are_counted() -> None:
    where = cluster(2, alpha_s=1.0)
    plain = planned(MODEL, where, [member(bucketed.technique)])
    alone = peak_memory_bytes(ALONE, MODEL, 1, "fp32", "sgd")
    assert peak_memory_bytes(plain, MODEL, 1, "fp32", "sgd") == alone + 160
    small = planned(MODEL, where, [member(acp_sgd.technique, rank=1), member(bucketed.technique)])
    # One residual of 6 x 5 is kept at least; the matrix's buffer is a factor of rank 1.
    assert peak_memory_bytes(small, MODEL, 1, "fp32", "sgd") > alone + 4 * 30
