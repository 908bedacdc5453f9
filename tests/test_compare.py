"""Two frontiers held against each other, knees and robustness: laws, brute force and closed forms."""

from __future__ import annotations

import itertools
import math

import moocore
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.compare import best, compare, mean_ratio, staircase
from sweep.frontier import Objective, frontier, parse_objectives
from sweep.studies import Doubt, knees, robustness, stays, time_powers

X, Y = parse_objectives("tok_s_user,tok_s_gpu")
figures = st.floats(1.0, 1e4, width=32)
designs = st.lists(st.tuples(figures, figures), min_size=1, max_size=12)


def frame(points: list[tuple[float, float]], accuracy: float = 0.5) -> pl.DataFrame:
    return pl.DataFrame(
        {"tok_s_user": [float(p[0]) for p in points], "tok_s_gpu": [float(p[1]) for p in points]}
    ).with_columns(pl.lit(accuracy).alias("accuracy"))


@settings(deadline=None, max_examples=60)
@given(designs, st.floats(1.0, 1e4))
def test_the_best_at_a_speed_is_that_of_all_designs(points: list[tuple[float, float]], at: float) -> None:
    stairs = staircase(frame(points), X, Y)
    xs = stairs["tok_s_user"].to_list()
    assert xs == sorted(xs) and stairs["tok_s_gpu"].to_list() == sorted(stairs["tok_s_gpu"].to_list(), reverse=True)
    fast = [y for x, y in points if x >= at]
    found = best(stairs, X, Y, at)
    assert (found is None) == (not fast)
    if found is not None:
        assert found["tok_s_gpu"] == max(fast)


@settings(deadline=None, max_examples=60)
@given(designs, st.floats(0.1, 10.0))
def test_twice_the_throughput_is_twice_everywhere(points: list[tuple[float, float]], factor: float) -> None:
    one = frame(points)
    two = one.with_columns(pl.col("tok_s_gpu") * factor)
    for row in compare(one, two, x=X, y=Y, at=[min(p[0] for p in points)]):
        if row.ratio is not None and not row.measure.startswith("tok_s_user at"):
            assert row.ratio == pytest.approx(factor, rel=1e-9), row
    for row in compare(one, one, x=X, y=Y, at=[5.0, 50.0]):
        assert row.ratio is None or row.ratio == pytest.approx(1.0, rel=1e-12)
        assert (row.first is None) == (row.second is None)


@settings(deadline=None, max_examples=60)
@given(designs, designs)
def test_the_mean_ratio_is_that_of_a_fine_grid(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    stairs = [staircase(frame(points), X, Y) for points in (first, second)]
    found = mean_ratio(*stairs, X, Y)
    low, high = (f(float(s["tok_s_user"][i]) for s in stairs) for f, i in ((max, 0), (min, -1)))
    if not high > low:
        assert found is None
        return
    assert found is not None
    # exact between all corners: the middle of each interval stands for it
    edges = sorted({low, high, *(x for s in stairs for x in s["tok_s_user"] if low < x < high)})
    total = 0.0
    for a, b in itertools.pairwise(edges):
        at = math.sqrt(a * b)
        y1, y2 = (max(y for x, y in points if x >= at) for points in (first, second))
        total += math.log(y2 / y1) * math.log(b / a)
    assert found == pytest.approx(math.exp(total / math.log(high / low)), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(designs, designs)
def test_areas_and_volumes_are_moocores(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> None:
    sides = [frame(first, 0.4).vstack(frame(second, 0.7)), frame(second, 0.5)]
    rows = {r.measure.split(" ")[0]: r for r in compare(*sides, x=X, y=Y, at=[1.0])}
    for name, columns in (
        ("area", ["tok_s_user", "tok_s_gpu"]),
        ("hypervolume", ["accuracy", "tok_s_user", "tok_s_gpu"]),
    ):
        for side, value in zip(sides, (rows[name].first, rows[name].second), strict=True):
            values = side.select(columns).to_numpy()
            assert value == pytest.approx(moocore.hypervolume(-values, ref=np.zeros(len(columns))), rel=1e-9)


def test_less_is_better_for_prices_and_latencies() -> None:
    x, y = parse_objectives("tok_s_user,usd_per_mtok")
    dear = pl.DataFrame({"tok_s_user": [10.0, 100.0], "usd_per_mtok": [1.0, 4.0]})
    cheap = dear.with_columns(pl.col("usd_per_mtok") / 2)
    rows = compare(dear, cheap, x=x, y=y, at=[10.0, 50.0])
    prices = [r for r in rows if r.measure == "usd_per_mtok at tok_s_user"]
    assert [(r.at, r.first, r.second, r.ratio) for r in prices] == [(10.0, 1.0, 0.5, 0.5), (50.0, 4.0, 2.0, 0.5)]
    speeds = {r.at: r.ratio for r in rows if r.measure == "tok_s_user at usd_per_mtok"}
    assert speeds == {1.0: 1.0, 4.0: 1.0}  # two dollars already buy the faster one, one dollar buys the slower
    (mean,) = [r.ratio for r in rows if "mean ratio" in r.measure]
    assert mean == pytest.approx(0.5)


def test_a_side_without_such_a_design_has_no_ratio() -> None:
    slow, fast = frame([(10.0, 100.0)]), frame([(50.0, 80.0)], 0.9)
    rows = compare(slow, fast, x=X, y=Y, at=[40.0], accuracies=[None, 0.8, 0.95])
    assert [(r.accuracy, r.first, r.second, r.ratio) for r in rows if r.at == 40.0] == [(None, None, 80.0, None)]
    assert [r.accuracy for r in rows if r.measure == "tok_s_gpu at tok_s_user" and r.at is None] == [0.8, 0.95]


# --- knees -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(figures, figures), min_size=4, max_size=30, unique=True), st.floats(0.01, 100.0))
def test_a_knee_is_furthest_from_the_line_between_the_ends(points: list[tuple[float, float]], unit: float) -> None:
    front = frontier(frame(points), [X, Y])
    marked = knees(front, (X, Y))
    assert marked.sum() == (1 if front.height > 2 else 0)
    if not marked.any():
        return
    u, v = (np.log(front[c].to_numpy()) for c in ("tok_s_user", "tok_s_gpu"))
    (ax, ay), (bx, by) = (u[np.argmax(u)], v[np.argmax(u)]), (u[np.argmax(v)], v[np.argmax(v)])
    beyond = (u - ax) * (by - ay) + (v - ay) * (ax - bx)  # along the normal that points up and right
    scaled = (u - u.min()) / np.ptp(u) + (v - v.min()) / np.ptp(v)
    assert scaled[marked.to_numpy()][0] == scaled.max()
    assert beyond[marked.to_numpy()][0] == pytest.approx(beyond.max(), abs=1e-9)
    rescaled = front.with_columns(pl.col("tok_s_gpu") * unit)
    assert knees(rescaled, (X, Y)).arg_max() == marked.arg_max() or np.isclose(np.sort(scaled)[-2], scaled.max())


def test_knees_are_found_per_group() -> None:
    bent = [(1.0, 100.0), (80.0, 80.0), (100.0, 1.0)]
    both = pl.concat([frame(bent).with_columns(pl.lit(n).alias("hardware")) for n in "ab"] + [
        frame([(5.0, 5.0)]).with_columns(pl.lit("c").alias("hardware"))])  # fmt: skip
    marked = both.filter(knees(both, (X, Y), ["hardware"]))
    assert marked.rows() == [(80.0, 80.0, 0.5, "a"), (80.0, 80.0, 0.5, "b")]


# --- robustness ------------------------------------------------------------------------------------------------------


def test_a_point_stays_as_often_as_its_lead_is_larger_than_the_error() -> None:
    lead, doubt = 0.1, Doubt(sigma=0.15, correlation=0.5, draws=4000)
    values = np.array([[100.0, 100.0], [100.0 * math.exp(-lead)] * 2])
    machines, design = np.zeros(2, np.int64), np.arange(2)
    share = stays(values, [-1.0, -1.0], doubt, machines=machines, designs=design)
    spread = 0.15 * math.sqrt(2 * 0.5)  # two designs on one machine: half of the variance is common and cancels
    expected = 0.5 * (1 + math.erf(lead / spread / math.sqrt(2)))
    assert share[0] == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / doubt.draws))
    assert share.sum() == pytest.approx(1.0)
    apart = stays(values, [-1.0, -1.0], doubt, machines=design, designs=design)
    assert apart[0] < share[0]  # on two machines nothing cancels


def test_what_is_wrong_together_stays_together() -> None:
    points = frame([(1.0, 100.0), (10.0, 50.0), (100.0, 2.0), (9.0, 40.0)])
    values = points.select("tok_s_user", "tok_s_gpu").to_numpy()
    one = np.zeros(4, np.int64)
    for correlation, design in ((1.0, np.arange(4)), (0.0, one)):
        doubt = Doubt(sigma=0.5, correlation=correlation, draws=50)
        assert stays(values, [-1, -1], doubt, machines=one, designs=design).tolist() == [1, 1, 1, 0]
    tiny = Doubt(sigma=1e-9, draws=20)
    assert stays(values, [-1, -1], tiny, machines=one, designs=np.arange(4)).tolist() == [1, 1, 1, 0]
    accurate = np.array([[0.9, 1.0], [0.5, 1.1]])  # the most accurate point cannot be pushed off
    share = stays(accurate, [0, -1], Doubt(sigma=0.5, draws=300), machines=one[:2], designs=np.arange(2))
    assert share[0] == 1.0 and 0.3 < share[1] < 0.8


def test_near_points_take_part_and_far_ones_do_not() -> None:
    goals = (Objective("accuracy"), X, Y)
    assert time_powers([*goals, Objective("ttft_s", maximise=False)]) == [0.0, -1.0, -1.0, 1.0]
    rows = [("a", 100.0, 100.0, True), ("b", 97.0, 97.0, True), ("c", 10.0, 10.0, True), ("d", 99.0, 99.0, False)]
    points = pl.DataFrame(rows, schema=["model", "tok_s_user", "tok_s_gpu", "feasible"], orient="row").with_columns(
        pl.lit("x").alias("hardware"), pl.lit(0.5).alias("accuracy")
    )
    front = frontier(points, goals)
    share, near, likely, reach = robustness(points.lazy(), front, goals, [], None, Doubt(sigma=0.1, draws=1000))
    assert front["model"].to_list() == ["a"] and near == 1 and likely == 0 and reach == 3.0
    assert 0.5 < share[0] < 0.75
    alone, near, *_ = robustness(points.lazy(), front, goals, [], "model <> 'b'", Doubt(sigma=0.1, draws=10))
    assert alone.to_list() == [1.0] and near == 0


def test_of_too_many_near_points_the_nearest_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.studies.MOST", 10)
    goals = (X, Y)
    lead = np.linspace(0.0, 0.29, 30)  # the frontier, and points ever further under it
    points = frame([(100.0 * math.exp(-d), 100.0 * math.exp(-d)) for d in lead]).with_columns(
        pl.Series("model", [str(i) for i in range(30)])
    )
    front = frontier(points, goals)
    share, near, _, reach = robustness(points.lazy(), front, goals, [], None, Doubt(sigma=0.1, draws=20))
    assert front.height == 1 and near <= 10 and reach < 3.0
    assert near == int((lead[1:] <= 0.1 * reach).sum())
    assert 0 < share[0] < 1
