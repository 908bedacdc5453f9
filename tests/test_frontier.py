"""Frontiers equal brute force and an independent library, however the points are batched."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import moocore  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from polars.testing import assert_frame_equal

from sweep import frontier as module
from sweep.errors import BadInput
from sweep.frontier import (
    Objective,
    RunningFrontier,
    area,
    condition,
    epsilon_front,
    epsilon_thin,
    frontier,
    hypervolume,
    hypervolume_contribution,
    nondominated,
    parse_objectives,
    rank,
    thin_to,
    under_staircase,
)

Array = npt.NDArray[Any]


def brute(values: Array, groups: Array | None = None) -> Array:
    """The definition, row by row: finite, and no finite row of the group is as good everywhere and better somewhere."""
    groups = np.zeros(len(values), dtype=int) if groups is None else groups
    finite: Array = np.asarray(np.isfinite(values).all(axis=1))
    mask = finite.copy()
    for i in np.flatnonzero(finite):
        rivals = values[finite & (groups == groups[i])]
        mask[i] = not ((rivals >= values[i]).all(axis=1) & (rivals > values[i]).any(axis=1)).any()
    return mask


@pytest.fixture(params=["direct", "sieve"])
def tiny(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also runs the paths of large inputs on small ones."""
    if request.param == "sieve":
        monkeypatch.setattr(module, "SMALL", 8)
        monkeypatch.setattr(module, "CHUNK", 13)
        monkeypatch.setattr(module, "BUFFER", 10)
        monkeypatch.setattr(module, "TABLE_LEVELS", 4)
        monkeypatch.setattr(module, "TABLE_EDGES", 3)


@st.composite
def tied_points(draw: st.DrawFn, k: int | None = None) -> tuple[Array, Array]:
    """Small integers (many ties), some of them NaN or infinite, with groups."""
    k = draw(st.integers(1, 5)) if k is None else k
    n = draw(st.integers(0, 40))
    top = draw(st.integers(1, 6))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    values = draw(hnp.arrays(dtype, (n, k), elements=st.integers(0, top).map(float)))
    for row in draw(st.lists(st.integers(0, max(n - 1, 0)), max_size=4)):
        if n:
            values[row, draw(st.integers(0, k - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return values, draw(hnp.arrays(np.int64, n, elements=st.integers(0, 3)))


def front_like(n: int, k: int, seed: int) -> Array:
    """Anti-correlated points near a simplex: most of them on the front."""
    rng = np.random.default_rng(seed)
    points = rng.exponential(size=(n, k))
    return np.asarray(points / points.sum(axis=1, keepdims=True) + rng.normal(0, 0.003, (n, k)))


def model_like(n: int, seed: int) -> Array:
    """Few accuracies, rates that trade off: what a sweep gives."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 60, n)
    batch = np.exp2(rng.uniform(0, 13, n))
    tpot = (1 + batch / 64) * size / rng.uniform(0.2, 1, n)
    return np.stack([np.log(size), batch / tpot, 1 / tpot], axis=1)


# Objectives ----------------------------------------------------------------------------------------------------------


def test_directions_follow_from_the_name() -> None:
    text = "accuracy,tok_s_gpu,tok_s_user,total_tok_s_gpu,tok_s_mw,mfu,hbm_bytes_per_s,output_tok_s"
    assert all(objective.maximise for objective in parse_objectives(text))
    text = "loss,loss_sigma,ttft_s,tpot_s,request_s,usd_per_mtok,joule_per_tok,comm_s,held_bytes"
    assert not any(objective.maximise for objective in parse_objectives(text))


def test_directions_can_be_given() -> None:
    parsed = parse_objectives(["-mfu", "loss:max", " intensity : min ", "+ttft_s", Objective("x", False)])
    assert [str(objective) for objective in parsed] == ["mfu:min", "loss:max", "intensity:min", "ttft_s:max", "x:min"]


@pytest.mark.parametrize("text", ["", "accuracy,,mfu", "mfu:best", "-mfu:min", "mfu,mfu", "mfu,-mfu", []])
def test_bad_objectives(text: Any) -> None:
    with pytest.raises(BadInput, match="objectives"):
        parse_objectives(text)


# Non-dominated -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
class TestNondominated:
    @settings(deadline=None, max_examples=300)
    @given(tied_points())
    def test_equals_brute_force(self, case: tuple[Array, Array]) -> None:
        values, groups = case
        assert np.array_equal(nondominated(values, groups), brute(values, groups))
        assert np.array_equal(nondominated(values), brute(values))

    @settings(deadline=None, max_examples=150)
    @given(tied_points(), st.lists(st.integers(0, 40), max_size=4), st.randoms(use_true_random=False))
    def test_batches_do_not_matter(self, case: tuple[Array, Array], cuts: list[int], random: Any) -> None:
        values, groups = case
        order = list(range(len(values)))
        random.shuffle(order)
        running = RunningFrontier(values.shape[1])
        for start, stop in itertools.pairwise([0, *sorted(cuts), len(order)]):
            part = order[start:stop]
            running.add(values[part], groups[part], np.asarray(part, dtype=np.int64))
            if random.random() < 0.3:
                running = RunningFrontier.from_state(running.state())
        expected = np.flatnonzero(brute(values, groups))
        front = running.result()
        assert sorted(front.ids.tolist()) == expected.tolist()
        assert len(running) == len(front) == len(expected)
        assert np.array_equal(front.values, values[front.ids])
        assert np.array_equal(front.groups, groups[front.ids])
        keys = list(zip(front.groups.tolist(), (-front.values).tolist(), front.ids.tolist(), strict=True))
        assert keys == sorted(keys)

    def test_medium_sizes(self) -> None:
        """Long enough for every level of the divide and conquer."""
        rng = np.random.default_rng(0)
        for k, top in itertools.product((1, 2, 3, 4, 5), (3, 20, 10**6)):
            values = rng.integers(0, top, (300, k)).astype(float)
            groups = rng.integers(0, 3, 300)
            assert np.array_equal(nondominated(values, groups), brute(values, groups))


def test_positive_and_types() -> None:
    values = np.array([[3, 0], [2, 1], [1, 2], [1, -1]])
    assert nondominated(values).tolist() == [True, True, True, False]
    assert nondominated(values, positive=(1,)).tolist() == [False, True, True, False]
    assert nondominated(np.empty((0, 3))).tolist() == []
    assert nondominated([[1.0], [1.0], [0.0]]).tolist() == [True, True, False]
    nothing = np.full((20_000, 3), np.nan)
    assert not nondominated(nothing).any()
    nothing[19_000] = 1
    assert np.flatnonzero(nondominated(nothing, np.arange(20_000) % 7)).tolist() == [19_000]
    with pytest.raises(ValueError, match="values"):
        nondominated(np.zeros(3))
    with pytest.raises(ValueError, match="groups"):
        nondominated(np.zeros((3, 1)), np.zeros(3))


def test_group_numbers_are_arbitrary() -> None:
    values = np.array([[1.0], [2.0], [3.0], [1.0]])
    assert nondominated(values, np.array([-5, 10**12, -5, 10**12])).tolist() == [False, True, True, False]


def test_float32_is_compared_as_it_is() -> None:
    low = np.float32(0.1)
    values = np.array([[low, 1], [np.nextafter(low, np.float32(1)), 1]], dtype=np.float32)
    assert nondominated(values).tolist() == [False, True]


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("kind", ["uniform", "front", "model"])
def test_equals_moocore_on_100k(k: int, kind: str) -> None:
    n = 100_000
    if kind == "front":
        values = front_like(n if k < 4 else n // 5, k, 1)
    elif kind == "uniform":
        values = np.random.default_rng(2).random((n, k))
    else:
        values = model_like(n, 3)[:, :k]
    expected = moocore.is_nondominated(values, maximise=True, keep_weakly=True)
    assert np.array_equal(nondominated(values), expected)
    groups = np.random.default_rng(4).integers(0, 50, len(values))
    running = RunningFrontier(values.shape[1], 50)
    for start in range(0, len(values), 30_000):
        running.add(values[start : start + 30_000], groups[start : start + 30_000])
    expected = np.zeros(len(values), dtype=bool)
    for group in range(50):
        members = np.flatnonzero(groups == group)
        expected[members] = moocore.is_nondominated(values[members], maximise=True, keep_weakly=True)
    assert np.array_equal(nondominated(values, groups), expected)
    assert np.array_equal(np.sort(running.result().ids), np.flatnonzero(expected))


# Running frontier ----------------------------------------------------------------------------------------------------


def test_running_options() -> None:
    running = RunningFrontier(2, positive=(1,))
    running.add([[5.0, 0.0], [1.0, 1.0]])
    running.add([[1.0, 1.0]], np.int64(3))
    running.add(np.empty((0, 2)))
    front = running.result()
    assert front.ids.tolist() == [1, 2]
    assert front.groups.tolist() == [0, 3]
    assert running.n_groups == 4
    assert running.seen == 3
    other = RunningFrontier(2)
    other.add([[2.0, 2.0]], ids=[77])
    running.merge(other)
    assert running.result().ids.tolist() == [77, 2]
    assert running.seen == 4


def test_running_refuses() -> None:
    with pytest.raises(ValueError, match="objectives"):
        RunningFrontier(2).add(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="ids"):
        RunningFrontier(2).add(np.zeros((3, 2)), ids=[1])
    with pytest.raises(ValueError, match="negative"):
        RunningFrontier(2).add(np.zeros((1, 2)), -1)
    with pytest.raises(ValueError, match="three"):
        RunningFrontier(2).staircase([0.0], [0.0])
    with pytest.raises(ValueError, match="ascending"):
        RunningFrontier(3).staircase([1.0, 0.0], [0.0])
    with pytest.raises(ValueError, match="needs"):
        RunningFrontier(0)


def test_state_goes_through_a_file(tmp_path: Path) -> None:
    values, path = model_like(40_000, 5).astype(np.float32), tmp_path / "front.npz"
    groups = np.random.default_rng(0).integers(0, 4, len(values))
    whole, first = RunningFrontier(3, 6, positive=(1, 2)), RunningFrontier(3, 6, positive=(1, 2))
    whole.add(values, groups)
    first.add(values[:25_000], groups[:25_000])
    np.savez(path, **first.state())  # type: ignore[arg-type]
    with np.load(path) as stored:
        second = RunningFrontier.from_state(stored)
    assert (second.n_groups, second.seen, second.positive) == (6, 25_000, (1, 2))
    second.add(values[25_000:], groups[25_000:])
    for name, array in whole.state().items():
        assert np.array_equal(array, second.state()[name]), name
        assert array.dtype == second.state()[name].dtype


# Staircase -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(tied_points(k=3), st.lists(st.integers(0, 6), min_size=1), st.lists(st.integers(0, 6), min_size=1))
def test_staircase_is_its_definition(case: tuple[Array, Array], levels: list[int], edges: list[int]) -> None:
    values, groups = case
    levels, edges = sorted(levels), sorted(edges)
    running = RunningFrontier(3, 4)
    running.add(values, groups)
    table = running.staircase(levels, edges)
    assert table.shape == (4, len(levels), len(edges))
    assert table.dtype == np.float32
    front = brute(values, groups)
    for g, (i, level), (j, edge) in itertools.product(range(4), enumerate(levels), enumerate(edges)):
        inside = front & (groups == g) & (values[:, 0] >= level) & (values[:, 2] >= edge)
        assert table[g, i, j] == max(values[inside, 1], default=-math.inf)
    dropped = under_staircase(values, groups, table, levels, edges)
    assert not (dropped & front).any()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([np.float32, np.float64]))
def test_staircase_of_a_part_never_drops_a_front_point(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    values = model_like(3_000, seed).astype(dtype)
    groups = rng.integers(0, 3, len(values))
    running = RunningFrontier(3, 3)
    running.add(values[:1_000], groups[:1_000])
    levels = np.unique(values[:, 0])[:: rng.integers(1, 5)]
    edges = np.quantile(values[:, 2], np.linspace(0, 1, 32))
    dropped = under_staircase(values, groups, running.staircase(levels, edges), levels, edges)
    assert not (dropped & nondominated(values, groups)).any()
    assert dropped.mean() > 0.3  # and it is worth having


def test_staircase_rounds_down() -> None:
    running = RunningFrontier(3)
    running.add([[1.0, 1 / 3 + 1e-9, 1.0], [0.5, 1e300, 1.0]])
    table = running.staircase([0.5, 1.0], [1.0])[0, :, 0]
    assert np.isfinite(table).all()
    assert table[1] <= 1 / 3 + 1e-9
    assert table[0] == np.finfo(np.float32).max


# Rays ----------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(
    tied_points(k=3),
    st.lists(st.integers(0, 6), min_size=1),
    st.lists(st.sampled_from([0.2, 0.5, 1.0, 2.0, 3.5]), min_size=1, unique=True),
    st.tuples(st.booleans(), st.booleans()),
)
def test_rays_are_their_definition(
    case: tuple[Array, Array], levels: list[int], ratios: list[float], costs: tuple[bool, bool]
) -> None:
    values, groups = case
    finite = np.isfinite(values).all(axis=1)
    values, groups = values[finite].astype(np.float64) + 1.0, groups[finite]
    levels, ratios = sorted(levels), sorted(ratios)
    x, y = values[:, 1], values[:, 2]
    running = RunningFrontier(3, 4)
    running.add(
        np.column_stack([values[:, 0], *(-1 / v if c else v for v, c in zip((x, y), costs, strict=True))]), groups
    )
    table = running.rays(levels, ratios, costs)
    assert table.shape == (len(levels), len(ratios), 4)
    assert table.dtype == np.float32
    for (i, level), (j, ratio), g in itertools.product(enumerate(levels), enumerate(ratios), range(4)):
        inside = (groups == g) & (values[:, 0] >= level)
        assert table[i, j, g] == pytest.approx(max(np.minimum(x, y / ratio)[inside], default=0.0), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_rays_of_a_part_never_drop_a_front_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = model_like(3_000, seed)
    slopes = np.geomspace(0.01, 100, 40)
    number = rng.integers(0, len(slopes), len(values))
    values[:, 2] = values[:, 1] * slopes[number]  # all on rays
    running = RunningFrontier(3)
    running.add(values[:1_000])
    levels = np.unique(values[:, 0])
    reach = running.rays(levels, slopes)[np.searchsorted(levels, values[:, 0]), number, 0]
    dropped = values[:, 1] < reach * (1 - 1e-6)
    assert not (dropped & nondominated(values)).any()
    assert dropped.mean() > 0.3
    running.add(values[1_000:], sieved=True)
    before = running.candidates
    running.drop_under(running.rays(levels, slopes), levels, slopes, (False, False), 4e-6)
    assert running.candidates < before
    assert sorted(running.result().ids) == np.flatnonzero(nondominated(values)).tolist()


def test_rays_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="three"):
        RunningFrontier(2).rays([0.0], [1.0])
    with pytest.raises(ValueError, match="ascending"):
        RunningFrontier(3).rays([0.0], [2.0, 1.0])


# Frames --------------------------------------------------------------------------------------------------------------


def points(n: int = 2_000, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    values = model_like(n, seed).astype(np.float32)
    values[rng.random(n) < 0.05, 2] = np.nan
    values[rng.random(n) < 0.05, 1] = 0
    return pl.DataFrame(
        {
            "point_id": np.arange(n),
            "hardware": rng.choice(["b", "a", "c"], n),
            "layout.tpa": rng.choice([1, 2, 4], n),
            "accuracy": values[:, 0],
            "tok_s_gpu": values[:, 1],
            "tok_s_user": values[:, 2],
            "ttft_s": rng.random(n).astype(np.float32),
            "feasible": rng.random(n) < 0.7,
        }
    ).with_columns(pl.when(pl.col("layout.tpa") < 4).then("layout.tpa"))


GOALS = "accuracy,tok_s_gpu,tok_s_user"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("by", [[], ["hardware"], ["layout.tpa", "hardware"]])
@pytest.mark.parametrize("where", [None, "tok_s_user >= 0.01 AND layout.tpa IN (1, 2)"])
def test_frontier_of_a_frame(lazy: bool, by: list[str], where: str | None, tmp_path: Path) -> None:
    frame = points()
    if lazy:
        for number, part in enumerate(frame.iter_slices(700)):
            part.write_parquet(tmp_path / f"{number}.parquet", row_group_size=500)
    kept = frame.filter("feasible", pl.col("tok_s_gpu") > 0, pl.col("tok_s_user").is_not_nan())
    if where:
        kept = kept.filter(pl.col("tok_s_user") >= 0.01, pl.col("layout.tpa").is_in([1, 2]))
    groups = kept.select(pl.struct(by).rank("dense")).to_series() if by else pl.zeros(kept.height, eager=True)
    mask = brute(kept.select(GOALS.split(",")).to_numpy(), groups.to_numpy())
    expected = kept.filter(mask).sort(
        [*by, *GOALS.split(","), "point_id"], descending=[*[False] * len(by), True, True, True, False]
    )
    found = frontier(pl.scan_parquet(tmp_path / "*.parquet") if lazy else frame, GOALS, by, where)
    assert_frame_equal(found, expected)
    some = frontier(frame, GOALS, by, where, columns=["point_id"])
    assert_frame_equal(some, expected.select("point_id"))


def test_frontier_minimises() -> None:
    frame = pl.DataFrame({"loss": [2.0, 1.0, 3.0, 0.5], "ttft_s": [1.0, 2.0, 4.0, 0.0], "mfu": [None, 1, 2, 3]})
    assert frontier(frame, "loss,ttft_s")["loss"].to_list() == [1.0, 2.0]  # a latency of 0 is no figure
    assert frontier(frame, "loss,ttft_s,mfu")["loss"].to_list() == [1.0, 3.0]
    assert frontier(frame, "loss:max")["loss"].to_list() == [3.0]


def test_frontier_of_nothing() -> None:
    frame = points()
    assert frontier(frame, GOALS, ["hardware"], "tok_s_user > 1e30").schema == frame.schema
    assert frontier(frame.head(0), GOALS, ["hardware"]).height == 0
    assert frontier(frame.lazy(), GOALS, where="tok_s_user > 1e30").schema == frame.schema


def test_groups_with_null_and_nan() -> None:
    frame = pl.DataFrame({"x": [1.0, 2.0, 3.0, 4.0, 5.0], "g": [None, None, math.nan, math.nan, 1.0]})
    assert frontier(frame, "x", ["g"])["x"].to_list() == [2.0, 5.0, 4.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("accuracy,tok_s_gup",), "objectives=tok_s_gup: no such column; nearest: tok_s_gpu"),
        (("hardware",), "objectives=hardware: not a number"),
        ((GOALS, ["hardwar"]), "by=hardwar: no such column; nearest: hardware"),
        ((GOALS, [], "tok_s_usr > 1"), "no column tok_s_usr; nearest: tok_s_user"),
        ((GOALS, [], "layout.tpb > 1"), "no column layout.tpb; nearest: layout.tpa"),
        ((GOALS, [], "tok_s_user >"), "where=tok_s_user >: not an SQL condition"),
        ((GOALS, [], "tok_s_user + 1"), "must be true or false"),
        ((GOALS, [], "hardware > 1 + 'a'"), "where=hardware > 1 [+] 'a': "),
    ],
)
def test_frontier_refuses(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        frontier(points(10), *arguments)
    assert "\n" not in str(caught.value)


def test_condition_leaves_text_alone() -> None:
    frame = pl.DataFrame({"a.b": ["a.b", "c"], "x": [1, 2]})
    assert frame.filter(condition("a.b = 'a.b' and x < 1.5", frame.schema)).height == 1
    assert frame.filter(condition("\"a.b\" = 'a.b'", frame.schema)).height == 1


# Thinning and ties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [False, [False, True, True]])
def test_thinning_keeps_a_near_point(log: Any) -> None:
    values = model_like(3_000, 7)
    values[:5] = np.nan
    groups = np.random.default_rng(0).integers(0, 2, len(values))
    eps = [0.5, 0.5, 0.5] if log else [0.2, 0.3, 0.1]
    kept = epsilon_thin(values, eps, groups=groups, log=log)
    assert 0 < kept.sum() < 2_000
    assert not kept[:5].any()
    scaled = values.copy()
    if log:
        scaled[:, 1:] = np.log(values[:, 1:])
    for row in np.flatnonzero(np.isfinite(values).all(axis=1)):
        near = np.abs(scaled[kept & (groups == groups[row])] - scaled[row]) <= eps
        assert near.all(axis=1).any()
    for group in (0, 1):  # the best of each objective stays
        of = groups == group
        assert np.array_equal(np.nanmax(values[of & kept], axis=0), np.nanmax(values[of], axis=0))


def test_thinning_does_not_depend_on_the_order() -> None:
    values = model_like(2_000, 8)
    order = np.random.default_rng(1).permutation(len(values))
    kept, shuffled = epsilon_thin(values, 0.2), epsilon_thin(values[order], 0.2)
    assert np.array_equal(np.unique(values[kept], axis=0), np.unique(values[order][shuffled], axis=0))
    assert epsilon_thin([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], 0).tolist() == [True, False, True]
    assert epsilon_thin([[-1.001], [-1.002], [-2.0]], 0.01, log=True).tolist() == [True, False, True]
    with pytest.raises(ValueError, match="eps"):
        epsilon_thin(values, -1)
    with pytest.raises(ValueError, match="sign"):
        epsilon_thin([[-1.0], [1.0]], 1, log=True)


def test_thin_to() -> None:
    values = front_like(5_000, 3, 9)
    for limit in (10, 100, 1_000):
        assert limit / 5 < thin_to(values, limit).sum() <= limit
    assert thin_to(values, 5_000).all()
    assert thin_to(np.ones((4, 2)), 2).sum() == 1


@settings(deadline=None, max_examples=200)
@given(tied_points(), st.integers(0, 3))
def test_epsilon_front_is_its_definition(case: tuple[Array, Array], eps: int) -> None:
    values, groups = case
    front = brute(values, groups)
    k = values.shape[1]
    objective = eps % k
    expected = front.copy()
    slack = np.where(np.arange(k) == objective, eps, 0)
    for row in np.flatnonzero(np.isfinite(values).all(axis=1)):
        rivals = values[front & (groups == groups[row])]
        expected[row] = (rivals <= values[row] + slack).all(axis=1).any()
    assert np.array_equal(epsilon_front(values, eps, groups=groups, objective=objective), expected)


# Hypervolume and rank ------------------------------------------------------------------------------------------------


def cubes(values: Array, top: int) -> float:
    """Unit cubes above 0 under any point, counted."""
    k = values.shape[1]
    corners = np.stack(np.meshgrid(*[np.arange(top)] * k, indexing="ij"), axis=-1).reshape(-1, k)
    under: Array = np.all(corners[:, None] < values[None], axis=2)
    return float(np.any(under, axis=1).sum())


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 4).flatmap(lambda k: hnp.arrays(np.float64, st.tuples(st.integers(0, 12), st.just(k)),
                                                       elements=st.integers(-1, 5).map(float))))  # fmt: skip
def test_hypervolume_counts_cubes(values: Array) -> None:
    zero = np.zeros(values.shape[1])
    assert hypervolume(values, zero) == pytest.approx(cubes(values, 5))
    front = nondominated(values)
    expected = [
        cubes(values[front], 5) - cubes(np.delete(values[front], i, axis=0), 5) for i in range(int(front.sum()))
    ]
    got = hypervolume_contribution(values, zero)
    assert got[front] == pytest.approx(np.array(expected))
    assert (got[~front] == 0).all()


@pytest.mark.parametrize("k", [2, 3, 4])
def test_hypervolume_equals_moocore(k: int) -> None:
    values = front_like({2: 5_000, 3: 5_000, 4: 60}[k], k, 10)
    reference = np.full(k, -0.1)
    assert hypervolume(values, reference) == pytest.approx(
        moocore.hypervolume(values, ref=reference, maximise=True), rel=1e-12
    )
    few = values[nondominated(values)][:300]
    assert hypervolume_contribution(few, reference) == pytest.approx(
        moocore.hv_contributions(few, ref=reference, maximise=True), rel=1e-9, abs=1e-14
    )


def test_hypervolume_by_hand() -> None:
    assert hypervolume([[1.0, 3.0], [2.0, 1.0]], [0.0, 0.0]) == 4.0
    assert area([[1.0, 3.0], [2.0, 1.0], [np.nan, 9.0]]) == 4.0
    assert hypervolume_contribution([[1.0, 3.0], [2.0, 1.0], [1.0, 1.0]], [0.0, 0.0]).tolist() == [2.0, 1.0, 0.0]
    assert hypervolume_contribution([[1.0, 1.0], [1.0, 1.0]], [0.0, 0.0]).tolist() == [0.0, 0.0]
    assert hypervolume([[2.0, 2.0, 2.0], [1.0, 3.0, 1.0]], [1.0, 1.0, 0.0]) == 2.0
    assert hypervolume(np.empty((0, 3)), np.zeros(3)) == 0.0
    with pytest.raises(ValueError, match="reference"):
        hypervolume([[1.0, 1.0]], [0.0])
    with pytest.raises(ValueError, match="two"):
        area([[1.0, 1.0, 1.0]])


def test_rank() -> None:
    frame = pl.DataFrame(
        {
            "g": ["a"] * 5 + ["b"] * 2,
            "accuracy": [1.0, 0.9, 0.0, 0.1, 1.0, 5.0, 5.0],
            "tok_s_gpu": [1.0, 50.0, 100.0, 20.0, 0.0, 7.0, 7.0],
        }
    )
    ranked = rank(frame, "accuracy,tok_s_gpu", ["g"])
    assert ranked.drop("rank").equals(frame)
    # 0.9/50 fills most of the square; of the two ends the one at 100 adds 0.1 x 0.25 more height, the one at 1 only
    # 0.1 x 0.1 of width; the beaten row is last; the row without a rate has no rank; duplicates follow each other.
    assert ranked["rank"].to_list() == [3, 1, 2, 4, None, 1, 2]
    assert rank(frame.head(0), "accuracy,tok_s_gpu", ["g"]).columns[-1] == "rank"
    with pytest.raises(BadInput, match="nearest: accuracy"):
        rank(frame, "acuracy")


def test_rank_follows_contributions() -> None:
    frame = frontier(points(), GOALS)
    ranked = rank(frame, GOALS, log=False)
    values = frame.select(GOALS.split(",")).to_numpy().astype(float)
    scaled = (values - values.min(axis=0)) / np.ptp(values, axis=0)
    expected = moocore.hv_contributions(np.unique(scaled, axis=0), ref=[-0.1] * 3, maximise=True)
    assert hypervolume_contribution(scaled, [-0.1] * 3)[ranked["rank"].arg_min()] == pytest.approx(expected.max())
    assert sorted(ranked["rank"].to_list()) == list(range(1, frame.height + 1))
