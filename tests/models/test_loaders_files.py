"""Images in folders and torchvision's sets: read lazily, absent ones named, nothing downloaded."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from orch.errors import OrchError
from orch.models.datasets import choose_data
from orch.models.kinds import Classes, Image, Interface

WANTS = Interface(Image(3, 8, 8), Classes(1000))


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (20, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Pillow.new("RGB", size, colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(10):
        picture(tmp_path / "cat" / f"{number}.png", (255, 0, 0))
        picture(tmp_path / "dog" / "deep" / f"{number}.jpg", (0, 0, 255))
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    return tmp_path


def test_one_folder_a_class(folder: Path) -> None:
    loaded = choose_data("image-folder", {"path": str(folder), "held_out": 0.2}).load(WANTS)
    assert (len(loaded.train), len(loaded.test)) == (16, 4)
    assert loaded.interface == Interface(Image(3, 8, 8), Classes(2))
    inputs, targets = loaded.train.take(np.array([0, 15]))
    assert targets.tolist() == [0, 1]
    assert inputs.shape == (2, 3, 8, 8)
    assert inputs.dtype == np.float32
    assert inputs[0, 0, 0, 0] == pytest.approx((1 - 0.485) / 0.229)
    assert inputs[0, 1, 0, 0] == pytest.approx((0 - 0.456) / 0.224)
    grey = choose_data("image-folder", {"path": str(folder)}).load(Interface(Image(1, 6, 6), Classes(2)))
    assert grey.train.take(np.array([0]))[0].shape == (1, 1, 6, 6)


def test_train_and_val_folders(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    for part, number in (("train", 3), ("val", 2)):
        for name in ("cat", "dog"):
            for index in range(number):
                picture(root / part / name / f"{index}.png", (index, 0, 0))
    loaded = choose_data("image-folder", {"path": str(root)}).load(WANTS)
    assert (len(loaded.train), len(loaded.test)) == (6, 4)
    before = loaded.sha256
    picture(root / "val" / "dog" / "new.png", (9, 9, 9))
    from orch.models.datasets import _load

    _load.cache_clear()
    assert choose_data("image-folder", {"path": str(root)}).load(WANTS).sha256 != before


def test_what_is_wrong_with_a_folder_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OrchError, match=r"there is no folder .*nowhere"):
        choose_data("image-folder", {"path": str(tmp_path / "nowhere")}).gives(WANTS)
    (folder / "zebra").mkdir()
    with pytest.raises(OrchError, match=r"zebra has no images \(.bmp, "):
        choose_data("image-folder", {"path": str(folder)}).load(WANTS)
    with pytest.raises(OrchError, match=r"has 3 folders of images.*must be 2 to 2; data.num_classes allows more"):
        choose_data("image-folder", {"path": str(folder), "num_classes": 2}).load(WANTS)


def test_a_broken_image_is_named(folder: Path) -> None:
    (folder / "cat" / "0.png").write_text("no image")
    for number in range(1, 10):
        (folder / "cat" / f"{number}.png").write_text("no image")
    loaded = choose_data("image-folder", {"path": str(folder)}).load(WANTS)
    with pytest.raises(OrchError, match=r"cat/\d\.png is no image"):
        loaded.train.take(np.array([0]))


class FakeSet:
    """A torchvision data set: MNIST-like bytes, or absent."""

    def __init__(self, root: str, train: bool, download: bool) -> None:
        assert not download
        if "absent" in root:
            raise RuntimeError("Dataset not found. You can use download=True to download it")
        self.data = np.full((6 if train else 2, 28, 28), 255, dtype=np.uint8)
        self.targets = list(range(6 if train else 2))


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("torchvision")
    module.datasets = types.SimpleNamespace(MNIST=FakeSet)
    monkeypatch.setitem(sys.modules, "torchvision", module)


@pytest.mark.usefixtures("torchvision")
def test_torchvision_sets_are_read(tmp_path: Path) -> None:
    loaded = choose_data("mnist", {"path": str(tmp_path)}).load()
    inputs, targets = loaded.train.take(np.array([5]))
    assert (inputs.shape, inputs.max(), targets.tolist()) == ((1, 1, 28, 28), 1.0, [5])


@pytest.mark.usefixtures("torchvision")
def test_an_absent_set_is_never_downloaded(tmp_path: Path) -> None:
    with pytest.raises(OrchError, match=r"data mnist is not in .*absent: dataset not found; put it there"):
        choose_data("mnist", {"path": str(tmp_path / "absent")}).load()
    with pytest.raises(OrchError, match=r"data.download: input should be False"):
        choose_data("mnist", {"path": "x", "download": True})


def test_without_torchvision_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(OrchError, match=r"read by torchvision, which is not installed; pip install 'orch\[vision\]'"):
        choose_data("cifar10", {"path": str(tmp_path / "a")}).load()
