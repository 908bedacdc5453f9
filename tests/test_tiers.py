"""Memory in tiers: placements, laws of filling and reading, reloads, bad input; held to the scalar model.

The scalar model fills its shelves with loops over dictionaries, from the placement's file; nothing is shared.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import explain as explain_pipeline
from sweep import space as spaces
from sweep.config import conf_dir, make_record
from sweep.cost.placement import place, slowdown, tiered_ttft
from sweep.cost.result import ContextCost, PointCost, RowCost, evaluate_point
from sweep.cost.step import Row
from sweep.errors import BadInput
from sweep.explain import explain
from sweep.machine import Memory, resolve
from sweep.placing import align, merged
from sweep.point import Hardware, Kinds, Precision
from sweep.report.roofline import _tiers
from sweep.space import Space, build, machine_arrays, row_reasons
from sweep.tiers import BUILT_IN, CLASSES, check_memory, check_placement, plan, tiers_of
from tests.conftest import make_study
from tests.cost import points
from tests.test_against_oracle import COLUMNS, scalar_point

few = settings(deadline=None, derandomize=True, max_examples=40)
fewer = settings(deadline=None, derandomize=True, max_examples=14)  # through the whole model
SHIPPED = sorted(p.stem for p in (conf_dir() / "placement").glob("*.yaml"))
# a machine with every tier: figures of the small test machine, and what hierarchies are made of
TIERED: dict[str, Any] = {
    **points.HARDWARE,
    "sram_bytes": 5e8,
    "sram_bytes_per_s": 8e13,
    "host_bytes": 4e11,
    "host_bytes_per_s": 5e11,
    "host_link_bytes_per_s": 2e11,
    "nvme_bytes": 4e12,
    "nvme_bytes_per_s": 7e9,
    "remote_bytes": 1e14,
}


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


# --- against the scalar model ------------------------------------------------------------------------------------


@functools.cache
def tiered_space(efficiency: str) -> Space:
    """Every shipped placement, on machines with all tiers and with some."""
    sram = "sram_bytes: 2.0e9, sram_bytes_per_s: 1.5e14, remote_bytes: 1.0e13"
    machines = f"[{{base: b200_sxm_180gb, set: {{{sram}}}}}, gb300_nvl72, d_matrix_corsair, sambanova_sn40l]"
    return build(
        make_study(
            "grid=none",
            f"efficiency={efficiency}",
            f"grid.placement=[{', '.join(SHIPPED)}]",
            f"grid.hardware={machines}",
            "grid.model=[llama_3_1_70b, gpt_oss_120b, deepseek_v3_2, qwen3_next_80b_a3b]",
            "grid.precision=[fp8, bf16]",
            "grid.layout={gpus: [1, 8, 16], tpa: pow2, dpa: divisors, ep: divisors, pp: [1, 2]}",
            "grid.workload={batch: [1, 30, 700, 5000], isl: [2000, 50000], osl: [500], prefix_hit: [0, 0.8]}",
        )
    )


def scalar_row(space: Space, row: int, machines: Any) -> Row:
    i_model, i_machine, i_layout = (int(i[0]) for i in space.indices(np.array([row])))

    def pick(table: Any, at: int) -> Any:
        return jax.tree.map(lambda x: np.float64(x[at]), table)

    return points.row(pick(space.model, i_model), pick(machines, i_machine), pick(space.layout, i_layout))


@pytest.mark.parametrize(("efficiency", "seed"), [("ideal", 1), ("measured", 2)])
def test_every_placement_against_the_scalar_model(efficiency: str, seed: int) -> None:
    space = tiered_space(efficiency)
    kinds, machines = spaces.kinds(space), machine_arrays(space)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(space.n_rows)[:4000]
    rows = rows[row_reasons(space, rows) == 0]
    seen: set[tuple[str, bool]] = set()
    for row in rows[:80].tolist():
        b, c = int(rng.integers(len(space.batch))), int(rng.integers(space.n_contexts))
        expected = scalar_point(space, row, b, c, efficiency)
        context = jax.tree.map(lambda x, at=c: np.float64(x[at]), space.context)
        costs = evaluate_point(scalar_row(space, row, machines), np.float64(space.batch[b]), context, kinds)
        got = {k: getattr(part, k) for part in costs for k in part.__dataclass_fields__}
        for key in COLUMNS:
            want = expected[key]
            if want is None:
                continue
            scale = expected["tpot_s"] if key.endswith("_s") and key not in ("ttft_s", "request_s") else abs(want)
            assert abs(float(got[key]) - want) <= 1e-6 * scale, (row, b, c, key, got[key], want)
        assert bool(got["fits"]) == bool(expected["fits"]), (row, b, c)
        p = space.machines[int(space.indices(np.array([row]))[1][0])].plan
        seen.add(("hbm" if p is None else p.placement.id, bool(got["fits"])))
    assert {name for name, _ in seen} == set(SHIPPED)
    assert len(seen) > len(SHIPPED), "no placement was seen both fitting and not"


# --- laws --------------------------------------------------------------------------------------------------------

tiers = st.lists(
    st.tuples(st.floats(0, 100), st.floats(1, 50)), min_size=2, max_size=4
)  # room, slowdown; sorted fastest first where it matters


@st.composite
def fillings(draw: st.DrawFn) -> tuple[list[float], list[float], tuple[tuple[int, int], ...], tuple[float, ...]]:
    """Tiers, steps in which every class asks some tiers from fast to slow, sizes."""
    drawn = draw(tiers)
    room, slow = [r for r, _ in drawn], sorted(s for _, s in drawn)
    steps: list[tuple[int, int]] = []
    for of in draw(st.permutations(range(5))):
        first = draw(st.integers(0, len(room) - 1))
        steps += [(of, t) for t in range(first, len(room))]
    sizes = tuple(draw(st.lists(st.floats(0, 60), min_size=5, max_size=5)))
    return room, slow, tuple(steps), sizes


def memory(room: Any, slow: Any, steps: Any, *, overlapped: bool = False) -> Memory:
    ones = tuple(1.0 for _ in steps)
    return Memory(
        tier_bytes=tuple(room),
        slowdown=tuple(slow),
        share=ones,
        home=tuple(float(i == 0) for i in range(len(room))),
        overlapped=float(overlapped),
        reload_overlapped=0.0,
        reload_fastest=0.0,
        idle_per_running=0.0,
    )


@few
@given(case=fillings(), overlapped=st.booleans())
def test_bytes_are_placed_once(case: Any, overlapped: bool) -> None:
    """Every byte lies somewhere or is counted as without room; no tier is overfull; nothing goes where it may not."""
    room, slow, steps, sizes = case
    placed = place(memory(room, slow, steps), steps, sizes)
    for of, size in enumerate(sizes):
        assert sum(placed.taken[of]) + placed.left[of] == pytest.approx(size, abs=1e-9)
        assert all(t == 0 for at, t in enumerate(placed.taken[of]) if (of, at) not in steps)
    for at, space in enumerate(room):
        assert sum(placed.taken[of][at] for of in range(5)) <= space + 1e-9
    if sum(sizes) <= room[-1]:  # every class may use the last tier
        assert placed.unplaced == pytest.approx(0, abs=1e-9)
    for of, size in enumerate(sizes):
        factor = slowdown(memory(room, slow, steps, overlapped=overlapped), placed, of)
        one_tier = [s for s in slow if size > 0 and placed.taken[of][slow.index(s)] >= size]
        if one_tier:
            assert factor == pytest.approx(one_tier[0], rel=1e-9)  # all bytes in one tier: that tier's roofline


@few
@given(case=fillings(), at=st.integers(0, 3), more=st.floats(0, 200))
def test_more_room_in_a_tier_is_never_slower(case: Any, at: int, more: float) -> None:
    """With tiers read one after the other and asked from fast to slow."""
    room, slow, steps, sizes = case
    at = min(at, len(room) - 1)
    wider = [r + (more if i == at else 0.0) for i, r in enumerate(room)]
    before, after = (place(memory(r, slow, steps), steps, sizes) for r in (room, wider))
    for of in range(5):
        old, new = slowdown(memory(room, slow, steps), before, of), slowdown(memory(wider, slow, steps), after, of)
        assert new <= old * (1 + 1e-9)
    assert after.unplaced <= before.unplaced + 1e-9


@few
@given(case=fillings(), at=st.integers(0, 3), faster=st.floats(1, 20), overlapped=st.booleans())
def test_more_bandwidth_in_a_tier_is_never_slower(case: Any, at: int, faster: float, overlapped: bool) -> None:
    room, slow, steps, sizes = case
    at = min(at, len(room) - 1)
    quick = [s / (faster if i == at else 1.0) for i, s in enumerate(slow)]
    before, after = (memory(room, s, steps, overlapped=overlapped) for s in (slow, quick))
    placed = place(before, steps, sizes)
    for of in range(5):
        assert slowdown(after, placed, of) <= slowdown(before, placed, of) * (1 + 1e-9)


@few
@given(case=fillings(), of=st.integers(0, 4))
def test_moving_bytes_to_a_slower_tier_is_never_faster(case: Any, of: int) -> None:
    """A class that may not use the fastest tier: never faster itself, and never in anybody's way there."""
    room, slow, steps, sizes = case
    fewer = tuple(s for s in steps if s != (of, 0))
    before = place(memory(room, slow, steps), steps, sizes)
    after = place(memory(room, slow, fewer), fewer, sizes)
    old, new = (slowdown(memory(room, slow, s), p, of) for s, p in ((steps, before), (fewer, after)))
    assert new >= old * (1 - 1e-9)


def tiered_row(policy: dict[str, Any], efficiency: str = "ideal", **figures: Any) -> tuple[Row, Kinds]:
    hardware = Hardware(**{**TIERED, **figures})
    p = plan(check_placement(policy, "test"), hardware)
    machines, steps = align([resolve(hardware, Precision(), points.preset(efficiency), plan=p)])
    lay = points.layout(tpa=2, dpa=2)
    return points.row(points.model(points.MOE), points.scalars(machines[0].machine), lay), Kinds(tiers=steps)


def tiered(policy: dict[str, Any], batch: int, efficiency: str = "ideal", **figures: Any) -> points.Costs:
    row, kinds = tiered_row(policy, efficiency, **figures)
    with points.numbers():
        load = points.context(isl=3000, osl=200, prefix_hit=0.5)
        parts: tuple[RowCost, ContextCost, PointCost] = evaluate_point(row, np.float64(batch), load, kinds)
    return points.Costs(*parts)


def shipped(name: str) -> dict[str, Any]:
    from tests.test_against_oracle import placement

    return placement(name)


@fewer
@given(
    name=st.sampled_from([n for n in SHIPPED if n != "hbm"]),
    efficiency=st.sampled_from(["ideal", "measured"]),
    batch=st.integers(1, 3000),
    tier=st.sampled_from(BUILT_IN),
    figure=st.sampled_from(["bytes_per_s", "bytes"]),
)
def test_more_of_any_tier_is_never_slower(name: str, efficiency: str, batch: int, tier: str, figure: str) -> None:
    """Through the whole model, for every shipped placement that reads its tiers one after the other."""
    policy = {**shipped(name), "reads": "serial"}
    key = f"{tier}_{figure}"
    more = {key: 2.0 * TIERED.get(key, TIERED["scaleout_bytes_per_s"])}
    before, after = tiered(policy, batch, efficiency), tiered(policy, batch, efficiency, **more)
    assert after.point.tpot_s <= before.point.tpot_s * (1 + 1e-9)
    assert after.context.ttft_s <= before.context.ttft_s * (1 + 1e-9)
    assert after.point.fits >= before.point.fits
    assert after.context.max_batch >= before.context.max_batch


@fewer
@given(name=st.sampled_from([n for n in SHIPPED if n != "hbm"]), efficiency=st.sampled_from(["ideal", "measured"]))
def test_the_largest_batch_fits_and_one_more_does_not(name: str, efficiency: str) -> None:
    most = int(tiered(shipped(name), 1, efficiency).context.max_batch)
    assert most > 0 or name == "sram_only"
    if most:
        assert tiered(shipped(name), most, efficiency).point.fits == 1
    assert tiered(shipped(name), most + 1, efficiency).point.fits == 0


@pytest.mark.parametrize("efficiency", ["ideal", "measured"])
def test_all_bytes_in_main_memory_is_the_machine_without_tiers(efficiency: str) -> None:
    """A policy that happens to put all into HBM gives what the plain machine gives."""
    one = {"weights": ["hbm", "host"], "kv": "hbm", "activations": "hbm"}
    hw = points.machine(efficiency)
    plain = points.evaluate(
        points.row(points.model(points.MOE), hw, points.layout(tpa=2, dpa=2)),
        64,
        points.context(isl=3000, osl=200, prefix_hit=0.5),
    )
    found = tiered(one, 64, efficiency)
    for name in ("tpot_s", "math_s", "weight_read_s", "kv_read_s", "activation_s", "latency_s", "mbu", "fits"):
        assert getattr(found.point, name) == pytest.approx(getattr(plain.point, name), rel=1e-12), name
    assert found.context.ttft_s == pytest.approx(plain.context.ttft_s, rel=1e-12)


def test_the_default_costs_nothing() -> None:
    """Without tiers there is no memory in the machine, no step in the kinds, and so nothing compiled for them."""
    space = build(make_study("grid=none", "hardware=gb300_nvl72"))
    assert space.steps == () and spaces.kinds(space).tiers == ()
    machine = space.machines[0].machine
    assert machine.memory is None and machine.gemm_ffn.held_slowdown is None
    assert len(jax.tree.leaves(machine)) == len(jax.tree.leaves(points.machine("measured")))


# --- reload or recompute -----------------------------------------------------------------------------------------


@fewer
@given(bandwidth=st.floats(1e6, 1e12), hit=st.floats(0.05, 0.99), how=st.sampled_from(["serial", "overlapped"]))
def test_break_even_bandwidth_of_a_reload(bandwidth: float, hit: float, how: str) -> None:
    """Above it reloading is faster, below it computing again; at it both take as long."""
    policy = {**shipped("remote_kv"), "reload": how}
    load = points.context(isl=30_000, osl=200, prefix_hit=hit)

    def back(rate: float) -> Any:
        row, kinds = tiered_row(policy, remote_bytes_per_s=rate, scaleout_bytes_per_s=1e15)
        with points.numbers():
            return tiered_ttft(row, np.float64(1e9), load, kinds)

    at = back(bandwidth)
    assert at.rest_s < at.recompute_s
    even = float(at.break_even_bytes_per_s)
    assert (at.with_reload_s < at.recompute_s) == (bandwidth > even)
    same = back(even)
    assert same.with_reload_s == pytest.approx(same.recompute_s, rel=1e-9)
    want = max(at.rest_s, at.reload_s) if how == "overlapped" else at.rest_s + at.reload_s
    assert at.ttft_s == pytest.approx(want, rel=1e-12)
    assert at.reload_s == pytest.approx(at.bytes / bandwidth, rel=1e-9)


def test_the_fastest_way_is_taken() -> None:
    load = points.context(isl=30_000, osl=200, prefix_hit=0.5)
    for rate in (1e5, 1e12):
        row, kinds = tiered_row({**shipped("remote_kv"), "reload": "fastest"}, remote_bytes_per_s=rate)
        found = tiered_ttft(row, np.float64(1e9), load, kinds)
        assert found.ttft_s == min(found.with_reload_s, found.recompute_s)
    assert tiered_ttft(row, np.float64(1e9), dataclasses.replace(load, prefix_hit=np.float64(0)), kinds).bytes == 0


# --- figures, files, bad input -----------------------------------------------------------------------------------


def test_tiers_of_a_machine() -> None:
    """Host memory is as fast as the slower of memory and link; a tier with a blank figure is left out."""
    found = tiers_of(Hardware(**{**TIERED, "sram_bytes_per_s": None}))
    assert set(found) == {"hbm", "host", "nvme", "remote"}
    assert found["host"].bytes_per_s == 2e11 and found["nvme"].bytes_per_s == 7e9
    assert found["remote"].bytes_per_s == TIERED["scaleout_bytes_per_s"]
    more = check_memory([{"name": "cxl", "bytes": 1e12, "bytes_per_s": 3e11, "link_bytes_per_s": 6e10}], "x")
    assert tiers_of(Hardware(**TIERED), more)["cxl"].bytes_per_s == 6e10


def test_a_tier_of_the_users_own(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """`memory:` in a machine's file and a placement in the user's directory: the cache overflows to CXL memory."""
    for group in ("hardware", "placement"):
        (tmp_path / group).mkdir()
    own = (conf_dir() / "hardware" / "h100_sxm_80gb.yaml").read_text()
    own += "\nmemory: [{name: cxl, bytes: 1.0e12, bytes_per_s: 2.0e11, link_bytes_per_s: 6.0e10, source: mine}]\n"
    (tmp_path / "hardware" / "mine.yaml").write_text(own)
    (tmp_path / "placement" / "far.yaml").write_text("weights: hbm\nkv: [{hbm: 0.25}, cxl]\nactivations: hbm\n")
    words = ["--config-dir", str(tmp_path), "hardware=mine", "placement=far", "model=llama_3_1_8b", "precision=fp8"]
    assert explain_pipeline.main([*words, "workload.batch=64", "output=json", "efficiency=ideal"]) == 0
    point = json.loads(capsys.readouterr().out)
    hbm, cxl = point["memory"]["tiers"]
    assert (cxl["tier"], cxl["bytes_per_s"]) == ("cxl", 6e10)
    assert hbm["kv_bytes"] == pytest.approx(point["kv_bytes"] / 4) and cxl["kv_bytes"] == 3 * hbm["kv_bytes"]
    attention = next(op for op in point["ops"] if op["op"] == "attention")
    rate = 1 / (0.25 / 3.35e12 + 0.75 / 6e10)
    assert point["kv_read_s"] == pytest.approx(attention["count"] * attention["kv_bytes"] / rate, rel=1e-9)
    text = "\n".join(_tiers(explain(make_study(*words, "workload.batch=64"))))
    assert "placement far" in text and "cxl" in text


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"weights": "hbm", "kv": "hbm"}, "placement.activations: must name at least one tier"),
        ({"wieghts": "hbm"}, "placement.wieghts: no such key; nearest: weights"),
        ({"weights": {"hbm": 1.5}}, "placement.weights.hbm=1.5: a share"),
        ({"weights": ["hbm", "hbm"]}, "placement.weights=['hbm', 'hbm']: each tier once"),
        ({"order": ["kv", "wights"]}, "placement.order=wights: no such class; nearest: weights"),
        ({"weights": "hbm", "kv": "hbm", "activations": "hbm", "reads": "both"}, "allowed are serial, overlapped"),
        ({"weights": "hbm", "kv": "hbm", "activations": "hbm", "idle_per_running": 2}, "placement.prefix: must name"),
        ({"weights": "hbm", "kv": "hbm", "activations": "hbm", "idle_per_running": -1}, "must be a number, 0 or more"),
    ],
)
def test_bad_placements(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        check_placement(policy, "mine")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "hbm", "bytes": 1, "bytes_per_s": 1}, "hardware.memory[0].name=hbm: a new name"),
        ({"name": "cxl", "bytes": 1}, "hardware.memory[0].bytes_per_s=None: must be greater than 0"),
        ({"name": "cxl", "byte": 1}, "hardware.memory[0].byte: no such key; nearest: bytes"),
    ],
)
def test_bad_memory(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as error:
        make_record("hardware", "mine", {"memory": [entry]})
    assert message in str(error.value)


def test_a_missing_tier_is_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """H100's file has no host memory: weights cannot live there; Groq's chip has no HBM."""
    for words in (
        ["hardware=h100_sxm_80gb", "placement=weights_host"],
        ["hardware=groq_3_lpu_lp30_lpx_rack", "placement=hbm"],
    ):
        assert explain_pipeline.main([*words, "output=json"]) == 0
        point = json.loads(capsys.readouterr().out)
        assert not point["feasible"] and "unknown_figure" in point["reasons"]
    assert explain_pipeline.main(["placement=hbn"]) == 1
    assert "placement=hbn: no such placement; nearest: hbm" in capsys.readouterr().err
    assert explain_pipeline.main(["placement=offload_kv", "placement.kv=hbmm"]) == 1
    assert "placement.kv=hbmm: no such tier; nearest: hbm" in capsys.readouterr().err


def test_merged_steps_keep_both_orders() -> None:
    steps = {n: [(c, t) for c, t, _ in check_placement(shipped(n), n).steps] for n in SHIPPED}
    whole: list[tuple[str, str]] = []
    for own in steps.values():
        whole = merged(whole, own)
    for own in steps.values():
        rest = iter(whole)
        assert all(step in rest for step in own)
    assert len(whole) < sum(len(s) for s in steps.values()) / 1.5
    assert all(c in CLASSES for c, _ in whole)
