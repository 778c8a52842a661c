"""What a function of an installed package may not do when a recipe calls it, however it is named."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from orch.errors import OrchError
from orch.models.catalogue import PythonModel, choose
from orch.models.zoo.guard import RefusedError, guarded


class Bomb:
    """A pickle that writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def model(path: str, **arguments: object) -> PythonModel:
    chosen = choose(python=path, arguments=arguments)
    assert isinstance(chosen, PythonModel)
    return chosen


def test_a_recipe_cannot_have_a_pickle_read(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    torch.save({"x": Bomb(fired)}, tmp_path / "model.pt")
    np.save(tmp_path / "model.npy", np.array([Bomb(fired)], dtype=object), allow_pickle=True)
    calls = [
        model("torch:load", f=str(tmp_path / "model.pt"), weights_only=False),
        model("numpy:load", file=str(tmp_path / "model.npy"), allow_pickle=True),
    ]
    for call in calls:
        with pytest.raises(
            OrchError, match=r"may not be made so: it reads a pickle, which can run anything"
        ) as failure:
            call.build(seed=0)
        assert (failure.value.code, fired.exists()) == ("E424", False)
    assert 'write techniques = ["numpy"] in orch.toml' in failure.value.hint


def test_a_recipe_cannot_have_code_of_a_hub_run(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    (tmp_path / "hubconf.py").write_text(f"open({str(fired)!r}, 'w')\ndef net():\n    return 1\n")
    with pytest.raises(OrchError, match=r"it runs code that is not installed \(.*hubconf.py\)"):
        model("torch.hub:load", repo_or_dir=str(tmp_path), model="net", source="local").build(seed=0)
    assert not fired.exists()


def test_what_builds_models_is_not_disturbed() -> None:
    built = model("torch.nn:Linear", in_features=3, out_features=2).build(seed=0)
    assert built.weight.shape == (2, 3)


def test_the_users_own_listed_code_may_do_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import pickle, torch\ndef net(path):\n    pickle.load(open(path, 'rb'))\n    return torch.nn.Linear(1, 1)\n"
    (tmp_path / "trusted_models.py").write_text(code)
    (tmp_path / "data.pickle").write_bytes(pickle.dumps(OrderedDict(a=1)))
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = {"path": str(tmp_path / "data.pickle")}
    chosen = choose(python="trusted_models:net", arguments=arguments, listed=["trusted_models"])
    assert isinstance(chosen, PythonModel)
    assert chosen.build(seed=0).weight.shape == (1, 1)


def test_a_guard_holds_for_its_block_and_thread_only() -> None:
    text = pickle.dumps(OrderedDict(a=1))
    read: list[object] = []
    with guarded():
        thread = threading.Thread(target=lambda: read.append(pickle.loads(text)))
        thread.start()
        thread.join()
        with pytest.raises(RefusedError, match="it reads a pickle"):
            pickle.loads(text)
        with pytest.raises(RefusedError, match="it starts a program"):
            subprocess.run([sys.executable, "-c", ""], check=False)
    assert read == [pickle.loads(text)]
