"""Laws that every point obeys, whatever its numbers: tried on drawn models, machines and layouts.

Each is checked through the whole model on float64 numbers: more of a resource is never slower, narrower formats never
read more, `ideal` is never slower than `measured`, what all GPUs of a layout compute and hold is what one GPU does and
the copies that the layout makes.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sweep.cost.attention import decode_attention
from sweep.cost.memory import count_params, request_bytes
from sweep.cost.ops import Op, op_parts
from sweep.cost.step import Row, layer_comm, layer_kernels, step_tokens
from sweep.machine import Machine, resolve
from sweep.point import Hardware, Kinds, Precision
from tests.cost import points
from tests.cost.points import MIXED, MLA, MODELS, MOE, Costs, all_kinds

few = settings(deadline=None, derandomize=True, max_examples=30)
SAME = 1e-9  # relative: the same sum in another order

FORMATS = ("bf16", "fp8", "nvfp4")
power = lambda lo, hi: st.integers(lo, hi).map(lambda i: 2**i)  # noqa: E731


@st.composite
def layouts(draw: st.DrawFn, model: str, *, even: bool = False) -> dict[str, Any]:
    """A layout that the model can be cut into: tpa kvp dpa = tpf ep."""
    tpa, kvp = draw(power(0, 3)), draw(power(0, 2))
    dpa = draw(power(0, 3))
    n = tpa * kvp * dpa
    ep = draw(st.sampled_from([e for e in (1, 2, 4, 8, 16, 32, 64) if e <= n])) if model != "dense" else 1
    layout: dict[str, Any] = {"tpa": tpa, "kvp": kvp, "dpa": dpa, "ep": ep, "pp": draw(power(0, 2))}
    layout["wo_shard"] = draw(st.sampled_from(["n", "tpa"]))
    if not even:
        layout["redundant_slots"] = draw(st.sampled_from([0, 1]))
        layout["overlap"] = draw(st.sampled_from([0.0, 0.5, 1.0]))
        layout["hop_b"] = float(draw(st.booleans()))
        layout["two_batch"] = float(draw(st.booleans()))
        layout["prefill_chunk"] = draw(st.sampled_from([0, 512, 3000]))
    return layout


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """What is needed for a point: names and numbers."""
    model = draw(st.sampled_from(list(MODELS)))
    return {
        "model": model,
        "layout": draw(layouts(model)),
        "drafting": draw(st.sampled_from([{}, {"n_draft": 3, "acceptance": 0.7, "draft_cost": 0.1}])),
        "efficiency": draw(st.sampled_from(["ideal", "measured"])),
        "precision": {k: draw(st.sampled_from(FORMATS)) for k in ("weights", "activations", "kv")},
        "batch": draw(st.integers(1, 3000)),
        "context": {"isl": draw(st.integers(2, 60_000)), "osl": draw(st.integers(1, 4000))},
    }


def row_of(case: dict[str, Any], efficiency: str | None = None, **figures: Any) -> Row:
    hw = points.machine(efficiency or case["efficiency"], precision=case["precision"], **figures)
    return points.row(points.model(MODELS[case["model"]], **case["drafting"]), hw, points.layout(**case["layout"]))


def kinds_of(case: dict[str, Any]) -> Kinds:
    return all_kinds()


def cost(case: dict[str, Any], **figures: Any) -> Costs:
    return points.evaluate(row_of(case, **figures), case["batch"], points.context(**case["context"]), kinds_of(case))


# --- more of a resource ------------------------------------------------------------------------------------------

RESOURCES = {
    "memory bandwidth": ("hbm_bytes_per_s",),
    "FLOP/s": ("bf16_flops", "fp8_flops", "fp4_flops", "int8_flops", "fp32_flops"),
    "link bandwidth": ("link_bytes_per_s",),
    "network bandwidth": ("scaleout_bytes_per_s",),
}


@few
@given(case=cases(), resource=st.sampled_from(list(RESOURCES)))
def test_more_is_never_slower(case: dict[str, Any], resource: str) -> None:
    """More bandwidth, FLOP/s or link: no time grows, no rate falls."""
    more = {key: 1.7 * points.HARDWARE[key] for key in RESOURCES[resource]}
    before, after = cost(case), cost(case, **more)
    for name in ("tpot_s", "request_s"):
        assert getattr(after.point, name) <= getattr(before.point, name) * (1 + SAME)
    assert after.context.ttft_s <= before.context.ttft_s * (1 + SAME)
    for name in ("tok_s_user", "tok_s_gpu"):
        assert getattr(after.point, name) >= getattr(before.point, name) * (1 - SAME)


@few
@given(case=cases(), more=st.floats(1.0, 8.0))
def test_more_capacity_holds_more(case: dict[str, Any], more: float) -> None:
    before, after = cost(case), cost(case, hbm_bytes=more * points.HARDWARE["hbm_bytes"])
    assert after.context.max_batch >= before.context.max_batch
    assert after.point.fits >= before.point.fits
    assert after.point.tpot_s == pytest.approx(before.point.tpot_s, rel=SAME)


@few
@given(case=cases())
def test_a_larger_domain_is_never_slower(case: dict[str, Any]) -> None:
    """As long as the link is faster than the network, more of a group inside the domain helps."""
    narrow, wide = cost(case, domain=4), cost(case, domain=64)
    assert wide.point.tpot_s <= narrow.point.tpot_s * (1 + SAME)
    assert wide.context.ttft_s <= narrow.context.ttft_s * (1 + SAME)


# --- fewer bits --------------------------------------------------------------------------------------------------


@few
@given(case=cases(), key=st.sampled_from(["weights", "activations", "kv"]))
def test_fewer_bits_never_read_more(case: dict[str, Any], key: str) -> None:
    """bf16 -> fp8 -> NVFP4: no byte more is read, written or held, and under `ideal` no time is longer."""
    case = {**case, "efficiency": "ideal"}
    found = []
    for name in FORMATS:
        narrower = {**case, "precision": {**case["precision"], key: name}}
        row = row_of(narrower)
        ops = decode_ops(row, case["batch"], points.context(**case["context"]).decode)
        found.append((ops, cost(narrower)))
    for (wide_ops, wide), (narrow_ops, narrow) in itertools.pairwise(found):
        for a, b in zip(wide_ops, narrow_ops, strict=True):
            for field in ("weight_bytes", "kv_bytes", "input_bytes", "output_bytes", "comm_bytes"):
                assert getattr(b, field) <= getattr(a, field) * (1 + SAME), (a.name, field)
        assert narrow.row.weights_bytes <= wide.row.weights_bytes * (1 + SAME)
        assert narrow.point.held_bytes <= wide.point.held_bytes * (1 + SAME)
        assert narrow.context.max_batch >= wide.context.max_batch
        assert narrow.point.tpot_s <= wide.point.tpot_s * (1 + SAME)


# --- ideal and measured ------------------------------------------------------------------------------------------


def decode_ops(row: Row, batch: float, context: float, *, comm: bool = True) -> list[Op]:
    """All operations of the layers in a decode step of one microbatch."""
    kinds = all_kinds()
    with points.numbers():
        tokens = step_tokens(row.layout, np.float64(batch), row.model.n_draft, kinds)
        ops = layer_kernels("decode", row, tokens, kinds)
        ops += decode_attention(row.model, row.machine, row.layout, tokens, np.float64(context), kinds)
        return ops + (layer_comm("decode", row, tokens, kinds) if comm else [])


@few
@given(case=cases(), generation=st.sampled_from(["", "hopper", "blackwell", "cdna3"]))
def test_ideal_is_never_slower(case: dict[str, Any], generation: str) -> None:
    """Every operation, the step and the prefill: the roofline is a lower bound of what is measured."""
    context = points.context(**case["context"])
    ideal, measured = row_of(case, "ideal"), row_of(case, "measured")
    if generation:
        measured = dataclasses.replace(measured, machine=generation_machine(generation, case))
    fast, slow = (decode_ops(row, case["batch"], context.decode) for row in (ideal, measured))
    assert [op.name for op in fast] == [op.name for op in slow]
    with points.numbers():
        for a, b in zip(fast, slow, strict=True):
            assert op_parts(a).total_s <= op_parts(b).total_s * (1 + SAME), a.name
    best = points.evaluate(ideal, case["batch"], context)
    real = points.evaluate(measured, case["batch"], context, all_kinds())
    assert best.point.tpot_s <= real.point.tpot_s
    assert best.context.ttft_s <= real.context.ttft_s
    assert best.context.max_batch >= real.context.max_batch


def generation_machine(generation: str, case: dict[str, Any]) -> Machine:
    hardware, precision = Hardware(**points.HARDWARE), Precision(**case["precision"])
    return resolve(hardware, precision, points.preset("measured"), generation=generation).machine


# --- the load ----------------------------------------------------------------------------------------------------


@few
@given(case=cases(), doublings=st.integers(0, 7))
def test_doubling_the_batch_never_lowers_throughput(case: dict[str, Any], doublings: int) -> None:
    """At a fixed layout under `ideal`, with whole microbatches and groups, so that no share is rounded."""
    lay = case["layout"]
    case = {**case, "efficiency": "ideal", "batch": lay["dpa"] * lay["pp"] * lay["ep"] * 2**doublings}
    once, twice = cost(case), cost({**case, "batch": 2 * case["batch"]})
    assert twice.point.tok_s_gpu >= once.point.tok_s_gpu * (1 - SAME)
    assert twice.point.tok_s_user <= once.point.tok_s_user * (1 + SAME)


@few
@given(case=cases())
def test_any_batch_doubled_without_a_pipeline(case: dict[str, Any]) -> None:
    """Shares that are rounded up never more than double."""
    case = {**case, "efficiency": "ideal", "layout": {**case["layout"], "pp": 1}}
    once, twice = cost(case), cost({**case, "batch": 2 * case["batch"]})
    assert twice.point.tok_s_gpu >= once.point.tok_s_gpu * (1 - SAME)


@few
@given(case=cases())
def test_the_six_parts_are_the_time(case: dict[str, Any]) -> None:
    p = cost(case).point
    parts = (p.math_s, p.weight_read_s, p.kv_read_s, p.activation_s, p.comm_s, p.latency_s)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(p.tpot_s, rel=SAME)
    assert max(parts) == parts[int(p.bound)]
    assert p.mfu >= 0 and 0 <= p.mbu <= 1 + SAME


@few
@given(case=cases(), more=st.integers(1, 50_000))
def test_longer_contexts_are_never_cheaper(case: dict[str, Any], more: int) -> None:
    longer = {**case, "context": {**case["context"], "isl": case["context"]["isl"] + more}}
    short, long = cost(case), cost(longer)
    assert long.point.tpot_s >= short.point.tpot_s * (1 - SAME)
    assert long.context.ttft_s >= short.context.ttft_s * (1 - SAME)
    assert long.point.held_bytes >= short.point.held_bytes
    assert long.context.max_batch <= short.context.max_batch


# --- layouts that are one and the same ---------------------------------------------------------------------------


def same(a: Costs, b: Costs) -> None:
    for x, y in ((a.row, b.row), (a.context, b.context), (a.point, b.point)):
        for f in dataclasses.fields(x):
            assert getattr(x, f.name) == pytest.approx(getattr(y, f.name), rel=SAME, nan_ok=True), f.name


@few
@given(case=cases(), hop_b=st.booleans())
def test_helix_without_sequence_ranks_is_tensor_parallelism(case: dict[str, Any], hop_b: bool) -> None:
    """kvp = 1: neither where the output projection is cut, nor HOP-B, nor a tied FFN makes a difference."""
    plain = {**case["layout"], "kvp": 1, "dpa": 1, "ep": 1, "wo_shard": "n", "hop_b": 0.0, "two_batch": 0.0}
    helix = {**plain, "wo_shard": "tpa", "hop_b": float(hop_b), "tpf": plain["tpa"]}
    tied = {**helix, "ffn_tied": 1.0}
    lean = dataclasses.replace(kinds_of(case), helix=False, hop_b=False, grouped=False, two_batch=False)
    context = points.context(**case["context"])
    expected = points.evaluate(row_of({**case, "layout": plain}), case["batch"], context, lean)
    same(cost({**case, "layout": helix}), expected)
    same(cost({**case, "layout": tied}), expected)


@few
@given(case=cases())
def test_code_left_out_makes_no_difference(case: dict[str, Any]) -> None:
    """What does not occur among the points may be left out of the program."""
    m, lay = case["model"], case["layout"]
    full = kinds_of(case)
    lean = dataclasses.replace(
        full,
        gqa=m != "mla",
        mla=m == "mla",
        window=m == "mixed",
        linear=m == "mixed",
        sparse=m == "mla",
        moe=m != "dense",
        shared=m != "dense",
        latent=m == "mixed",
        grouped=lay["dpa"] > 1,
        helix=lay["kvp"] > 1,
        drafting=bool(case["drafting"]),
        overlap=lay["overlap"] > 0,
        hop_b=lay["hop_b"] > 0,
        two_batch=lay["two_batch"] > 0,
        skewed=False,
        elementwise=case["efficiency"] == "measured",
        chunked=lay["prefill_chunk"] > 0,
    )
    same(points.evaluate(row_of(case), case["batch"], points.context(**case["context"]), lean), cost(case))


# --- conservation ------------------------------------------------------------------------------------------------


def copies_of(name: str, lay: Any, tokens_copied: bool) -> float:
    """On how many GPUs a part stands (or, tokens_copied, how often its work is done): the layouts' table, by hand."""
    tpa, kvp, dpa, ep = (float(getattr(lay, k)) for k in ("tpa", "kvp", "dpa", "ep"))
    n = tpa * kvp * dpa
    together = dpa == 1
    if name in ("qkv_proj", "q_up", "k_up", "v_up"):
        return kvp if tokens_copied else kvp * dpa
    if name in ("q_down", "kv_down", "index_q", "index_k"):
        return tpa * kvp if tokens_copied else n
    if name == "o_proj":
        shared = 1.0 if lay.wo_shard > 0 else kvp
        return shared if tokens_copied else shared * dpa
    if name in ("linear_in", "linear_out"):
        return kvp if tokens_copied else kvp * dpa
    if name in ("ffn_up_gate", "ffn_down", "shared_up_gate", "shared_down"):
        if together:
            return 1.0
        return 1.0 if tokens_copied else ep
    if name in ("router", "latent_down", "latent_up"):
        return n if together or not tokens_copied else 1.0
    if name in ("experts_up_gate", "experts_down"):
        return 1.0
    if name == "lm_head":
        return 1.0 if tokens_copied else dpa
    if name == "attention":
        return 1.0
    if name == "indexer":  # cut over the sequence and the requests, not over heads
        return tpa
    raise AssertionError(name)


@settings(few, max_examples=60)
@given(data=st.data(), model=st.sampled_from(list(MODELS)), per=st.integers(1, 5), s=st.sampled_from([1024, 8192]))
def test_work_and_reads_are_those_of_one_gpu_and_the_copies(data: Any, model: str, per: int, s: int) -> None:
    """FLOPs and weight bytes read, over all GPUs of a stage, part by part. All shares are even here."""
    cut = data.draw(layouts(model, even=True))
    cut["tpa"] = min(cut["tpa"], 4)  # beyond the KV heads the cache and its projections are copied: a test of its own
    cut["ep"] = min(cut["ep"], cut["tpa"] * cut["kvp"] * cut["dpa"])
    values = MODELS[model]
    lay, one = points.layout(**{**cut, "pp": 1}), points.layout()
    n = float(lay.tpa * lay.kvp * lay.dpa)
    batch, hw, m = per * n, points.machine(), points.model(values)
    here, alone = (decode_ops(points.row(m, hw, x), batch, s, comm=False) for x in (lay, one))
    assert [op.name for op in here] == [op.name for op in alone]
    for part, whole in zip(here, alone, strict=True):
        if part.name in ("elementwise", "linear_state") or whole.count == 0:
            continue
        work, held = copies_of(part.name, lay, True), copies_of(part.name, lay, False)
        if model == "mla" and part.name == "attention":
            held_kv = float(lay.tpa)  # one latent for all heads: on every GPU of the group
        else:
            held_kv = copies_of(part.name, lay, False) if part.name == "indexer" else 1.0
        assert part.flops * n == pytest.approx(whole.flops * work, rel=SAME), part.name
        assert part.weight_bytes * n == pytest.approx(whole.weight_bytes * held, rel=SAME), part.name
        assert part.kv_bytes * n == pytest.approx(whole.kv_bytes * held_kv, rel=SAME), part.name


@pytest.mark.parametrize(("tpa", "copies"), [(2, 1), (4, 1), (8, 2), (16, 4)])
def test_cache_beyond_the_key_heads_is_copied(tpa: int, copies: int) -> None:
    """4 KV heads on 8 or 16 GPUs: reads and the projections of keys and values double, or fourfold."""
    hw, m = points.machine(), points.model()
    here, alone = (
        {
            op.name: op
            for op in decode_ops(points.row(m, hw, points.layout(tpa=t)), 16, 4096, comm=False)
            if op.count > 0
        }
        for t in (tpa, 1)
    )
    assert here["attention"].kv_bytes * tpa == pytest.approx(copies * alone["attention"].kv_bytes)
    assert here["attention"].flops * tpa == pytest.approx(alone["attention"].flops)
    queries, keys = 16 * 64, 2 * 4 * 64
    assert here["qkv_proj"].n * tpa == queries + copies * keys


@settings(few, max_examples=60)
@given(data=st.data(), model=st.sampled_from(["dense", "moe", "mla"]))
def test_shards_sum_to_the_whole(data: Any, model: str) -> None:
    """Weights held on all GPUs of a replica: every part once, and as often more as the layout's table copies it."""
    cut = data.draw(layouts(model, even=True))
    assume(cut["tpa"] <= 4)
    m, hw, lay = points.model(MODELS[model]), points.machine(), points.layout(**cut)
    n, pp = float(lay.tpa * lay.kvp * lay.dpa), float(lay.pp)
    d, layers, dense, moe = 1024, 16, 16 if model == "dense" else 4, 0 if model == "dense" else 12
    parts: dict[str, float] = {
        "ffn_down": dense * 3 * d * 4096 + moe * 3 * d * 512,
        "experts_down": moe * 64 * 3 * d * 512,
        "router": moe * d * 64,
    }
    if model == "mla":
        parts["q_up"] = layers * 16 * (512 * 96 + 256 * 128)
        parts["q_down"] = layers * (d * (512 + 256 + 32) + 512 * 8 * 64 + d * (64 + 8))
        norms = layers * (512 + 256)
    else:
        parts["qkv_proj"] = layers * d * (16 + 8) * 64
        norms = 0
    parts["o_proj"] = layers * d * 16 * 64
    norms += d * (2 * layers + 1)
    tables = 2 * 32768 * d
    with points.numbers():
        assert count_params(m).total == sum(parts.values()) + norms + tables
    held = points.evaluate(points.row(m, hw, lay), 1, points.context()).row.weights_bytes
    copied = sum(size * copies_of(name, lay, False) for name, size in parts.items()) + norms * n
    # with stages, every stage is charged for a table, as the fuller of the two ends is
    copied += tables * copies_of("lm_head", lay, False) * (1.0 if pp == 1 else pp / 2)
    assert held * n * pp == pytest.approx(2 * copied, rel=SAME)


@few
@given(
    tpa=power(0, 4),
    kvp=power(0, 3),
    dpa=power(0, 3),
    tokens=st.integers(1, 100_000),
    model=st.sampled_from([MOE, MIXED, MLA]),
)
def test_cache_of_all_requests_is_held_once(tpa: int, kvp: int, dpa: int, tokens: int, model: dict[str, Any]) -> None:
    """Over all GPUs: the whole cache, copied only where tpa exceeds the KV heads (one for a latent)."""
    m, hw = points.model(model), points.machine()
    with points.numbers():
        whole = request_bytes(m, hw, points.layout(), np.float64(tokens))
        here = request_bytes(m, hw, points.layout(tpa=tpa, kvp=kvp, dpa=dpa), np.float64(tokens))
        state = m.n_linear_layers * m.state_bytes_per_layer
    copies = tpa if model is MLA else max(tpa / 4, 1)
    # a state is cut over heads alone
    assert here * tpa * kvp == pytest.approx((whole - state) * copies + state * kvp, rel=SAME)
