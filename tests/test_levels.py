"""Taking a function of one point apart: same values, every term where its inputs allow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweep import levels, run
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
    stages = one.engine.filter_stages(one.kinds, one.objective_names)
    assert stages.factored.groups  # something is shared
    space = one.space
    rows = np.random.default_rng(0).choice(space.n_rows, size=one.block_rows // 2, replace=False)
    block = one._dispatch(rows)
    a, b = np.asarray(block.out["a"]), np.asarray(block.out["b"])
    finite = np.argwhere(np.isfinite(a))
    i_batch, i_context, r = finite[:: max(len(finite) // 2000, 1)].T
    assert len(r) > 100
    plain = one.engine.plain(block.rows[r], i_batch, i_context, one.kinds)
    assert np.allclose(a[i_batch, i_context, r], plain["tok_s_gpu"], rtol=1e-5)
    assert np.allclose(b[i_batch, i_context, r], plain["tok_s_user"], rtol=1e-5)
