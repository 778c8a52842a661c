"""The cluster schema: what files say, what is refused and in which words, overrides, and every file that ships."""

import copy
from pathlib import Path
from typing import get_args

import pytest
import yaml

from orch.cluster import ClusterSpec, Level, Span, load
from orch.cluster.algorithms import ALGORITHMS, COLLECTIVES
from orch.cluster.spec import AlgorithmName, CollectiveName
from orch.errors import OrchError

FILES = sorted((Path(__file__).parents[2] / "clusters").glob("*.yaml"))
EXAMPLE = {
    "nodes": 4,
    "devices_per_node": 8,
    "device": {
        "kind": "gpu",
        "name": "example",
        "rate": {"fp32": "10TFLOP/s"},
        "memory_bandwidth": "500GB/s",
        "memory": "16GiB",
        "source": "example, not measured",
    },
    "links": {
        "intra": {"alpha": "5us", "bandwidth": "100GB/s", "source": "example"},
        "inter": {"alpha": "50us", "beta": "0.8ns/B", "per": "node", "source": "example"},
    },
}
LINE = {"ranks": 16, "alpha": "908us", "beta": "0.74ns/B", "sizes": ["32KiB", "2MiB"]}


def changed(path, value):
    """The example with one key set (or, for None, taken out)."""
    result = copy.deepcopy(EXAMPLE)
    *parents, last = path.split(".")
    inner = result
    for key in parents:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return result


def test_example_of_the_style_guide():
    cluster = load(EXAMPLE, "example")
    assert (cluster.name, cluster.world) == ("example", Span(32, 4, 8))
    assert cluster.links.inter.level == Level(pytest.approx(50e-6), pytest.approx(0.8e-9), 0.0)
    assert (cluster.links.inter.per_node, cluster.links.intra.per_node) == (True, False)
    assert cluster.device.rate_flops == {"fp32": 1e13}
    assert cluster.device.memory_bytes == 16 * 2**30
    assert str(cluster.basis()) == "nameplate"


def test_bandwidth_is_the_inverse_of_beta():
    same = load(changed("links.inter", {"alpha": "50us", "bandwidth": "10Gbit", "source": "x"}))
    assert same.links.inter.level.beta_s_per_byte == pytest.approx(0.8e-9)


def test_overriding_nodes_just_works():
    assert load(changed("nodes", 512)).world == Span(4096, 512, 8)


def test_one_node_needs_no_outer_link_and_more_nodes_do():
    alone = {**EXAMPLE, "nodes": 1, "links": {"intra": EXAMPLE["links"]["intra"]}}
    cluster = load(alone, "alone")
    assert cluster.all_reduce_s(1e6, cluster.world) > 0
    grown = load({**alone, "nodes": 512}, "alone")
    with pytest.raises(
        OrchError, match=r"cluster alone: links\.inter is not described, and 4096 ranks on 512 nodes need it"
    ):
        grown.all_reduce_s(1e6, grown.world)


def test_names_of_collectives_and_algorithms_are_those_that_have_forms():
    assert get_args(CollectiveName) == COLLECTIVES
    assert get_args(AlgorithmName) == ALGORITHMS


def test_lines_and_tables():
    table = {"ranks": 8, "collective": "all-gather", "table": {"1KiB": "1ms", "1MiB": "3ms"}}
    cluster = load(changed("links.inter", {"measured": [LINE, table], "source": "repo"}))
    line, gather = cluster.links.inter.measured
    assert (line.span, line.kind, line.source, line.sizes) == (Span(16, 2, 8), "fitted", "repo", (32768.0, 2097152.0))
    assert (gather.span, gather.kind, gather.sizes) == (Span(8, 1, 8), "measured", (1024.0, 1048576.0))
    assert cluster.all_reduce_s(1e6, Span(16, 2, 8)) == pytest.approx(908e-6 + 0.74e-3)
    assert str(cluster.basis()) == "fitted, extrapolated 2 times"


def test_multiprocessors_that_collectives_hold():
    cluster = load({**EXAMPLE, "sharing": {"units": 68, "held": 8, "source": "an example"}})
    assert (cluster.sharing.units, cluster.sharing.held) == (68, 8)
    for given, message in (
        ({"units": 68}, "units and held go together"),
        ({"units": 8, "held": 8}, "held 8 leaves nothing of units 8"),
    ):
        with pytest.raises(OrchError, match=message):
            load({**EXAMPLE, "sharing": {**given, "source": "an example"}})


def test_speed_jitter_and_sharing():
    more = {"speed": {"3": 0.5}, "jitter": "2%", "sharing": {"compute_slowdown": 1.2, "source": "measured"}}
    cluster = load({**EXAMPLE, **more})
    assert (cluster.speeds()[3], cluster.jitter) == (0.5, pytest.approx(0.02))
    assert (cluster.sharing.compute_slowdown, cluster.sharing.communication_slowdown) == (1.2, 1.0)
    assert load(EXAMPLE).sharing is None


def test_null_takes_a_link_or_its_measurements_away():
    assert load(changed("links.intra", None)).links.intra is None
    empty = {**EXAMPLE["links"]["inter"], "measured": None}
    assert load(changed("links.inter", empty)).links.inter.measured == ()


SOURCELESS = "has numbers without a source; add source: where they come from"
LINE_OR_TABLE = "needs either a line (alpha and beta) or a table"
INTER, MEASURED = "links.inter", "links.inter.measured"
FAULTS = [
    ("nodes", True, "nodes", "input should be a valid integer"),
    ("nodes", "4", "nodes", "input should be a valid integer"),
    ("nodes", 0, "nodes", "input should be greater than or equal to 1"),
    ("device", None, "device", "field required"),
    ("device.source", None, "device", SOURCELESS),
    (f"{INTER}.source", None, INTER, SOURCELESS),
    (f"{INTER}.alpha", 5, f"{INTER}.alpha", "5 is not a time; write a number with its unit, such as 50us"),
    (f"{INTER}.alpha", "-5us", f"{INTER}.alpha", "-5us is negative; a time is not"),
    (f"{INTER}.alpha", None, INTER, "needs alpha, and beta or bandwidth"),
    (f"{INTER}.bandwidth", "10Gbit", INTER, "gives beta and bandwidth, which say the same thing; keep one"),
    (
        "links.intra.bandwidth",
        "100Gb",
        "links.intra.bandwidth",
        "100Gb is ambiguous; write 100GB/s (bytes) or 100Gbit (bits)",
    ),
    (
        INTER,
        {"measured": [{"ranks": 4, "table": {"1KiB": "1us", "2KiB": "2us"}, "sizes": ["1KiB", "2MiB"]}]},
        f"{MEASURED}.0",
        "has a table, which brings its own sizes; drop sizes",
    ),
    (
        MEASURED,
        [{**LINE, "source": "x"}],
        INTER,
        "gives alpha, which its measured all-reduce would leave unused; drop one (measured: null)",
    ),
    (
        INTER,
        {"source": "x"},
        INTER,
        "describes nothing: give alpha and beta (or bandwidth), or measured collectives; leave an unknown link out",
    ),
    (
        INTER,
        {"measured": [LINE]},
        INTER,
        "needs a source for the measured all-reduce of 16 ranks",
    ),
    (MEASURED, [{**LINE, "table": {"1KiB": "1us", "2KiB": "2us"}}], f"{MEASURED}.0", LINE_OR_TABLE),
    (MEASURED, [{"ranks": 4, "alpha": "1us"}], f"{MEASURED}.0", LINE_OR_TABLE),
    (
        MEASURED,
        [{"ranks": 4, "table": {"1KiB": "1us"}}],
        f"{MEASURED}.0.table",
        "dictionary should have at least 2 items after validation, not 1",
    ),
    (
        MEASURED,
        [{**LINE, "sizes": ["2MiB", "1KiB"]}],
        f"{MEASURED}.0",
        "has sizes that do not rise; write [smallest, largest]",
    ),
    (
        MEASURED,
        [{**LINE, "collective": "allreduce"}],
        f"{MEASURED}.0.collective",
        "input should be 'all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all', 'broadcast' or 'reduce'",
    ),
    ("speed", {True: 1.0}, "speed.1", "is not a rank; ranks are numbers from 0"),
    ("speed", {"0": 0}, "speed.0", "input should be greater than 0"),
    ("speed", {"0": float("nan")}, "speed.0", "input should be a finite number"),
    ("linkz", {}, "linkz", "extra inputs are not permitted"),
]


@pytest.mark.parametrize(("path", "value", "key", "text"), FAULTS)
def test_faults_are_one_line(path, value, key, text):
    with pytest.raises(OrchError) as caught:
        load(changed(path, value), "x")
    assert str(caught.value) == f"cluster x: {key} {text} [E300]"


def test_faults_of_the_whole_have_no_key():
    with pytest.raises(OrchError) as caught:
        load(changed("speed", {40: 1.0}), "x")
    assert str(caught.value) == "cluster x names rank 40 in speed, but has ranks 0 to 31 [E300]"
    with pytest.raises(OrchError, match="cluster x input should be a valid dictionary"):
        load([], "x")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_shipped_file_loads_and_costs(file):
    cluster = load(yaml.safe_load(file.read_text()), file.stem)
    assert cluster.about
    assert 0 < cluster.all_reduce_s(1e3, cluster.world) < cluster.all_reduce_s(1e9, cluster.world) < 300
    assert cluster.device.compute_s(1e12, 1e9) > 0
    assert cluster.device.memory_bytes is None or cluster.device.memory_bytes > 1e9


def test_local_4_refuses_to_grow():
    mapping = yaml.safe_load((FILES[0].parent / "local-4.yaml").read_text())
    cluster = load({**mapping, "nodes": 512}, "local-4")
    with pytest.raises(OrchError, match=r"cluster local-4: links\.inter is not described, and 2048 ranks on 512 nodes"):
        cluster.all_reduce_s(1e6, cluster.world)


def test_v100_is_carried_to_2048_and_says_so():
    mapping = yaml.safe_load((FILES[0].parent / "v100-4x4-10gbe.yaml").read_text())
    cluster = load({**mapping, "nodes": 512}, "v100")
    assert str(cluster.basis()) == "fitted, extrapolated 128 times"
    assert cluster.all_reduce_s(1e8, cluster.world) == pytest.approx(2047 / 15 * 908e-6 + 0.19 * 2047 / 2048 * 16 / 15)


def test_every_field_is_described():
    def models(schema):
        return [schema, *schema.get("$defs", {}).values()]

    for schema in models(ClusterSpec.model_json_schema()):
        for name, field in schema.get("properties", {}).items():
            assert field.get("description"), name
