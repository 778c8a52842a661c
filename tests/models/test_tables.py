"""The kept tables: counts of the published models, speed, scaling with the image, faults with their line."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from orch.errors import OrchError
from orch.models.tables import PROFILES, at_image_size, load, save

# tensors, modules, parameters, forward GFLOP a sample: the summary of the data-parallel baselines brief, section 5.
PUBLISHED = {
    "densenet161": (484, 322, 28_681_000, 15.69),
    "densenet201": (604, 402, 20_013_928, 8.78),
    "googlenet": (187, 123, 13_004_888, 3.04),
    "inception-v4": (449, 299, 42_679_816, 12.31),
    "vgg16": (32, 16, 138_357_544, 30.94),
    "vgg19": (38, 19, 143_667_240, 39.26),
    "googlenet-k80": (64, 64, 13_379_136, 0.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_table_holds_what_was_published(name: str) -> None:
    profile = load(PROFILES / name)
    assert (len(profile.tensors), len(profile.modules), profile.numel, round(profile.flops / 1e9, 2)) == PUBLISHED[name]
    assert profile.never_ready == ()
    assert profile.source


def test_every_kept_table_is_whole() -> None:
    names = {folder.name for folder in PROFILES.iterdir()}
    assert names == {*PUBLISHED, "inception-v4-299"}
    for name in names:
        segments = load(PROFILES / name).backward_segments()
        assert sum(len(segment.tensors) for segment in segments) == len(load(PROFILES / name).tensors)
        assert sum(len(segment.modules) for segment in segments) == len(load(PROFILES / name).modules)


def test_the_largest_table_of_a_paper_is_read_in_milliseconds() -> None:
    seconds = []
    for _ in range(7):
        load.cache_clear()
        start = time.process_time()
        load(PROFILES / "densenet161")
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.01
    assert load(PROFILES / "densenet161") is load(PROFILES / "densenet161")


def test_the_k80_trace_is_measured() -> None:
    profile = load(PROFILES / "googlenet-k80")
    assert profile.measured
    assert sum(module.backward_s or 0 for module in profile.modules) == pytest.approx(0.2015, rel=1e-3)
    assert profile.modules[0].backward_s == pytest.approx(14744.1e-6)


def test_convolutions_grow_with_the_image_and_the_head_does_not() -> None:
    small, large = at_image_size(PROFILES / "densenet161", 224), at_image_size(PROFILES / "densenet161", 448)
    name = "features.conv0"
    assert large.module(name).flops == 4 * small.module(name).flops
    assert large.module("classifier") == small.module("classifier")
    assert large.tensors == small.tensors


def test_saving_and_loading_is_the_identity(tmp_path: Path) -> None:
    for profile in (load(PROFILES / "vgg16"), load(PROFILES / "googlenet-k80")):
        save(profile, tmp_path / profile.name, per_pixel={profile.modules[0].name}, title="again")
        assert load(tmp_path / profile.name) == profile


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        ("modules", "173408256", "many", r"modules.csv:4: 'many' is no flops"),
        ("modules", "name,flops", "name,flop", r"modules.csv:3: the table has no column 'flops'"),
        ("modules", ",pixel,1\n", ",pixel\n", r"modules.csv:4: 4 cells where the header has 5"),
        ("tensors", "64x3x3x3", "64*3", r"tensors.csv:4: '64\*3' is no shape"),
        ("tensors", "64,features.0,", "64,features.9,", r"names module 'features.9'"),
    ],
)
def test_a_fault_in_a_table_is_one_line(tmp_path: Path, table: str, old: str, new: str, message: str) -> None:
    folder = tmp_path / "vgg16"
    shutil.copytree(PROFILES / "vgg16", folder)
    path = folder / f"{table}.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(OrchError, match=message):
        load(folder)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(OrchError, match=r"there is no table modules.csv"):
        load(tmp_path / "nothing")
    (tmp_path / "modules.csv").write_text("")
    with pytest.raises(OrchError, match="no column 'name'"):
        load(tmp_path)
