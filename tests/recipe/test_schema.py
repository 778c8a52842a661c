"""The fields of a recipe: every one told, typed, bounded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from orch.recipe.schema import LATER, Measure, Model, Optimizer, RecipeFile, Section, Target, Train


def sections() -> list[type[Section]]:
    found: list[type[Section]] = []
    queue: list[type[Section]] = [Section]
    while queue:
        kind = queue.pop()
        found.append(kind)
        queue += kind.__subclasses__()
    return found


def test_every_field_says_what_it_is() -> None:
    for section in sections():
        assert section.__doc__, section
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
            assert not field.description.endswith("."), f"{section.__name__}.{name}: a phrase, not a sentence"


def test_what_comes_later_is_no_field_yet() -> None:
    assert set(LATER) & set(RecipeFile.model_fields) == set()


def test_the_json_schema_is_complete() -> None:
    schema = RecipeFile.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(RecipeFile.model_fields)
    assert schema["properties"]["orch"]["const"] == 1


@pytest.mark.parametrize(
    ("model", "value", "field", "kind"),
    [
        (Train, {"optimizer": {"sgd": {"lr": 1.0}}, "batch_per_worker": 0}, "batch_per_worker", "greater_than_equal"),
        (Train, {"optimizer": {"sgd": {"lr": 1.0}}, "batch_per_worker": True}, "batch_per_worker", "int_type"),
        (Train, {"optimizer": {"sgd": {"lr": 1.0}}, "batch_per_worker": "8"}, "batch_per_worker", "int_type"),
        (Train, {"optimizer": {"sgd": {"lr": 1.0}}, "batch_per_worker": 8.0}, "batch_per_worker", "int_type"),
        (Train, {"optimizer": {"sgd": {"lr": True}}, "batch_per_worker": 8}, "optimizer", "float_type"),
        (Train, {"optimizer": {"sgd": {"lr": float("nan")}}, "batch_per_worker": 8}, "optimizer", "finite_number"),
        (Train, {"optimizer": {"sgd": {"lr": 0}}, "batch_per_worker": 8}, "optimizer", "greater_than"),
        (Train, {"optimizer": {"sgd": {"lr": 1, "momentum": 1.0}}, "batch_per_worker": 8}, "optimizer", "less_than"),
        (Measure, {"warmup": -1}, "warmup", "greater_than_equal"),
        (Measure, {"blocks": 10**30}, None, None),
    ],
)
def test_no_value_is_bent_to_fit(
    model: type[BaseModel], value: dict[str, Any], field: str | None, kind: str | None
) -> None:
    if field is None:
        assert model.model_validate(value)
        return
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    assert [(error["loc"][0], error["type"]) for error in caught.value.errors()] == [(field, kind)]


def test_an_accuracy_that_cannot_be_reached_is_no_target() -> None:
    for reach in (-0.1, 1.5, 90.0):
        with pytest.raises(ValidationError, match="must lie between"):
            Target(metric="val_accuracy", reach=reach)
    assert Target(metric="val_loss", reach=2.5).reach == 2.5


def test_an_optimizer_is_one_with_its_settings() -> None:
    chosen = Optimizer.model_validate({"sgd": {"lr": 0.1, "momentum": 0.9, "nesterov": True}})
    assert (chosen.name, chosen.settings["momentum"], chosen.settings["nesterov"]) == ("sgd", 0.9, True)
    for wrong in ({}, {"sgd": {"lr": 0.1}, "adam": {"lr": 0.1}}):
        with pytest.raises(ValidationError, match="must hold exactly one of sgd, adam, adamw"):
            Optimizer.model_validate(wrong)
    with pytest.raises(ValidationError, match="nesterov needs a momentum above 0 and no dampening"):
        Optimizer.model_validate({"sgd": {"lr": 0.1, "nesterov": True}})


def test_an_optimizers_settings_are_those_of_torch() -> None:
    import inspect

    torch = pytest.importorskip("torch")
    for name, kind in {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.items():
        settings = Optimizer.model_validate({name: {"lr": 0.1}}).settings
        parameters = inspect.signature(kind).parameters
        for key, value in settings.items():
            default = parameters[key].default
            assert key == "lr" or value == (list(default) if isinstance(default, tuple) else default), (name, key)


def test_a_model_has_one_source_and_any_arguments() -> None:
    model = Model.model_validate({"use": "gpt2", "seq_len": 64})
    assert (model.use, model.arguments) == ("gpt2", {"seq_len": 64})
    with pytest.raises(ValidationError, match="must hold exactly one of use, python, profile"):
        Model.model_validate({"seq_len": 64})


@pytest.mark.parametrize("name", ["a", "李", "mg-wfbp+acp-sgd", "two words", "v1.5"])
def test_a_name_may_be(name: str) -> None:
    assert Model.model_validate({"use": name}).use == name


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", ".a", "-a", "a\nb", "a\x07", "x" * 101, "a\\b", "\u202e"])
def test_a_name_may_not_be(name: str) -> None:
    with pytest.raises(ValidationError, match="must be printable text of at most 100 characters"):
        Model.model_validate({"use": name})


@pytest.mark.parametrize("path", ["pkg.mod:fn", "m:C.make", "_a.b1:f_2"])
def test_code_is_named_by_module_and_function(path: str) -> None:
    assert Model.model_validate({"python": path}).python == path


@pytest.mark.parametrize("path", ["pkg.mod", "pkg.mod:", ":fn", "a b:c", "a:b:c", "1a:b", "a.:b", "os.system('x'):y"])
def test_what_names_no_code(path: str) -> None:
    with pytest.raises(ValidationError, match=r"must be package\.module:function"):
        Model.model_validate({"python": path})
