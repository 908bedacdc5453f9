"""A jax release that computes wrong results must not pass: jax-ml/jax#39103 (0.10.2, CPU)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.usefixtures("shipped_compiles")
@pytest.mark.parametrize("n", [16_385, 32_769, 65_537])
def test_jit_of_a_vmapped_matrix_vector_product_agrees_with_eager(n: int) -> None:
    def squared_length(row: jax.Array) -> jax.Array:
        return jnp.sum((jnp.eye(3) @ row) ** 2)

    ramp = jnp.arange(n, dtype=jnp.float32)
    rows = jnp.stack((ramp, jnp.zeros_like(ramp), jnp.zeros_like(ramp)), axis=1)
    compiled = np.asarray(jax.jit(jax.vmap(squared_length))(rows))
    expected = np.arange(n, dtype=np.float64) ** 2
    assert np.allclose(compiled, expected, rtol=1e-6), (
        f"jax {jax.__version__} computes wrong results on this machine (jax-ml/jax#39103): install another release"
    )


def test_the_broken_release_is_excluded() -> None:
    assert jax.__version__ != "0.10.2"
