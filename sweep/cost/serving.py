"""A service in steady state: how many requests run, how often one of them gets a token, how long the first one takes.

Closed loop: `concurrency` users each send a request, wait for its last token and send the next. In aggregated serving
the GPUs that decode also prefill, so that prefill work stands between decode steps; in disaggregated serving two pools
share the work and the slower one sets the rate. All functions are of one service point; what a decode step takes is a
function of the running batch that the caller passes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from sweep.cost.arith import largest_true, maximum, minimum, sqrt, where
from sweep.cost.memory import cached_bytes
from sweep.machine import Machine
from sweep.point import Layout, Model, Num

Timer = Callable[[Num], Num]  # seconds at a running batch, or at a rate of requests
HALVINGS = 14  # the running batch is known to 1 / 16,384 of the concurrency


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Steady:
    """What users of a service in steady state see."""

    batch: Num  # requests that decode at any time, per decode replica
    tpot_s: Num  # between two output tokens of a request
    ttft_s: Num  # from sending a request to its first token, waiting included
    requests_per_s: Num  # of one replica (aggregated), of the whole service (disaggregated)


def kv_transfer_s(model: Model, machine: Machine, layout: Layout, prompt: Num) -> Num:
    """Time in which one attention group sends, or takes in, the cache of one prompt [s].

    Keys and values of all layers, each byte once; every GPU of the group moves its share over the scale-out network
    (over the scale-up link where there is no network), since the two pools are not one domain.
    Source: Beyond the Buzz (arXiv 2506.05508), section on KV transfer; NVIDIA Dynamo's guide: the hop is RDMA.
    """
    known = machine.hop.scaleout_bytes_per_s > 0  # false for NaN
    each = where(known, machine.hop.scaleout_bytes_per_s, machine.hop.bytes_per_s)
    return cached_bytes(model, machine, prompt) / (each * layout.tpa * layout.kvp * layout.pp)


def decode_steps(osl: Num) -> Num:
    """Output tokens that decode steps make: all but the first, which the prefill makes; at least one."""
    return maximum(osl - 1.0, 1.0)


def mixed_tpot_s(decode_tpot_s: Num, prefill_s: Num, *, batch: Num, osl: Num, groups: Num = 1.0, phi: Num = 1.0) -> Num:
    """Time per output token where the decoding GPUs also prefill [s].

        TPOT = decode(B) + phi (B / g - 1) / osl T_prefill

    While a request makes its osl tokens, each of the others on its GPUs is replaced once and prefilled between decode
    steps. phi = 1 charges the full prefill; below 1 a part of it rides along with decode steps.

    Args:
        decode_tpot_s: time per output token of the decode step alone.
        prefill_s: prefill of one prompt per attention group.
        batch: running requests of the replica.
        osl: tokens per answer.
        groups: attention groups that prefill side by side (dpa).
        phi: share of the prefill work that stands between decode steps, from calibration.
    Source: Little's law for a closed loop; phi fitted to public serving points (`sweep.calibration`).
    """
    others = maximum(batch / groups - 1.0, 0.0)
    return decode_tpot_s + prefill_s * (phi * others / osl)


def request_rate(batch: Num, tpot_s: Num, osl: Num) -> Num:
    """Requests per second that B running requests complete: X = B / ((osl - 1) TPOT) (Little's law)."""
    return batch / (tpot_s * decode_steps(osl))


def running_batch(
    tpot_at: Timer, *, busy_at: Timer, concurrency: Num, osl: Num, limit: Num, most_per_s: Num = float("inf")
) -> Num:
    """How many of `concurrency` users' requests decode at any time: the largest B with

        B + X T(X) <= concurrency,   B <= limit,   X <= most_per_s,   X = B / ((osl - 1) TPOT(B))

    Args:
        tpot_at: time per output token at a running batch.
        busy_at: what a request takes before its first token at a rate of requests, waiting for memory aside: T(X).
        concurrency: requests in flight.
        osl: tokens per answer.
        limit: requests that fit in memory, or that the scheduler runs at most.
        most_per_s: requests per second that the prefill side delivers.
    Returns: a real number, at least the smallest that the halvings tell from 0.
    """
    most = minimum(concurrency, limit)

    def sustained(batch: Num) -> Num:
        rate = request_rate(batch, tpot_at(batch), osl)
        return (batch + rate * busy_at(rate) <= concurrency) & (rate <= most_per_s)

    return largest_true(sustained, most / 2.0**HALVINGS, most, HALVINGS)


def queue_s(prompt_s: Num, *, rate: Num, users: Num, servers: Num, bunching: Num) -> Num:
    """How long a prompt waits for those that happen to stand before it [s].

        q rho sqrt(n / c) T,    rho = min(X T / c, 1)

    A prompt finds its server busy with probability rho; of n users that come and go independently about sqrt(n) are
    away from the mean at any time. Exact queueing formulas need the spread of lengths and arrivals, which nobody
    publishes: q is fitted.

    Args:
        prompt_s: prefill of one prompt, alone: T.
        rate: requests per second: X.
        users: requests in flight: n.
        servers: prompts that are prefilled side by side: c.
        bunching: q, from calibration; 0: prompts never meet.
    """
    busy = minimum(rate * prompt_s / servers, 1.0)
    return prompt_s * (bunching * busy * sqrt(users / servers))


def first_token_s(prefill_s: Num, *, share: Num, launch_s: Num, frontend_s: Num) -> Num:
    """Time to the first token with nobody else there [s].

        max(s T_prefill, t_launch) + t_frontend

    Prefill is not replayed from a graph: the host launches every kernel of it, and where that takes longer than they
    run, the first token waits for the host. Measured: first tokens of prompts of 512 and of 1,024 tokens that take
    the same time (Qwen3-235B on H100, TensorRT-LLM).

    Args:
        prefill_s: GPU time of the prompt.
        share: of it that shows: libraries that are not tuned to prompts of this length take longer.
        launch_s: what the host needs for all layers.
        frontend_s: HTTP, tokens, scheduling.
    """
    return maximum(prefill_s * share, launch_s) + frontend_s


def waited_ttft_s(first_s: Num, *, batch: Num, concurrency: Num, rate: Num, tpot_s: Num, osl: Num) -> Num:
    """Time to the first token once those who wait for a place are counted: what Little's law leaves of a cycle.

    concurrency / X - (osl - 1) TPOT, and never less than the first token takes alone.
    """
    return maximum(first_s, concurrency / rate - tpot_s * decode_steps(osl))


def prefill_rate(prefill_s: Num, prompts: Num, gain: Num = 1.0) -> Num:
    """Prompts per second of a prefill pool: those that it works on at a time, over the time of one.

    Args:
        prefill_s: time of one prompt per attention group, alone.
        prompts: attention groups of all its workers.
        gain: how much faster prompts in batches and in overlap are than one at a time, from calibration.
    """
    return gain * prompts / prefill_s


def steady_state(
    decode_tpot_at: Timer,
    prefill_s: Num,
    *,
    first_s: Num,
    osl: Num,
    concurrency: Num,
    max_batch: Num,
    groups: Num = 1.0,
    phi: Num = 1.0,
    most_per_s: Num = float("inf"),
    queue_at: Timer | None = None,
    batch: Num | None = None,
) -> Steady:
    """One replica with `concurrency` users: the general case of `aggregated` and `disaggregated`.

    Args:
        decode_tpot_at: time per output token of the decode step alone at a running batch.
        prefill_s: prefill of one prompt per attention group on the decoding GPUs; 0 where others prefill.
        first_s: time to the first token with nothing else to do.
        osl: tokens per answer.
        concurrency: requests in flight at this replica.
        max_batch: requests that fit, or that the scheduler runs at most.
        groups: attention groups that prefill side by side (dpa).
        phi: share of the prefill work that stands between decode steps.
        most_per_s: requests per second that a prefill pool delivers to this replica.
        queue_at: what a prompt waits for others at a rate of requests (`queue_s`); nothing where not given.
        batch: the running batch where it is known; found by bisection where not.
    """

    def tpot_at(running: Num) -> Num:
        decode_s = decode_tpot_at(running)
        return mixed_tpot_s(decode_s, prefill_s, batch=running, osl=osl, groups=groups, phi=phi)

    def busy_at(per_s: Num) -> Num:
        return first_s if queue_at is None else first_s + queue_at(per_s)

    if batch is None:
        batch = running_batch(
            tpot_at, busy_at=busy_at, concurrency=concurrency, osl=osl, limit=max_batch, most_per_s=most_per_s
        )
    tpot_s = tpot_at(maximum(batch, minimum(concurrency, 1.0)))
    rate = request_rate(batch, tpot_s, osl)
    ttft_s = waited_ttft_s(busy_at(rate), batch=batch, concurrency=concurrency, rate=rate, tpot_s=tpot_s, osl=osl)
    return Steady(batch=batch, tpot_s=tpot_s, ttft_s=ttft_s, requests_per_s=rate)


def aggregated(
    decode_tpot_at: Timer,
    prefill_s: Num,
    *,
    osl: Num,
    concurrency: Num,
    max_batch: Num,
    groups: Num = 1.0,
    phi: Num = 1.0,
    first_s: Num | None = None,
) -> Steady:
    """One replica that prefills and decodes, with `concurrency` users; see `steady_state`.

    Args:
        first_s: time to the first token with nothing else to do, frontend included; `prefill_s` where not given.
    """
    return steady_state(
        decode_tpot_at,
        prefill_s,
        first_s=prefill_s if first_s is None else first_s,
        osl=osl,
        concurrency=concurrency,
        max_batch=max_batch,
        groups=groups,
        phi=phi,
    )


def disaggregated(
    decode_tpot_at: Timer,
    first_s: Num,
    *,
    osl: Num,
    concurrency: Num,
    max_batch: Num,
    prefill_per_s: Num,
    decode_workers: Num = 1.0,
) -> Steady:
    """A service of prefill and decode pools, with `concurrency` users in all; see `steady_state`.

    Args:
        decode_tpot_at: time per output token of one decode worker at a running batch.
        first_s: time to the first token with nothing else to do: prefill, frontend, transfer of the cache.
        concurrency: requests in flight in the whole service.
        max_batch: requests that fit in one decode worker, or that its scheduler runs at most.
        prefill_per_s: prompts per second of the whole prefill pool (`prefill_rate`).
        decode_workers: decode workers that share the requests.
    Source: rate matching of Beyond the Buzz (arXiv 2506.05508), the slower pool decides; Little's law.
    """
    one = steady_state(
        decode_tpot_at,
        0.0,
        first_s=first_s,
        osl=osl,
        concurrency=concurrency / decode_workers,
        max_batch=max_batch,
        most_per_s=prefill_per_s / decode_workers,
    )
    return Steady(
        batch=one.batch, tpot_s=one.tpot_s, ttft_s=one.ttft_s, requests_per_s=one.requests_per_s * decode_workers
    )
