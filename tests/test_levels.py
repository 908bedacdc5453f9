"""Taking a function of one point apart: same values, every term where its inputs allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep import bar, levels, run
from sweep.trade import Trade
from tests.conftest import make_study


def example(a: Any, b: Any, c: Any) -> list[Any]:
    shared = jnp.exp(a) * 2.0
    big = jnp.where(b > 0, shared + b, 0.0 * c) + jnp.maximum(a * b, 1.0) + jnp.log1p(c * b) * a
    return [big, shared - 1.0, big + 0.0]


@given(st.lists(st.floats(0.0, 4.0, width=32, allow_subnormal=False), min_size=3, max_size=3))
@settings(max_examples=20, deadline=None)
def test_recorded_operations_give_the_functions_values(values: list[float]) -> None:
    """Subnormal inputs apart, which compiled code takes for 0."""
    numbers = [np.float32(v) for v in values]
    program, _ = levels.trace(example, *(jnp.float32(0),) * 3)
    expected = [float(x) for x in example(*(jnp.float32(v) for v in numbers))]
    steps = program.needed(program.outputs)
    by_jax = program.run(steps, dict(enumerate(jnp.float32(v) for v in numbers)), program.outputs)
    environment: dict[int, Any] = {i: np.full((2, 1), v) for i, v in enumerate(numbers)}
    program.on_host(steps, environment)
    by_numpy = [environment[a] for a in program.outputs if isinstance(a, int)]
    assert np.allclose([float(x) for x in by_jax], expected, rtol=1e-6)
    assert np.allclose([x.ravel()[0] for x in by_numpy], expected, rtol=1e-6)


def test_inputs_of_terms_are_known_and_equal_operations_recorded_once() -> None:
    program, _ = levels.trace(example, *(jnp.float32(0),) * 3)
    assert [program.of(a) for a in program.outputs] == [0b111, 0b001, 0b111]
    assert program.outputs[0] == program.outputs[2]  # x + 0 is x
    assert sum(s.primitive.name == "exp" for s in program.steps) == 1


def test_sums_are_divided_by_what_their_terms_depend_on() -> None:
    def total(a: Any, b: Any, c: Any, batch: Any) -> list[Any]:
        def busy(x: Any) -> Any:
            for _ in range(20):
                x = jnp.sqrt(x + batch)
            return x

        return [busy(a) + busy(b) + busy(a * b) + c * batch]

    program, _ = levels.trace(total, *(jnp.float32(1),) * 4)
    sizes = (3.0, 4.0, 50.0)

    def count(mask: int) -> float:
        return float(np.prod([n for i, n in enumerate(sizes) if mask >> i & 1]))

    found = levels.factor(
        program,
        [a for a in program.outputs if isinstance(a, int)],
        wide=lambda mask: bool(mask & 0b1000 and mask & 0b111),
        count=count,
        rows=600.0,
        lookup=30.0,
    )
    assert [g.depends for g in found.groups] == [0b1011]  # one look-up of all that 12 combinations decide
    assert sum(len(terms) for _, terms in found.groups[0].sums) == 3
    ((_, rest),) = found.rest
    assert len(rest) == 1  # c * batch is cheaper to do than to look up


@pytest.mark.parametrize("by", ["[hardware]", "[precision, workload.context]"])
def test_compiled_levels_are_the_plain_model(by: str) -> None:
    """Every column of a grid whose layouts, models and machines share terms, against the model point by point."""
    study = make_study(
        "grid=none",
        "grid.model=[qwen3_32b, deepseek_v3, {family: dense, grid: {n_layers: [32, 64], n_kv_heads: [4, 8]}}]",
        "grid.hardware=[h200_sxm_141gb, gb300_nvl72]",
        "grid.precision=[fp8, nvfp4]",
        "grid.layout={gpus: [8, 16], tpa: pow2, kvp: [1, 2], dpa: pow2, ep: pow2}",
        "grid.workload={batch: [1, 7, 64], context: [2048, 65536]}",
        f"frontier.by={by}",
    )
    one = run.Run(run.plan(study), Path("unused"), config_yaml="", compiled=True)
    stages = one.engine.filter_stages(one.kinds, one.objective_names, one.signs)
    assert stages.factored.groups  # something is shared
    space = one.space
    rows = np.random.default_rng(0).choice(space.n_rows, size=one.block_rows // 2, replace=False)
    slots = one.blocks_of(rows, 0)[0]
    block = one._dispatch(slots)
    assert one.trade is not None
    at, (times,) = one.engine.collected(block.out)
    i_batch, i_context, r = np.unravel_index(at[:: max(len(at) // 2000, 1)], block.out["alive"].shape)
    a, b = one.trade.values(times[:: max(len(at) // 2000, 1)], slots.row_class[r], i_batch)
    assert len(r) > 100
    plain = one.engine.plain(slots.rows[r], i_batch, i_context, one.kinds)
    assert np.allclose(a, plain["tok_s_gpu"], rtol=1e-5)
    assert np.allclose(b, plain["tok_s_user"], rtol=1e-5)


BOTH = st.floats(0.5, 4.0, width=32)


@given(st.lists(BOTH, min_size=4, max_size=4), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_regrouped_programs_give_the_same_values(values: list[float], seed: int) -> None:
    """Random trees of sums, products, quotients and maxima of a row's, a batch's and a context's numbers."""
    rng = np.random.default_rng(seed)

    def function(*numbers: Any) -> list[Any]:
        made = list(numbers)
        for _ in range(25):
            x, y = made[rng.integers(len(made))], made[rng.integers(len(made))]
            which = rng.integers(6)
            made.append(
                [x + y, x * y, x - 0.125 * y, x / (1.0 + y * y), jnp.maximum(x, y), jnp.sqrt(1.0 + x * x)][which]
            )
            made[-1] = made[-1] / (1.0 + jnp.abs(made[-1]))  # stays within the range of the numbers
        return made[-3:]

    program, _ = levels.trace(function, *(jnp.float32(1),) * 4)
    batch, context = 0b0100, 0b1000
    again = levels.regroup(program, [lambda mask: not mask & context, lambda mask: not mask & batch])
    found = []
    for one in (program, again):
        environment: dict[int, Any] = {i: np.full(1, v, dtype=np.float64) for i, v in enumerate(values)}
        one.on_host(one.needed(one.outputs), environment)
        found.append([float(environment[a][0]) if isinstance(a, int) else float(a.value) for a in one.outputs])
    assert np.allclose(found[0], found[1], rtol=1e-9, atol=1e-12)
    assert [again.of(a) for a in again.outputs] == [program.of(a) for a in program.outputs]


def test_regrouping_saves_operations_of_points() -> None:
    def function(row: Any, other: Any, batch: Any, context: Any) -> list[Any]:
        return [row * context * batch * other + row + batch + context + other]

    program, _ = levels.trace(function, *(jnp.float32(1),) * 4)
    again = levels.regroup(program, [lambda mask: not mask & 0b1000, lambda mask: not mask & 0b0100])
    wide = [sum(p.depends[s.outputs[0]] & 0b1100 == 0b1100 for s in p.steps) for p in (program, again)]
    assert wide == [6, 3]  # a product, and sums of it with what batches decide and with what contexts do


def test_factors_of_a_product() -> None:
    def function(a: Any, b: Any, c: Any) -> list[Any]:
        return [a / (b + c) * 2.5 / b]

    program, _ = levels.trace(function, *(jnp.float32(1),) * 3)
    found = levels.factors(program, program.outputs[0], lambda atom: True)
    powers = {a if isinstance(a, int) else float(a.value): power for a, power in found}
    assert powers.pop(0) == 1 and powers.pop(1) == -1 and powers.pop(2.5) == 1
    assert list(powers.values()) == [-1]  # b + c


@pytest.mark.parametrize(
    ("objectives", "hangs"),
    [
        ("[accuracy, tok_s_gpu, tok_s_user]", True),
        ("[accuracy, usd_per_mtok, tok_s_user]", True),
        ("[accuracy, tok_s_gpu, tpot_s]", True),
        ("[accuracy, tok_s_gpu, request_s]", False),
    ],
)
def test_objectives_that_hang_on_one_time(objectives: str, hangs: bool) -> None:
    study = make_study(
        "model=qwen3_32b",
        "hardware=h200_sxm_141gb",
        "precision=fp8",
        "grid.layout={gpus: [2, 4], tpa: pow2}",
        "grid.workload={batch: [1, 8, 64], context: [2048, 65536]}",
        f"frontier.objectives={objectives}",
        "store.rows=frontier",
    )
    one = run.Run(run.plan(study), Path("unused"), config_yaml="", compiled=True)
    assert one.fast and (one.trade is not None) == hangs
    if one.trade is None:
        return
    rows = np.arange(one.space.n_rows)
    i_batch, i_context = np.full(len(rows), 1), np.zeros(len(rows), dtype=np.int64)
    plain = one.engine.plain(rows, i_batch, i_context, one.kinds)
    found = one.trade.values(plain["tpot_s"], one.trade.classes(*one.space.indices(rows)), i_batch)
    for objective, values in zip(one.pair, found, strict=True):
        assert np.allclose(values, plain[objective.column] * objective.sign, rtol=1e-5)


@pytest.mark.parametrize("n_groups", [1, 1000, 100_000, 5_000_000])
def test_tables_of_rays_stay_small(n_groups: int) -> None:
    """However many groups, and every ratio is counted as one that is at least as steep."""
    factors = np.random.default_rng(0).uniform(1.0, 1000.0, (40, 30))
    ones = np.ones(1, dtype=np.int64)
    hangs = Trade(
        of_model=ones - 1,
        of_machine=ones - 1,
        of_layout=np.arange(40),
        number=np.arange(40).reshape(1, 1, 40),
        first=np.ones_like(factors),
        second=factors,
        costs=(False, False),
    )
    rays = bar.Rays(hangs, n_groups, np.float32)
    assert n_groups * len(rays.ratios) * rays.n_levels <= max(bar.CELLS, 2 * n_groups)
    assert (rays.ratios[rays.number] >= factors).all()
