"""Every model a recipe can name, and what `model:` may say: a name with changed knobs, your own function, a profile.

Nothing here loads torch before a model is built; `profile` of your own function is the exception, as it must be traced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from orch.errors import OrchError, Position, did_you_mean
from orch.models.attention import Attention
from orch.models.files import read_text
from orch.models.kinds import Interface, refuse_mismatch
from orch.models.model import Model, ModelKnobs, Parts, validated

if TYPE_CHECKING:
    from torch import nn

    from orch.models.datasets import ChosenData
    from orch.models.profile import Mixture, Profile
    from orch.models.stage import Stage

# Names by the module that describes them: a command names one model and imports one module. A test holds the two equal.
FAMILIES = {
    "small": ("mlp", "resnet-digits", "tiny-tensors"),
    "language": ("bert-base", "bert-large", "char-transformer", "gpt2", "gpt2-medium"),
    "mixture": ("bert-moe", "char-moe", "gpt2-moe", "mixtral", "moe-layers"),
    "vision": (
        "densenet161",
        "densenet201",
        "googlenet",
        "googlenet-k80",
        "inception-v4",
        "resnet50",
        "resnet101",
        "resnet152",
        "vgg16",
        "vgg19",
    ),
}


def model(name: str, where: Position | None = None) -> Model:
    """Return the model called `name`. Raises OrchError (E420) with the nearest name."""
    family = next((family for family, members in FAMILIES.items() if name in members), None)
    if family is None:
        hint = did_you_mean(name, names())
        message = f"model '{name}' is not known"
        raise OrchError(
            message,
            code="E420",
            where=where,
            hint=f"{hint} (all: orch list models)" if hint else "all: orch list models",
        )
    return next(found for found in _family(family) if found.name == name)


def names() -> tuple[str, ...]:
    """Return the name of every model, families together; imports nothing."""
    return tuple(name for members in FAMILIES.values() for name in members)


def models() -> tuple[Model, ...]:
    """Return every model, families together."""
    return tuple(model(name) for name in names())


def _family(family: str) -> tuple[Model, ...]:
    found: tuple[Model, ...] = importlib.import_module(f"orch.models.{family}").MODELS
    return found


@dataclass(frozen=True)
class NamedModel:
    """A model of the catalogue with its knobs."""

    model: Model
    knobs: ModelKnobs

    @property
    def name(self) -> str:
        """The name a recipe uses."""
        return self.model.name

    @property
    def runs(self) -> bool:
        """Whether it can be built."""
        return self.model.runs

    @property
    def shared(self) -> bool:
        """Whether ranks may share its attention when it runs."""
        return self.model.shared

    @property
    def parts(self) -> Parts:
        """The modules of each of its parts, where it is parts one after another."""
        return () if self.model.parts is None else self.model.parts(self.knobs)

    @property
    def interface(self) -> Interface:
        """What it reads and answers."""
        return self.model.interface(self.knobs)

    @property
    def mixtures(self) -> tuple[Mixture, ...]:
        """Its mixture-of-experts layers."""
        return self.profile().mixtures if self.model.mixed else ()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The dense work that leads to each of its mixtures."""
        return self.profile().stages if self.model.mixed else ()

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Its attentions that workers can share."""
        return self.profile().attentions if self.model.mixed else ()

    def profile(self, data: ChosenData | None = None) -> Profile:
        """Return its profile; `data` makes no difference."""
        return self.model.profile(self.knobs)

    def build(self, seed: int) -> nn.Module:
        """Build it with weights drawn from `seed`."""
        return self.model.build(self.knobs, seed)


@dataclass(frozen=True)
class PythonModel:
    """A function of the user's: `fn(**arguments)` returns a torch.nn.Module that takes what the data gives."""

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    where: Position | None = None
    root: str | None = None  # the project's folder, if the module lies there
    listed: bool = (
        True  # by the project file: the user's own code. Otherwise it is installed, and its calls are guarded
    )

    runs = True
    shared = False
    parts: ClassVar[Parts] = ()
    interface = None
    # What a function of the user's calls experts is to orch a part of the model like any other.
    mixtures: ClassVar[tuple[Mixture, ...]] = ()
    stages: ClassVar[tuple[Stage, ...]] = ()
    attentions: ClassVar[tuple[Attention, ...]] = ()

    @property
    def name(self) -> str:
        """`pkg.mod:fn`."""
        return self.path

    def build(self, seed: int) -> nn.Module:
        """Call the function with the random state set from `seed`. Raises OrchError (E424) when it cannot be called."""
        from orch.models.zoo.own import build

        return build(self, seed)

    def profile(self, data: ChosenData | None = None) -> Profile:
        """Trace one step of the model on `data`; loads torch. Raises OrchError (E424) without data."""
        if data is None:
            message = f"model {self.path} is code: its step is seen by tracing it on data, and the recipe names none"
            raise OrchError(message, code="E424", where=self.where, hint="add data:, or give {profile: FILE}")
        from orch.models.zoo.own import profile

        return profile(self.path, self.build(seed=0), data)


@dataclass(frozen=True)
class ProfileModel:
    """A profile from a file: enough to plan and simulate, nothing to run."""

    path: Path
    kept: Profile

    runs = shared = False
    parts: ClassVar[Parts] = ()
    interface = None

    @property
    def mixtures(self) -> tuple[Mixture, ...]:
        """Its mixture-of-experts layers."""
        return self.kept.mixtures

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The dense work that leads to each of its mixtures."""
        return self.kept.stages

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Its attentions that workers can share."""
        return self.kept.attentions

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.kept.name

    def profile(self, data: ChosenData | None = None) -> Profile:
        """Return the profile; `data` makes no difference."""
        return self.kept

    def build(self, seed: int) -> nn.Module:
        """Refuse (E421): a profile cannot be run."""
        message = f"model {self.path} has only a profile: it can be planned and simulated, not run"
        raise OrchError(message, code="E421", hint="models that run: orch list models")


ChosenModel = NamedModel | PythonModel | ProfileModel


class ModelSpec(Protocol):
    """A recipe's `model:`, as the recipe's schema reads it."""

    @property
    def use(self) -> str | None: ...

    @property
    def python(self) -> str | None: ...

    @property
    def profile(self) -> str | None: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...


def resolve(
    spec: ModelSpec,
    *,
    where: Position | None = None,
    beside: Path | None = None,
    listed: Collection[str] = (),
    root: Path | None = None,
) -> ChosenModel:
    """Return the model of a recipe's `model:`; see `choose`."""
    return choose(
        use=spec.use,
        python=spec.python,
        profile=spec.profile,
        arguments=spec.arguments,
        where=where,
        beside=beside,
        listed=listed,
        root=root,
    )


def choose(
    *,
    use: str | None = None,
    python: str | None = None,
    profile: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    where: Position | None = None,
    beside: Path | None = None,
    listed: Collection[str] = (),
    root: Path | None = None,
) -> ChosenModel:
    """Return what a recipe's `model:` names: exactly one of `use`, `python` (`pkg.mod:fn`) and `profile` (a file).

    `beside` is the folder that a relative profile path starts from; `listed` the modules the project file allows to
    run besides installed ones, found in the project's folder `root` or on Python's path. Raises OrchError at `where`,
    with the key to change.
    """
    arguments = arguments or {}
    if use is not None:
        chosen = model(use, where)
        return NamedModel(chosen, validated(chosen.knobs, arguments, "model", where))
    if python is not None:
        is_listed, found = _allow(python, listed, root, where)
        return PythonModel(python, dict(arguments), where, found, is_listed)
    if profile is None:
        raise OrchError("model names nothing", code="E420", where=where, hint="give use, python or profile")
    if arguments:
        unknown = next(iter(arguments))
        message = f"unknown key 'model.{unknown}': a profile has no knobs"
        raise OrchError(message, code="E423", where=where, hint="remove it")
    path = Path(profile) if beside is None else beside / profile
    return ProfileModel(path, read_profile(path, where))


def read_profile(path: Path, where: Position | None = None) -> Profile:
    """Return the profile in a JSON file, or in a folder with the two tables. Raises OrchError (E411)."""
    if path.is_dir():
        from orch.models.tables import load

        return load(path)
    import json

    from orch.models.profile import Profile

    try:
        data = json.loads(read_text(path))
    except FileNotFoundError:
        raise OrchError(f"there is no profile {path}", code="E411", where=where) from None
    except (OSError, ValueError, RecursionError) as error:
        hint = "a profile is JSON, or a folder with modules.csv and tensors.csv"
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise OrchError(f"{path} is no profile: {reason}", code="E411", where=where, hint=hint) from None
    if not isinstance(data, dict):
        raise OrchError(f"{path} is no profile: it holds no object", code="E411", where=where)
    return Profile.from_json(data)


def check_pair(chosen: ChosenModel, data: ChosenData, where: Position | None = None) -> None:
    """Raise OrchError (E430) when the model cannot be trained on the data, as far as can be told without running it."""
    if isinstance(chosen, PythonModel):
        data.own_interface()
    elif chosen.interface is not None:
        refuse_mismatch(chosen.name, chosen.interface, data.name, data.gives(chosen.interface), where)


def _allow(path: str, listed: Collection[str], root: Path | None, where: Position | None) -> tuple[bool, str | None]:
    """Refuse code that is neither installed nor listed, and paths that are none; imports nothing. Returns whether it is
    listed, and the folder that must be importable, if it is the project's.
    """
    from importlib.machinery import PathFinder

    module, colon, function = path.partition(":")
    if not colon or not module.replace(".", "").isidentifier() or not function.isidentifier():
        raise OrchError(f"'{path}' names no function", code="E424", where=where, hint="write package.module:function")
    top = module.partition(".")[0]
    is_listed = any(module == name or module.startswith(f"{name}.") for name in listed)
    if is_listed and root is not None and PathFinder.find_spec(top, [str(root)]) is not None:
        return True, str(root)
    spec = PathFinder.find_spec(top, sys.path)
    if spec is None:
        raise OrchError(f"there is no module '{top}'", code="E424", where=where, hint=f"install it, or list {module}")
    if not is_listed and not _installed(top, [*(spec.submodule_search_locations or []), spec.origin or ""]):
        hint = f'write techniques = ["{module}"] in orch.toml, or install it'
        message = f"module '{module}' is neither installed nor listed, so a recipe may not run it"
        raise OrchError(message, code="E424", where=where, hint=hint)
    return is_listed, None


def _installed(top: str, places: list[str]) -> bool:
    import importlib.metadata
    import sysconfig

    site = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    if any(Path(place).is_relative_to(folder) for place in places for folder in site):
        return True
    return top in importlib.metadata.packages_distributions()
