"""The JSON schema of a recipe as people write it: short forms, units, technique names with their knobs.

The checked schema of `orch.recipe` sees a recipe after its short forms are written out; an editor sees them as they
are. So this is that schema with the short forms added, and nothing said twice.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

# Keys that loading fills in, though a checked recipe always has them.
_FILLED_IN = ("name", "baseline")
_NAMED = {"model": "models", "data": "data", "cluster": "clusters"}


def recipe_schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of a recipe file; completes names of what is known here and now."""
    from orch.recipe.schema import RecipeFile

    schema: Schema = RecipeFile.model_json_schema()
    definitions: Schema = schema.setdefault("$defs", {})
    properties: Schema = schema["properties"]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "orch recipe"
    schema["required"] = [key for key in schema.get("required", []) if key not in _FILLED_IN]
    properties["cluster"] = _cluster(properties["cluster"], definitions)
    for section, kind in _NAMED.items():
        properties[section] = _named(properties[section], _names(kind), section)
    _stacks(properties, definitions)
    _sweep(definitions)
    definitions["Optimizer"] = {
        "anyOf": [definitions["Optimizer"], {"enum": list(definitions["Optimizer"]["properties"])}]
    }
    if "extends" in properties:  # a parent may hold everything that a child leaves out
        schema["if"] = {"not": {"required": ["extends"]}}
        schema["then"] = {"required": schema.pop("required")}
    return schema


def _names(kind: str) -> list[str]:
    from orch.commands import _catalogue

    return sorted(_catalogue.names(kind))


def _cluster(plain: Schema, definitions: Schema) -> Schema:
    """Return a cluster: a whole description, or a name and changes to what it describes."""
    from orch.cluster import ClusterSpec

    spec = ClusterSpec.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(spec.pop("$defs", {}))
    changes = {"use": {"type": "string"}, "name": {"type": "string"}, **spec["properties"]}
    return {
        "type": "object",
        "description": plain.get("description", ""),
        "properties": changes,
        "additionalProperties": False,
    }


def _named(full: Schema, names: list[str], section: str) -> Schema:
    """Return a section that may be a bare name. Known names are offered; others are allowed: files may add them."""
    offered = {"anyOf": [{"enum": names}, {"type": "string"}]} if names else {"type": "string"}
    arguments = [
        {"if": {"properties": {"use": {"const": name}}, "required": ["use"]}, "then": {"properties": knobs}}
        for name, knobs in _arguments(section).items()
    ]
    described = {key: value for key, value in full.items() if key != "description"}
    whole = {"type": "object", "allOf": [described, *arguments]} if arguments else described
    return {"anyOf": [offered, whole], "description": full.get("description", f"the {section}")}


def _arguments(section: str) -> dict[str, Schema]:
    """Return the keys that may stand beside `use` for every known model or data set."""
    from orch.models import catalogue, datasets

    if section == "model":
        configs = {model.name: model.knobs for model in catalogue.models()}
    elif section == "data":
        configs = {name: data.knobs for name, data in datasets.DATA.items()}
    else:
        return {}
    return {name: config.model_json_schema().get("properties", {}) for name, config in configs.items()}


def _stacks(properties: Schema, definitions: Schema) -> None:
    from orch import registry

    techniques = {name: registry.technique(name).config for name in sorted(registry.techniques())}
    for name, config in techniques.items():
        knobs = config.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
        definitions |= {f"{name}.{key}": value for key, value in knobs.pop("$defs", {}).items()}
        definitions[f"knobs of {name}"] = knobs
    references = {name: {"$ref": f"#/$defs/knobs of {name}"} for name in techniques}
    definitions["knobs"] = {"type": "object", "properties": references, "additionalProperties": False}
    name_list = {"type": "array", "items": {"enum": list(techniques)}, "uniqueItems": True, "minItems": 1}
    with_none = {name: {"anyOf": [reference, {"type": "null"}]} for name, reference in references.items()}
    with_knobs = {"type": "object", "properties": with_none, "additionalProperties": False, "minProperties": 1}
    properties["techniques"] = {**_described(properties["techniques"]), "$ref": "#/$defs/knobs"}
    properties["stacks"] = {
        **_described(properties["stacks"]),
        "type": "object",
        "additionalProperties": {"anyOf": [name_list, with_knobs]},
        "minProperties": 1,
    }


def _sweep(definitions: Schema) -> None:
    """Add the short forms of a search: choices as a list, `auto`, one objective, a sampler's or pruner's bare name."""
    from orch.recipe.sweep import PRUNERS, SAMPLERS

    search, over = definitions["Sweep"]["properties"], definitions["Over"]
    over["properties"]["when"]["additionalProperties"] = True
    definitions["Over"] = {"anyOf": [{"type": "array", "minItems": 1}, {"const": "auto"}, over]}
    for sought in ("minimize", "maximize"):
        search[sought] = {**_described(search[sought]), "anyOf": [search[sought]["items"], search[sought]]}
    for part, names in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        search[part] = {**_described(search[part]), "anyOf": [{"enum": list(names)}, search[part]]}


def _described(schema: Schema) -> Schema:
    return {"description": schema.get("description", "")}
