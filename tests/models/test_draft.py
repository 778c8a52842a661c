"""Writing a profile down: FLOPs, shapes, registration and gradient-ready order."""

from __future__ import annotations

from orch.models.draft import Draft


def test_layers_are_counted_and_ordered() -> None:
    draft = Draft()
    draft.embedding("embed", 3, 10, 4, tied=("head",))
    draft.linear("up", 3, 4, 8)
    draft.linear("across", 3, 8, 4, bias=False, across=True)
    draft.norm("norm", 3, 4)
    draft.attention("block", 3, 4, 2, fused=False)
    draft.module("head", 2 * 3 * 4 * 10, 30)
    profile = draft.finish("p", "s")
    assert [(m.name, m.flops, m.activation_elements) for m in profile.modules] == [
        ("embed", 0, 12), ("up", 192, 24), ("across", 192, 12), ("norm", 96, 12),
        ("block#scores", 72, 18), ("block#values", 72, 12), ("head", 240, 30),
    ]  # fmt: skip
    assert [(t.name, t.shape) for t in profile.tensors] == [
        ("embed.weight", (10, 4)), ("up.weight", (8, 4)), ("up.bias", (8,)), ("across.weight", (8, 4)),
        ("norm.weight", (4,)), ("norm.bias", (4,)),
    ]  # fmt: skip
    assert profile.ready_order == (
        "norm.weight", "norm.bias", "across.weight", "up.bias", "up.weight", "embed.weight",
    )  # fmt: skip
    assert profile.tensor("embed.weight").modules == ("embed", "head")


def test_what_runs_late_may_be_registered_early() -> None:
    draft = Draft()
    draft.convolution("stem", 2, 1, 1, 1)
    start = len(draft.tensors)
    draft.convolution("block", 2, 1, 4, 3)
    end = len(draft.tensors)
    draft.convolution("shortcut", 2, 1, 4, 1)
    draft.register_first(start, end)
    profile = draft.finish("p", "s")
    assert [t.name for t in profile.tensors] == ["stem.weight", "shortcut.weight", "block.weight"]
    assert [m.name for m in profile.modules] == ["stem", "block", "shortcut"]
    assert profile.module("block").flops == 2 * 4 * 4 * 9
    assert profile.ready_order[0] == "shortcut.weight"


def test_a_fused_kernel_stores_no_scores() -> None:
    draft = Draft()
    draft.attention("block", 16, 8, 2, fused=True)
    assert [m.activation_elements for m in draft.modules] == [0, 128]
