"""Grids: axes, families, layouts, filters, and the index that numbers points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep.errors import BadInput
from sweep.run import count_points, plan
from sweep.space import Axis, build, decode, enumerate_layouts, filters, row_reasons, spread
from tests.conftest import make_study


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_index_is_a_bijection(sizes: list[int], data: st.DataObject) -> None:
    axes = tuple(Axis(name=f"a{i}", size=n, columns={f"k{i}": np.arange(n)}) for i, n in enumerate(sizes))
    total = int(np.prod(sizes))
    ids = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=20)))
    digits = decode(axes, ids)
    back = np.zeros(len(ids), dtype=np.int64)
    for i, n in enumerate(sizes):
        back = back * n + digits[f"k{i}"]
    assert (back == ids).all()


def test_the_index_is_64_bit_beyond_two_billion() -> None:
    axes = (
        Axis(name="a", size=5_000_000, columns={"a": np.arange(5_000_000)}),
        Axis(name="b", size=1000, columns={"b": np.arange(1000)}),
    )
    found = decode(axes, np.array([4_999_999_999]))
    assert found["a"][0] == 4_999_999 and found["b"][0] == 999


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"pow2": [1, 16]}, [1, 2, 4, 8, 16]),
        ({"pow2": [3, 40]}, [4, 8, 16, 32]),
        ({"linear": [0, 1], "num": 3}, [0, 0.5, 1]),
        ({"log": [1, 100], "num": 3}, [1, 10, 100]),
        ({"range": [128, 512, 128]}, [128, 256, 384, 512]),
        ([3, 1], [3, 1]),
        (7, [7]),
    ],
)
def test_spread(spec: object, expected: list[float]) -> None:
    assert spread("workload.batch", spec) == pytest.approx(expected)


def test_layouts_are_all_that_satisfy_the_equation_and_no_others() -> None:
    spec = {"gpus": [1, 6, 8, 72], "tpa": "pow2", "kvp": "pow2", "dpa": "divisors", "ep": "divisors", "pp": [1, 2]}
    found = {
        tuple(int(r[k]) for k in ("tpa", "kvp", "dpa", "tpf", "ep", "pp"))
        for r in enumerate_layouts(spec, {"ep": None})
    }
    expected = set()
    pow2 = [1, 2, 4, 8, 16, 32, 64]
    for g, pp in itertools.product([1, 6, 8, 72], [1, 2]):
        if g % pp:
            continue
        n = g // pp
        for tpa, kvp in itertools.product(pow2, pow2):
            for dpa, ep in itertools.product(range(1, n + 1), range(1, n + 1)):
                if tpa * kvp * dpa == n and n % ep == 0:
                    expected.add((tpa, kvp, dpa, n // ep, ep, pp))
    assert found == expected


def test_families_stand_beside_real_models() -> None:
    study = make_study(
        "grid=none",
        "grid.model=[llama_3_1_8b, {family: dense, grid: {n_layers: [16, 32], d_model: [2048, 4096], d_ff: [3.5]}, "
        "zip: {d_ff: 'round(d_ff * d_model, 256)', n_heads: d_model / head_dim}, where: 'params_total < 6e9'}]",
    )
    space = build(study)
    model = space.axes[0]
    assert list(model.columns["model"]) == ["llama_3_1_8b", "dense", "dense", "dense"]
    assert list(model.columns["model.d_ff"]) == [14336, 7168, 14336, 7168]
    assert list(model.columns["model.n_heads"]) == [32, 16, 32, 16]
    assert space.dropped_early == 1  # 32 layers of 4096 are more than 6e9 parameters


def test_zip_may_chain_but_not_circle() -> None:
    space = build(
        make_study(
            "grid=none",
            "grid.model={d_model: [4096]}",
            "zip.model={n_heads: model.d_model / 128, n_kv_heads: n_heads / 4}",
        )
    )
    assert space.model.n_kv_heads[0] == 8
    with pytest.raises(BadInput, match="need each other"):
        build(
            make_study(
                "grid=none",
                "grid.model={d_model: [4096]}",
                "zip.model={n_heads: n_kv_heads * 4, n_kv_heads: n_heads / 4}",
            )
        )


def test_numeric_axes_of_a_machine_make_it_hypothetical() -> None:
    space = build(
        make_study("grid=none", "hardware=h100_sxm_80gb", "grid.hardware={hbm_bytes_per_s: [3.35e12, 6.7e12]}")
    )
    assert [h.status for h in space.hardware] == ["hypothetical", "hypothetical"]
    assert space.machines[1].machine.hbm_bytes == space.machines[0].machine.hbm_bytes
    assert space.machines[1].machine.peak_bytes_per_s == 2 * space.machines[0].machine.peak_bytes_per_s


def test_where_counts_before_and_after() -> None:
    overrides = [
        "grid=none",
        "model=llama_3_1_8b",
        "grid.layout={gpus: [1, 2, 4], tpa: pow2, dpa: pow2}",
        "grid.workload={batch: [1, 2, 4, 8], context: [1000, 2000]}",
    ]
    p = plan(make_study(*overrides))
    assert p.points_before == p.points == p.space.n_points
    kept = plan(make_study(*overrides, "where=['layout.gpus >= 2']"))
    gpus = kept.space.axes[3].columns["layout.gpus"]
    assert kept.points == int((gpus >= 2).sum()) * 8 and kept.points_before == p.points
    loads = plan(make_study(*overrides, "where=['workload.batch * workload.context <= 4000', 'layout.gpus >= 2']"))
    assert loads.points == int((gpus >= 2).sum()) * 5
    both = make_study(*overrides, "where=['workload.batch >= layout.gpus']")
    assert count_points(build(both)) is None  # rows and loads are coupled: only the run can tell
    mask = filters(build(both)).points(np.arange(len(gpus)))
    assert mask is not None
    assert int(mask.sum()) == sum(2 * sum(b >= g for b in (1, 2, 4, 8)) for g in gpus)


def test_an_empty_grid_is_refused() -> None:
    with pytest.raises(BadInput, match="no point is left"):
        plan(make_study("model=llama_3_1_8b", "where=['layout.gpus > 100']"))


def test_labels_can_be_filtered_on() -> None:
    p = plan(
        make_study("grid=none", "grid.hardware=[h100_sxm_80gb, gb300_nvl72]", "where=[\"hardware == 'gb300_nvl72'\"]")
    )
    assert (p.points_before, p.points) == (2, 1)


@pytest.mark.parametrize(
    ("layout", "model", "bad"),
    [
        ("{tpa: [3]}", "llama_3_1_8b", True),  # 32 heads
        ("{tpa: [8]}", "llama_3_1_8b", False),
        ("{ep: [2], dpa: [2]}", "llama_3_1_8b", True),  # no experts to spread
        ("{ep: [4], dpa: [4]}", "deepseek_v3", False),
        ("{dpa: [5]}", "qwen3_235b_a22b", True),  # tpf = 5 does not divide 1536
        ("{pp: [64]}", "llama_3_1_8b", True),  # 32 layers
    ],
)
def test_reasons_of_rows(layout: str, model: str, bad: bool) -> None:
    space = build(make_study("grid=none", f"model={model}", f"grid.layout={layout}"))
    assert (row_reasons(space, np.arange(1))[0] != 0) == bad


def test_unknown_figures_and_formats_are_reasons_not_guesses() -> None:
    def reasons(*overrides: str) -> int:
        return int(row_reasons(build(make_study("grid=none", *overrides)), np.arange(1))[0])

    assert reasons("hardware=h100_sxm_80gb") == 0
    assert reasons("hardware=h100_sxm_80gb", "hardware.hbm_bytes=null") == 16
    assert reasons("hardware=h100_sxm_80gb", "precision=bf16", "hardware.bf16_flops=null") == 32
    # 16 GPUs leave a domain of 8: without a network that is unknown, within the domain it does not matter
    assert reasons("hardware=h100_sxm_80gb", "hardware.scaleout_bytes_per_s=null", "layout.tpa=8") == 0
    assert reasons("hardware=h100_sxm_80gb", "hardware.scaleout_bytes_per_s=null", "layout.tpa=16") == 4 + 16


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("grid.model=[llama_9]", "grid|no such model"),
        ("grid.model=[{family: dens}]", "no such model; nearest: dense"),
        ("grid.model=[{family: dense, grid: {n_layer: [2]}}]", "model.n_layer: no such key; nearest: n_layers"),
        ("grid.layout={gpus: [8], tpq: pow2}", "layout.tpq: no such key; nearest: tpf, tpa"),
        ("grid.layout={tpa: pow2}", "grid.layout.gpus: give the numbers of GPUs"),
        ("grid.layout={gpus: [7], tpa: [2], dpa: [2]}", "no layout satisfies"),
        ("grid.workload={batch: [-1]}", "workload.batch=-1: must be greater than 0"),
        ("grid.workload={batch: [1.5]}", "workload.batch=1.5: must be a whole number; nearest: 1, 2"),
        ("grid.workload={batch: []}", "an axis needs at least one value"),
        ("grid.workload={batsh: [1]}", "no such key; nearest: batch"),
        ("grid.workload={batch: {pow3: [1, 2]}}", "no such kind of axis"),
        ("grid.hardwear=[h100_sxm_80gb]", "no such axis; nearest: hardware"),
        ("where=['layout.gpu > 2']", "no key layout.gpu; nearest: layout.gpus"),
        ("where=['layout.gpus >']", "not an expression"),
        ("zip.model={d_ff: layout.tpa * 2}", "may use keys of model only"),
    ],
)
def test_bad_grids_say_what_is_wrong(override: str, message: str) -> None:
    with pytest.raises(BadInput, match=message.split("|")[-1]) as caught:
        plan(make_study("grid=none", override))
    assert "\n" not in str(caught.value)
