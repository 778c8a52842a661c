"""Checkpoints of a rank: every bit comes back, nothing but tensors and numbers is read, and damage is an error."""

from __future__ import annotations

import json
import pickle
import threading

import pytest
import torch
from safetensors.torch import load

from orch.errors import RunError
from orch.runtime.checkpoint import Saved, Writer, decode, encode, take
from orch.runtime.storage import storage_of


def state() -> dict:
    generator = torch.Generator().manual_seed(3)
    return {
        "step": 7,
        "model": {"weight": torch.tensor([[1.0, float("nan")], [-0.0, 3.0]]), "count": torch.tensor(4), "none": torch.empty(0, 3)},
        "optimizer": {"weight": {"momentum_buffer": torch.randn(2, 2, dtype=torch.float64), "lr": 0.1}, "bias": {}},
        "engine": {
            "state": {("error-feedback", "weight"): torch.randn(5).bfloat16(), ("power-sgd", "q"): torch.ones(3) > 0},
            "generators": {"top-k": generator.get_state()},
        },
    }  # fmt: skip


def test_a_state_comes_back_bit_for_bit() -> None:
    before = state()
    again = decode(b"".join(bytes(part) for part in encode(take(before)))).state()
    assert (again["step"], again["optimizer"]["bias"], again["optimizer"]["weight"]["lr"]) == (7, {}, 0.1)
    assert again["engine"]["state"].keys() == before["engine"]["state"].keys()
    for path in (("model", "weight"), ("model", "count"), ("model", "none"), ("engine", "generators", "top-k")):
        one, other = before, again
        for key in path:
            one, other = one[key], other[key]
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    for key, value in before["engine"]["state"].items():
        assert torch.equal(value, again["engine"]["state"][key])


def test_a_snapshot_stands_apart_from_training() -> None:
    tensor = torch.zeros(3)
    taken = take({"model": {"w": tensor}})
    tensor.add_(1.0)
    assert taken.state()["model"]["w"].tolist() == [0.0, 0.0, 0.0]


def test_the_file_is_safetensors_that_others_read() -> None:
    data = b"".join(bytes(part) for part in encode(take({"model": {"w": torch.arange(4.0)}})))
    assert load(data)['["model", "w"]'].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(RunError, match=r"^the state engine/cache is a set, which no checkpoint can hold;.*\[E661\]$"):
        take({"engine": {"cache": {1, 2}}})
    with pytest.raises(RunError, match=r"the state model/w is a torch.complex64"):
        take({"model": {"w": torch.zeros(1, dtype=torch.complex64)}})


DAMAGE = [
    lambda data: data[:-4],
    lambda data: b"",
    lambda data: pickle.dumps({"a": 1}),
    lambda data: data[:8] + b"x" * (len(data) - 8),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_an_error_and_runs_nothing(damage) -> None:
    data = b"".join(bytes(part) for part in encode(take({"model": {"w": torch.arange(4.0)}})))
    with pytest.raises(RunError, match=r"a checkpoint is damaged.*\[E662\]"):
        decode(damage(data))


def test_another_format_is_refused() -> None:
    data = b"".join(bytes(part) for part in encode(take({"step": 1})))
    other = data.replace(b'"format": "1"', b'"format": "9"')
    with pytest.raises(RunError, match=r"a checkpoint of format 9; this orch reads 1 \[E662\]"):
        decode(other)


def test_a_tensor_is_taken_from_the_shared_part_only_where_a_rank_has_none_itself() -> None:
    first = take({"model": {"w": torch.zeros(1), "mean": torch.zeros(1)}, "step": 3})
    second = take({"model": {"w": torch.zeros(1), "mean": torch.ones(1)}, "step": 3})
    alone = second.without(frozenset([json.dumps(["model", "w"])]))
    assert len(alone.tensors) == 1
    both = alone.over(first).state()
    assert (both["model"]["w"].item(), both["model"]["mean"].item(), both["step"]) == (0.0, 1.0, 3)


def test_the_writer_writes_in_the_background_and_tells(tmp_path) -> None:
    told: list[Saved] = []
    writer = Writer(told.append)
    snapshot = take({"step": 2, "model": {"w": torch.arange(3.0)}})
    writer.write(str(tmp_path), "a/rank0.safetensors", snapshot, Saved("ddp", 0, 2))
    (tmp_path / "file").write_text("")
    writer.write(str(tmp_path / "file"), "b/rank0.safetensors", snapshot, Saved("ddp", 0, 4))
    writer.wait()
    assert [(saved.step, bool(saved.nbytes), saved.error) for saved in told] == [
        (2, True, ""),
        (4, False, "Not a directory"),
    ]
    assert decode(storage_of(str(tmp_path)).read("a/rank0.safetensors")).state()["step"] == 2
    assert any(thread.name == "orch-checkpoints" and thread.daemon for thread in threading.enumerate())
