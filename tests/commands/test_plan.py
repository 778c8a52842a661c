"""`orch plan`: what it prints for people and for programs, scales, traces and differences."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

STACK_KEYS = {
    "step_time_s", "speedup", "compute_s", "exposed_communication_s", "payload_bytes_per_worker",
    "wire_bytes_per_worker", "peak_memory_bytes", "lossless", "basis", "buckets", "tasks",
}  # fmt: skip


def test_the_ceiling_comes_first_then_every_stack(orch) -> None:
    done = orch("plan", "mine")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "mine on pair, 4 workers (simulated)"
    assert re.fullmatch(r"if communication were free: .* a step, \d\.\d\dx over plain; .*", lines[1])
    rows = {line.split()[0]: line for line in lines if line.startswith(("plain ", "merged "))}
    assert "baseline" in rows["plain"]
    assert re.search(r"\d\.\d\dx", rows["merged"])
    assert "exact" in rows["merged"]
    assert any(line.startswith("range: ") for line in lines)
    assert any(line.startswith("rests on: ") for line in lines)
    assert any(line.startswith("  compute   |F") for line in lines)
    assert any(line.startswith("  bucket 0: all_reduce of ") for line in lines)


def test_stacks_that_rest_on_other_figures_are_named(orch) -> None:
    lines = [line for line in orch("plan", "quickstart").out.splitlines() if " on: " in line]
    assert [line.partition(" rest")[0] for line in lines] == ["ddp, wfbp, mg-wfbp, dear", "mg-wfbp+acp-sgd"]
    assert ["encode cost unknown" in line for line in lines] == [False, True]


def test_no_line_is_wider_than_a_terminal(orch) -> None:
    lines = orch("plan", "gpt2-a100").out.splitlines()
    assert max(len(line) for line in lines) <= 120


def test_the_keys_programs_rely_on(orch) -> None:
    document = orch("plan", "mine", "--json").document
    assert document.keys() >= {"recipe", "cluster", "workers", "ceiling", "stacks"}
    assert (document["recipe"], document["cluster"], document["workers"]) == ("mine", "pair", 4)
    assert document["ceiling"].keys() == {"step_time_s", "speedup"}
    for stack in document["stacks"].values():
        assert stack.keys() >= STACK_KEYS
        assert stack["step_time_s"].keys() == {"median", "lo", "hi"}
        assert all(bucket.keys() >= {"tensors", "bytes", "collective"} for bucket in stack["buckets"])
    merged = document["stacks"]["merged"]
    assert sum(bucket["bytes"] for bucket in merged["buckets"]) == merged["payload_bytes_per_worker"]
    assert merged["speedup"] == pytest.approx(
        document["stacks"]["plain"]["step_time_s"]["median"] / merged["step_time_s"]["median"]
    )
    assert document["ceiling"]["step_time_s"] <= merged["step_time_s"]["median"]


def test_other_sizes(orch) -> None:
    scales = orch("plan", "mine", "--scale", "8,64", "--json").document["scales"]
    assert list(scales) == ["8", "64"]
    assert scales["64"]["workers"] == 64
    out = orch("plan", "mine", "--scale", "8,64").out
    table = out[out.index("at other sizes (simulated):") :].splitlines()
    assert table[2].split() == ["workers", "ceiling", "plain", "merged"]
    assert [line.split()[0] for line in table[4:6]] == ["8", "64"]


def test_a_size_that_does_not_fill_nodes_is_one_line(orch) -> None:
    done = orch("plan", "mine", "--scale", "8,9")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "--scale 8,9: '9' is no number of workers that fills nodes of 2; write multiples of 2, such as 16 [E603]\n"
    )


def test_a_trace_has_a_lane_a_stream(orch, project: Path) -> None:
    done = orch("plan", "mine", "--trace", "t.json")
    assert done.out.endswith("trace: t.json (open it at ui.perfetto.dev)\n")
    events = json.loads((project / "t.json").read_text())["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["plain (simulated)", "merged (simulated)"]
    lanes = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert sorted(lanes) == ["compute", "compute", "net.inter", "net.inter"]
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_a_trace_that_cannot_be_written_is_one_line(orch) -> None:
    done = orch("plan", "mine", "--trace", "absent/t.json")
    assert (done.code, done.out) == (2, "")
    assert done.err == "cannot write absent/t.json: No such file or directory [E602]\n"


def test_a_difference_of_two_plans(orch) -> None:
    lines = orch("plan", "mine", "--diff", "plain", "merged").out.splitlines()
    assert any(line.startswith("-") for line in lines)
    assert any("all_reduce" in line for line in lines)
    assert orch("plan", "mine", "--diff", "plain", "plain").out == "the plans of plain and plain are equal\n"
    assert orch("plan", "mine", "--diff", "plain", "merged", "--json").document["diff"] == lines


def test_a_difference_with_an_unknown_stack_is_one_line(orch) -> None:
    done = orch("plan", "mine", "--diff", "plain", "merge")
    assert (done.code, done.out) == (2, "")
    assert done.err == "--diff: 'merge' is no stack of mine; did you mean merged? [E233]\n"


def test_links_that_nobody_described_are_refused_not_guessed(orch) -> None:
    done = orch("plan", "quickstart", "cluster.nodes=512")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "links.inter is not described" in done.err
    assert orch("plan", "resnet50-v100", "cluster.nodes=512", "--json").document["workers"] == 2048


def test_uncertain_inputs_are_named(orch) -> None:
    uncertain = "uncertain={train.batch_per_worker: {choices: [16, 32], source: nobody knows}}"
    last = orch("plan", "mine", uncertain).out.splitlines()[-1]
    assert last == "taken as the recipe states them, though it calls them uncertain: train.batch_per_worker"
    assert "uncertain" not in orch("plan", "mine").out


def test_what_faults_cost_is_part_of_a_plan(orch) -> None:
    faults = "faults=[{slow_node: {node: 1, by: 3, step: 2, until: 5, stack: plain}}, {kill_rank: {rank: 0, step: 4}}]"
    done = orch("plan", "mine", faults)
    table = done.out[done.out.index("what its faults cost (simulated)") :].splitlines()
    assert any(line.startswith("node 1 is slower by 3 in steps 2 to 4 ") and "plain" in line for line in table)
    assert sum(line.startswith("rank 0 is killed at step 4 ") for line in table) == 2
    slow = orch("plan", "mine", faults, "--json").document["faults"][0]
    usual = orch("plan", "mine", "--json").document
    assert "faults" not in usual
    assert slow["step_time_s"] > usual["stacks"]["plain"]["step_time_s"]["median"]
