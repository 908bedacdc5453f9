"""Collectives against bytes and seconds worked out by hand; links 4e11 B/s inside a domain of 8, 5e10 B/s outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from sweep.cost.collectives import all_reduce, exchange, gather, inside, pipeline_hop
from sweep.cost.ops import Op
from sweep.machine import Machine
from tests.cost import points

UP, OUT, DOMAIN = 4e11, 5e10, 8.0
M = 1e6  # bytes of a message


@pytest.fixture(autouse=True)
def plain_numbers() -> Iterator[None]:
    with points.numbers():
        yield


@pytest.fixture(scope="module")
def hw() -> Machine:
    return points.machine()


def near(op: Op, inner_bytes: float, outer_bytes: float) -> None:
    assert op.comm_bytes == pytest.approx(inner_bytes + outer_bytes, rel=1e-12, abs=1e-6)
    assert op.comm_s == pytest.approx(inner_bytes / UP + outer_bytes / OUT, rel=1e-12, abs=1e-18)
    assert op.floor_s == 0


@pytest.mark.parametrize(
    ("group", "stride", "members"),
    [(4, 1, 4), (8, 1, 8), (32, 1, 8), (32, 2, 4), (32, 8, 1), (32, 16, 1), (2, 4, 2), (1, 64, 1)],
)
def test_members_of_a_group_in_one_domain(group: int, stride: int, members: int) -> None:
    """n_in = min(n, D / stride), at least 1."""
    assert inside(group, stride, DOMAIN) == members


def test_two_shot_all_reduce(hw: Machine) -> None:
    """2 m (n - 1) / n: eight GPUs send and receive 1.75 MB of 1 MB."""
    near(all_reduce("decode", hw, count=1.0, message=M, group=8.0), 1.75e6, 0)
    near(all_reduce("decode", hw, count=1.0, message=M, group=2.0), 1.0e6, 0)


def test_hierarchical_all_reduce(hw: Machine) -> None:
    """32 GPUs in four domains: 2 m 7/8 inside, then 2 (m / 8) 3/4 between domains."""
    near(all_reduce("decode", hw, count=1.0, message=M, group=32.0), 1.75e6, 2 * M / 8 * 3 / 4)


@pytest.mark.parametrize(
    ("stride", "inner", "outer"),
    [
        (2.0, 2 * M * 3 / 4, 2 * M / 4 * 7 / 8),  # four members a domain, eight domains
        (4.0, 2 * M * 1 / 2, 2 * M / 2 * 15 / 16),
        (8.0, 0.0, 2 * M * 31 / 32),  # no two members share a domain
        (64.0, 0.0, 2 * M * 31 / 32),
    ],
)
def test_hierarchical_all_reduce_with_a_stride(hw: Machine, stride: float, inner: float, outer: float) -> None:
    near(all_reduce("decode", hw, count=1.0, message=M, group=32.0, stride=stride), inner, outer)


def test_in_network_reduction() -> None:
    """Switches that reduce: m once inside the domain, and the same between domains; never worse than two-shot."""
    switched = points.machine(in_network_reduce=True)
    near(all_reduce("decode", switched, count=1.0, message=M, group=8.0), M, 0)
    near(all_reduce("decode", switched, count=1.0, message=M, group=2.0), M, 0)
    near(all_reduce("decode", switched, count=1.0, message=M, group=32.0), M, 2 * M / 8 * 3 / 4)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_gather_and_scatter(hw: Machine, name: str) -> None:
    """Half an all-reduce each."""
    op = gather(name, "decode", hw, count=3.0, message=M, group=8.0)
    assert (op.name, op.count) == (name, 3.0)
    near(op, M * 7 / 8, 0)
    near(gather(name, "decode", hw, count=1.0, message=M, group=32.0, stride=2.0), M * 3 / 4, M / 4 * 7 / 8)
    whole = all_reduce("decode", hw, count=1.0, message=M, group=32.0)
    assert 2 * gather(name, "decode", hw, count=1.0, message=M, group=32.0).comm_s == pytest.approx(whole.comm_s)


@pytest.mark.parametrize(
    ("group", "stride", "inner", "outer"),
    [
        (8.0, 1.0, 7 / 8, 0.0),
        (32.0, 1.0, 7 / 32, 24 / 32),
        (32.0, 2.0, 3 / 32, 28 / 32),
        (32.0, 8.0, 0.0, 31 / 32),
        (1.0, 1.0, 0.0, 0.0),
    ],
)
def test_all_to_all(hw: Machine, group: float, stride: float, inner: float, outer: float) -> None:
    """Every member gets an equal share: (n_in - 1) / n of the message stays inside, (n - n_in) / n leaves."""
    op = exchange("dispatch", "decode", hw, hw.experts_link, count=1.0, message=M, group=group, stride=stride)
    near(op, inner * M, outer * M)


def test_a_group_of_one_costs_nothing() -> None:
    slow = points.machine("measured")
    for op in (
        all_reduce("decode", slow, count=1.0, message=M, group=1.0),
        gather("all_gather", "decode", slow, count=1.0, message=M, group=1.0),
        exchange("dispatch", "decode", slow, slow.experts_link, count=1.0, message=M, group=1.0, stride=4.0),
        pipeline_hop("decode", slow, message=M, gpus=8.0, stages=1.0),
    ):
        assert (op.comm_bytes, op.comm_s, op.floor_s) == (0, 0, 0)


def with_start_up(hw: Machine, **seconds: float) -> Machine:
    return dataclasses.replace(
        hw, reduce=dataclasses.replace(hw.reduce, **seconds), gather=dataclasses.replace(hw.gather, **seconds)
    )


@pytest.mark.parametrize(
    ("group", "start_us"), [(2.0, 1 + 2 * 0.1), (8.0, 1 + 8 * 0.1), (16.0, 1 + 16 * 0.1 + 5), (64.0, 1 + 16 * 0.1 + 5)]
)
def test_start_up(hw: Machine, group: float, start_us: float) -> None:
    """t0, 0.1 us per member up to 16, and 5 us more where the group leaves the domain."""
    timed = with_start_up(hw, t0_s=1e-6, t0_rank_s=0.1e-6, one_shot_s=1.0, scaleout_t0_s=5e-6)
    for op in (
        all_reduce("decode", timed, count=1.0, message=M, group=group),
        gather("all_gather", "decode", timed, count=1.0, message=M, group=group),
    ):
        assert op.floor_s == pytest.approx(start_us * 1e-6, rel=1e-12)


@pytest.mark.parametrize(("message", "one_shot"), [(1e4, True), (1.5e5, True), (1.7e5, False), (1e7, False)])
def test_one_shot_wins_through_its_smaller_start_up(hw: Machine, message: float, one_shot: bool) -> None:
    """Eight GPUs, 3 us against 1 us: 7 m / bw + 1 us < 1.75 m / bw + 3 us up to m = 2 us x 4e11 / 5.25 = 152 kB."""
    timed = with_start_up(hw, t0_s=3e-6, t0_rank_s=0.0, one_shot_s=1e-6, one_shot_rank_s=0.0)
    op = all_reduce("decode", timed, count=1.0, message=message, group=8.0)
    assert op.comm_bytes == pytest.approx(message * (7 if one_shot else 1.75))
    assert op.comm_s == pytest.approx(op.comm_bytes / UP, rel=1e-12)
    assert op.floor_s == pytest.approx(1e-6 if one_shot else 3e-6)
    # a group that leaves the domain is always hierarchical
    assert all_reduce("decode", timed, count=1.0, message=message, group=16.0).floor_s == pytest.approx(3e-6)


@pytest.mark.parametrize(("gpus", "bandwidth"), [(8.0, UP), (16.0, OUT)])
def test_pipeline_hop(hw: Machine, gpus: float, bandwidth: float) -> None:
    """On the scale-up link only if all GPUs of the replica are in one domain; one hop fewer than stages."""
    op = pipeline_hop("decode", hw, message=M, gpus=gpus, stages=4.0)
    assert op.count == 3
    assert op.comm_bytes == M
    assert op.comm_s == pytest.approx(M / bandwidth, rel=1e-12)


def test_a_machine_without_a_network_is_not_asked_for_it() -> None:
    """Inside the domain a missing scale-out figure does not matter; outside nothing can be said."""
    lonely = points.machine(scaleout_bytes_per_s=None)
    near(all_reduce("decode", lonely, count=1.0, message=M, group=8.0), 1.75e6, 0)
    outside = all_reduce("decode", lonely, count=1.0, message=M, group=16.0)
    assert outside.comm_s != outside.comm_s
