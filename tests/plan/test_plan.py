"""Steps: depth, waves, replacing and fusing."""

from orch.plan import AllReduce, Backward, Buffer, Compute, Plan, Segment, Step, Task
from orch.plan.plan import NET


def send(name, *after, numel=1):
    return Task(name, AllReduce(Buffer(name, (Segment(name, numel, "fp32", name),))), NET, after)


def work(name, *after):
    return Task(name, Compute(name, 0.0, 0.0, seconds=1.0), after=after)


TWO_WAVES = Step((work("a"), send("x1", "a"), work("b"), send("x2", "b"), work("c", "x1"), send("y1", "c"), work("d")))


def names(step):
    return [task.name for task in step]


def test_depth_counts_collectives_of_the_longest_chain():
    assert TWO_WAVES.depths == (0, 0, 0, 0, 1, 1, 0)


def test_waves_hold_what_may_be_fused():
    assert [[task.name for task in wave] for wave in TWO_WAVES.waves()] == [["x1", "x2"], ["y1"]]


def test_by_wave_lets_compute_go_on_first():
    assert names(TWO_WAVES.by_wave()) == ["a", "x1", "b", "x2", "d", "c", "y1"]
    ordered = TWO_WAVES.by_wave()
    assert ordered.by_wave() is ordered


def test_replace_renames_for_dependents_only():
    step = TWO_WAVES.replace({"x1": [work("before", "a"), send("x1", "before"), work("behind", "x1")]})
    by_name = {task.name: task for task in step}
    assert names(step)[:4] == ["a", "before", "x1", "behind"]
    assert by_name["behind"].after == ("x1",)
    assert by_name["c"].after == ("behind",)


def test_replace_by_nothing_drops_a_task():
    assert names(TWO_WAVES.replace({"d": []})) == ["a", "x1", "b", "x2", "c", "y1"]


def test_a_bucket_stands_where_its_last_member_stood_and_waits_once_a_stream():
    step = TWO_WAVES.by_wave()
    waves = step.waves()
    fused = step.fuse([waves[1], waves[0]])
    assert names(fused) == ["a", "b", "x1.b0", "d", "c", "y1.b1"]
    bucket = fused.tasks[2]
    assert bucket.after == ("b",)  # a and b are on one stream, so b has waited for a
    assert bucket.op.buffer.name == "x1.b0"
    assert [segment.name for segment in bucket.op.buffer.segments] == ["x1", "x2"]
    assert fused.tasks[4].after == ("x1.b0",)


def test_streams_keep_the_order_of_the_list():
    assert names(TWO_WAVES.stream(NET)) == ["x1", "x2", "y1"]
    assert names(TWO_WAVES.stream("compute")) == ["a", "b", "c", "d"]


def test_a_change_that_changes_nothing_gives_the_plan_itself():
    plan = Plan.of("p", 2, TWO_WAVES.tasks)
    assert plan.each_step(lambda step: Step(step.tasks)) is plan
    assert plan.each_step(lambda step: Step(step.tasks[1:])) is not plan
    assert plan.period == 1
    assert set(plan.buffers()) == {"x1", "x2", "y1"}
    assert plan.steps[0].of(Backward) == ()
