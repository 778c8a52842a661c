"""Layers walked as chains, in up to eight processes: every pair of degrees, axis and stack equals the model of one process."""

from typing import Any

import pytest

from orch.plan import SAMPLES, TOKENS
from tests.runtime.test_chain import Case, check_equal, expected, train_all
from tests.runtime.worlds import run

DEGREES = [(1, 3), (2, 1), (2, 2), (4, 4), (5, 3), (3, 8), (11, 11)]


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_pair_of_degrees(world: int) -> None:
    cases = [Case(dense=p, mixture=q, late=p == q) for p, q in DEGREES]
    cases += [Case(dense=p, mixture=q, axis=SAMPLES) for p, q in ((1, 3), (3, 1), (2, 3))]
    cases += [Case(dense=p, mixture=q, back=b, parts=m) for p, q, b, m in ((4, 2, 2, 1), (2, 3, 2, 3), (6, 2, 1, 4))]
    ranks = run(world, train_all, cases)
    want = expected(cases[0], world)
    for number, case in enumerate(cases):
        check_equal(case, [found[number] for found in ranks], want)


@pytest.mark.long
@pytest.mark.parametrize(("world", "tensor"), [(2, 2), (4, 2), (4, 4), (8, 2), (8, 4)])
def test_every_pair_of_degrees_where_samples_are_shared(world: int, tensor: int) -> None:
    cases = [Case(dense=p, mixture=q, late=p == q, tensor=tensor) for p, q in DEGREES]
    cases += [Case(dense=p, mixture=q, axis=SAMPLES, tensor=tensor) for p, q in ((1, 3), (3, 1), (2, 3))]
    cases += [
        Case(dense=6, mixture=2, back=2, parts=3, tensor=tensor),
        Case(every=1, layers=2, tensor=tensor, capacity=4.0),
    ]
    ranks = run(world, train_all, cases)
    for number, case in enumerate(cases):
        check_equal(case, [found[number] for found in ranks], expected(case, world // tensor))


STACKS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("sp-moe", "wfbp"), {"sp-moe": {"degree_dense": 3, "degree": 2}}),
    (("sp-moe", "mg-wfbp", "pipe-a2a"), {"sp-moe": {"degree_dense": 2, "degree": 1}}),
    (("sp-moe", "two-level-a2a"), {"sp-moe": {"degree_dense": 4, "degree": 2, "cross_layer": False}}),
    (("sp-moe", "acp-sgd"), {"sp-moe": {"degree_dense": 1, "degree": 2}, "acp-sgd": {"rank": 64}}),
    (("mast", "dear"), {"mast": {"degree_dense": 3, "degree": 3, "trials": 30, "layers": 2}}),
    (("mast", "single-bucket"), {"mast": {"degree_dense": 2, "degree": 3, "trials": 30}}),
    (("mast", "s-sgd", "two-level-a2a"), {"mast": {"degree_dense": 1, "degree": 3, "order": "default"}}),
]


@pytest.mark.long
@pytest.mark.parametrize("model", ["char", "gpt2", "mixtral"])
def test_every_stack(model: str) -> None:
    exact = [one for one in STACKS if "acp-sgd" not in one[0]]
    cases = [Case(model, every=1, layers=3, stack=stack, knobs=knobs, nodes=2) for stack, knobs in exact]
    ranks = run(4, train_all, cases)
    want = expected(cases[0], 4)
    for number, case in enumerate(cases):
        check_equal(case, [found[number] for found in ranks], want)


@pytest.mark.long
def test_compressed_gradients_leave_with_a_chain_as_without() -> None:
    """ACP-SGD beside a chain: what is sent is lossy, what ran is what the plan says."""
    ((stack, knobs),) = [one for one in STACKS if "acp-sgd" in one[0]]
    for found in run(4, train_all, [Case(stack=stack, knobs=knobs, axis=TOKENS)]):
        assert found[0]["differences"] == []
