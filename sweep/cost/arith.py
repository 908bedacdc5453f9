"""The arithmetic that the cost model needs, in one place so that float32 traps are closed once.

The cost model calls these and plain operators only, never `jax.numpy` itself: a test can run the same formulas on
numbers that carry units by exchanging the namespace `xp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from sweep.point import Num

_xp: ContextVar[Any] = ContextVar("xp", default=jnp)


@contextmanager
def namespace(module: Any) -> Iterator[None]:
    """Run the cost model on the arrays of `module` (numpy, or one that understands units) instead of jax.

    In the calling thread alone: others may trace the model meanwhile.
    """
    before = _xp.set(module)
    try:
        yield
    finally:
        _xp.reset(before)


def maximum(a: Num, b: Num) -> Num:
    """The larger of two numbers."""
    return _xp.get().maximum(a, b)


def minimum(a: Num, b: Num) -> Num:
    """The smaller of two numbers."""
    return _xp.get().minimum(a, b)


def where(condition: Num, yes: Num, no: Num) -> Num:
    """`yes` where the condition holds, else `no`; both are evaluated."""
    return _xp.get().where(condition, yes, no)


def ceil_div(a: Num, b: Num) -> Num:
    """Ceiling of the quotient of two non-negative integers, exact in float32.

    The reciprocal of a shared divisor is computed once, which would push an exact multiple over the next integer;
    taking half a unit off the numerator leaves every true quotient where it is. Exact up to
    a = 4e6; beyond that the numerator has no room for the half, and the result may be one too high in 16,000.
    """
    return _xp.get().ceil((a - 0.5) * (1.0 / b))


def whole(x: Num) -> Num:
    """Ceiling of a fractional count, with a guard of 1e-3 against rounding just above an integer."""
    return _xp.get().ceil(x - 1e-3)


def floor(x: Num) -> Num:
    """The integer part."""
    return _xp.get().floor(x)


def exp(x: Num) -> Num:
    """The exponential."""
    return _xp.get().exp(x)


def sqrt(x: Num) -> Num:
    """The square root."""
    return _xp.get().sqrt(x)


def log(x: Num) -> Num:
    """The natural logarithm."""
    return _xp.get().log(x)


def expm1(x: Num) -> Num:
    """exp(x) - 1 without cancellation."""
    return _xp.get().expm1(x)


def log1p(x: Num) -> Num:
    """log(1 + x) without cancellation."""
    return _xp.get().log1p(x)


def repeat(times: int, step: Callable[[Any], Any], start: Any) -> Any:
    """`step` applied `times` times: one compiled loop on jax arrays, which unrolled would take long to compile."""
    if _xp.get() is jnp:
        return jax.lax.fori_loop(0, times, lambda _, state: step(state), start)
    for _ in range(times):
        start = step(start)
    return start


def safe(x: Num) -> Num:
    """A divisor that may be absent: 1 where it is 0."""
    return where(x > 0, x, 1.0)


def largest_true(condition: Callable[[Num], Num], lo: Num, hi: Num, halvings: int) -> Num:
    """The largest x in [lo, hi] where a condition holds that, once false, stays false; `lo` where it never does.

    Bisection; on jax the loop is compiled once, not `halvings` times.
    """

    def halved(_: Num, bounds: tuple[Num, Num]) -> tuple[Num, Num]:
        below, above = bounds
        middle = (below + above) / 2.0
        holds = condition(middle)
        return where(holds, middle, below), where(holds, above, middle)

    holds = condition(hi)
    lo = where(holds, hi, lo)
    if _xp.get() is jnp:
        bounds: tuple[Num, Num] = jax.lax.fori_loop(0, halvings, halved, _alike(lo, hi))
    else:
        bounds = (lo, hi)
        for i in range(halvings):
            bounds = halved(i, bounds)
    return bounds[0]


def _alike(a: Num, b: Num) -> tuple[Num, Num]:
    """Two numbers as arrays of one shape and type."""
    both = jnp.broadcast_arrays(jnp.asarray(a), jnp.asarray(b))
    kind = jnp.result_type(*both)
    return both[0].astype(kind), both[1].astype(kind)
