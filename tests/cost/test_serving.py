"""A service in steady state, against queueing identities and hand-worked points."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.cost.arith import largest_true
from sweep.cost.serving import Steady, aggregated, disaggregated, mixed_tpot_s, request_rate
from tests.cost.points import numbers


def linear(batch: float) -> float:
    """10 ms and 0.1 ms per request."""
    return 0.010 + 1e-4 * batch


def test_prefill_of_the_others_stands_between_steps() -> None:
    with numbers():
        alone = mixed_tpot_s(0.010, 0.5, batch=1.0, osl=100.0)
        assert alone == pytest.approx(0.010)
        # 20 others, each prefilled once while one request makes 100 tokens: 20 x 0.5 s over 100 tokens
        assert mixed_tpot_s(0.010, 0.5, batch=21.0, osl=100.0) == pytest.approx(0.010 + 0.1)
        # on 4 groups of attention GPUs they are prefilled 4 at a time
        assert mixed_tpot_s(0.010, 0.5, batch=84.0, osl=100.0, groups=4.0) == pytest.approx(0.010 + 0.1)


@given(
    st.floats(1, 4096),
    st.floats(1e-4, 5),
    st.floats(2, 8192),
    st.floats(1, 5000),
)
def test_a_closed_loop_obeys_littles_law(users: float, prefill_s: float, osl: float, limit: float) -> None:
    with numbers():
        s = aggregated(linear, prefill_s, osl=osl, concurrency=users, max_batch=limit)
    cycle = s.ttft_s + (osl - 1) * s.tpot_s
    assert s.batch <= min(users, limit) * (1 + 1e-9)
    assert s.requests_per_s * cycle >= users * (1 - 1e-6)  # nobody is lost
    if s.batch > 1 and s.batch < min(users, limit) * 0.99:  # neither bound holds: all users are accounted for
        assert s.requests_per_s * cycle == pytest.approx(users, rel=2e-3)
        assert s.ttft_s == pytest.approx(prefill_s, rel=2e-2 * max(1.0, users / s.requests_per_s / prefill_s / 10))


def test_waiting_for_memory_shows_in_the_first_token() -> None:
    with numbers():
        free = aggregated(linear, 0.1, osl=1001.0, concurrency=64.0, max_batch=1e9)
        full = aggregated(linear, 0.1, osl=1001.0, concurrency=64.0, max_batch=16.0)
    assert full.batch == pytest.approx(16.0)
    assert free.ttft_s == pytest.approx(0.1, rel=0.05)
    assert full.ttft_s == pytest.approx(64 / full.requests_per_s - 1000 * full.tpot_s)
    assert full.ttft_s > 10 * free.ttft_s


def test_the_slower_pool_sets_the_rate() -> None:
    with numbers():
        fast = disaggregated(
            linear, 0.1, osl=101.0, concurrency=256.0, max_batch=1e9, prefill_per_s=1e9, decode_workers=2.0
        )
        slow = disaggregated(
            linear, 0.1, osl=101.0, concurrency=256.0, max_batch=1e9, prefill_per_s=20.0, decode_workers=2.0
        )
    assert fast.batch == pytest.approx(128 - fast.requests_per_s / 2 * 0.1, rel=1e-3)
    assert slow.requests_per_s == pytest.approx(20.0, rel=1e-3)
    # X = B / (100 TPOT(B)) with 10 requests/s a worker: B = 1000 (0.010 + 1e-4 B), B = 10 / 0.9
    assert slow.batch == pytest.approx(10 / 0.9, rel=1e-3)
    assert slow.tpot_s < fast.tpot_s
    assert slow.ttft_s == pytest.approx(256 / 20.0 - 100 * slow.tpot_s, rel=1e-3)


def test_jax_and_plain_numbers_agree() -> None:
    def point(users: float) -> Steady:
        return aggregated(linear, 0.2, osl=512.0, concurrency=users, max_batch=100.0)

    users = np.array([1.0, 8.0, 64.0, 512.0])
    batched = jax.jit(jax.vmap(point))(users)
    with numbers():
        for i, u in enumerate(users):
            one = point(float(u))
            for name in ("batch", "tpot_s", "ttft_s", "requests_per_s"):
                assert float(getattr(batched, name)[i]) == pytest.approx(float(getattr(one, name)), rel=1e-4)


def test_bisection_finds_the_edge() -> None:
    with numbers():
        assert largest_true(lambda x: x <= 3.0, 0.0, 8.0, 30) == pytest.approx(3.0)
        assert largest_true(lambda x: x <= 30.0, 0.0, 8.0, 30) == 8.0
        assert largest_true(lambda x: x < 0.0, 0.5, 8.0, 30) == 0.5


def test_rate_of_a_batch() -> None:
    with numbers():
        assert request_rate(10.0, 0.01, 101.0) == pytest.approx(10.0)
