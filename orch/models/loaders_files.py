"""Read data that lies on this machine: image files in folders, and torchvision's sets where that is installed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from orch.errors import OrchError
from orch.models.datasets import FolderKnobs, TorchvisionKnobs
from orch.models.kinds import Classes, Image, Interface
from orch.models.splits import Array, Arrays, Lazy, Loaded, sha256_of, stratified

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}

# ImageNet's channel means and deviations, what published image models expect.
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def image_folder(knobs: FolderKnobs, wants: Interface) -> Loaded:
    """Return images from one folder a class, read when asked for, scaled so that the short side fits, cropped in the
    middle, normalised as ImageNet. The hash covers names and sizes of the files.
    """
    reads = wants.reads if isinstance(wants.reads, Image) else Image(3, 224, 224)
    root = Path(knobs.path)
    if (root / "train").is_dir():
        names = _classes(root / "train", knobs.num_classes)
        train = _files(root / "train", names)
        test = _files(root / "val", names) if (root / "val").is_dir() else train
    else:
        names = _classes(root, knobs.num_classes)
        every = _files(root, names)
        kept, held = stratified(every[1], knobs.held_out)
        train, test = (([every[0][i] for i in part], every[1][part]) for part in (kept, held))
    digest = hashlib.sha256()
    for path in [*train[0], *test[0]]:
        digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode())
    interface = Interface(reads, Classes(len(names)))
    return Loaded("image-folder", _lazy(train, reads), _lazy(test, reads), interface, digest.hexdigest())


def cifar10(knobs: TorchvisionKnobs, wants: Interface) -> Loaded:
    """Return CIFAR-10 from torchvision's folder."""
    return _torchvision("cifar10", "CIFAR10", knobs)


def cifar100(knobs: TorchvisionKnobs, wants: Interface) -> Loaded:
    """Return CIFAR-100 from torchvision's folder."""
    return _torchvision("cifar100", "CIFAR100", knobs)


def mnist(knobs: TorchvisionKnobs, wants: Interface) -> Loaded:
    """Return MNIST from torchvision's folder."""
    return _torchvision("mnist", "MNIST", knobs)


def fashion_mnist(knobs: TorchvisionKnobs, wants: Interface) -> Loaded:
    """Return Fashion-MNIST from torchvision's folder."""
    return _torchvision("fashion-mnist", "FashionMNIST", knobs)


def _torchvision(name: str, kind: str, knobs: TorchvisionKnobs) -> Loaded:
    try:
        from torchvision import datasets
    except ImportError:
        message = f"data {name} is read by torchvision, which is not installed"
        raise OrchError(message, code="E441", hint="pip install 'orch[vision]'") from None
    parts: list[tuple[Array, Array]] = []
    for train in (True, False):
        try:
            found: Any = getattr(datasets, kind)(root=knobs.path, train=train, download=False)
        except RuntimeError as error:
            reason = str(error).split(".")[0].lower()
            message = f"data {name} is not in {knobs.path}: {reason}"
            raise OrchError(message, code="E441", hint="put it there; nothing is downloaded during a run") from None
        parts.append((_channels_first(np.asarray(found.data)), np.asarray(found.targets, dtype=np.int64)))
    (train_x, train_y), (test_x, test_y) = parts
    digest = sha256_of(train_x, train_y, test_x, test_y)
    interface = Interface(Image(*train_x.shape[1:]), Classes(int(train_y.max()) + 1))
    return Loaded(name, Arrays(train_x, train_y), Arrays(test_x, test_y), interface, digest)


def _channels_first(images: Array) -> Array:
    """Return bytes [B, H, W] or [B, H, W, C] as float32 [B, C, H, W] in [0, 1]."""
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images, dtype=np.float32) / 255


def _classes(root: Path, most: int) -> list[str]:
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    if not 2 <= len(names) <= most:
        message = f"{root} has {len(names)} folders of images; a class is a folder, and there must be 2 to {most}"
        raise OrchError(message, code="E441", hint="data.num_classes allows more")
    return names


def _files(root: Path, names: list[str]) -> tuple[list[Path], Array]:
    paths, labels = [], []
    for label, name in enumerate(names):
        here = sorted(path for path in (root / name).rglob("*") if path.suffix.lower() in SUFFIXES)
        if not here:
            kinds = ", ".join(sorted(SUFFIXES))
            raise OrchError(f"{root / name} has no images ({kinds})", code="E441", hint="fill or remove the folder")
        paths += here
        labels += [label] * len(here)
    return paths, np.asarray(labels, dtype=np.int64)


def _lazy(files: tuple[list[Path], Array], reads: Image) -> Lazy:
    paths, labels = files

    def read(number: int) -> Array:
        return _image(paths[number], reads)

    return Lazy(read, labels)


def _image(path: Path, reads: Image) -> Array:
    try:
        from PIL import Image as Pillow
        from PIL import ImageOps
    except ImportError:
        raise OrchError(
            "image files are read by Pillow, which is not installed", code="E441", hint="pip install pillow"
        ) from None
    try:
        with Pillow.open(path) as file:
            picture = file.convert("L" if reads.channels == 1 else "RGB")
            fitted = ImageOps.fit(picture, (reads.width, reads.height))
    except OSError as error:
        raise OrchError(f"{path} is no image: {error}", code="E441") from None
    pixels = np.asarray(fitted, dtype=np.float32) / 255
    grey = reads.channels == 1
    pixels = pixels[None] if grey else pixels.transpose(2, 0, 1)
    mean, deviation = (MEAN.mean(), DEVIATION.mean()) if grey else (MEAN[:, None, None], DEVIATION[:, None, None])
    normalised: Array = (pixels - mean) / deviation
    return normalised
