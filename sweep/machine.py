"""What a machine does with given formats and given efficiencies: one record of rates per combination.

Hardware, precision and efficiency meet here, on the host, once per combination: bytes per element, the FLOP/s and
bytes/s that each kind of kernel reaches, what an empty kernel costs, links, capacity. The cost model sees only
these numbers and knows nothing of format names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from sweep.errors import BadInput, closest
from sweep.point import FORMAT_BITS, FORMAT_MATH, Hardware, Num, Precision
from sweep.tiers import Plan

NAN = float("nan")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class OpRate:
    """What one kind of kernel reaches."""

    flops_per_s: Num  # dense peak of the math format times the share reached
    read_bytes_per_s: Num  # weights and cache
    input_bytes_per_s: Num  # inputs, the pass that quantizes or permutes them first included
    write_bytes_per_s: Num
    t0_s: Num  # floor: the time of an empty kernel
    chain_s: Num = 0.0  # per step of the dimension that one processor walks in order: K of a GEMM, keys of attention
    overlap: Num = 1.0  # share of the shorter of two that hides behind the longer; 1: the roofline
    held_slowdown: Num | None = None  # of weights and cache where they live in several tiers; None: main memory
    act_slowdown: Num | None = None  # and of activations


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Link:
    """What one kind of collective reaches, per GPU and direction, inside and across the scale-up domain."""

    bytes_per_s: Num
    t0_s: Num
    t0_rank_s: Num  # more per member of the group, up to 16
    one_shot_s: Num  # start-up of a one-shot all-reduce, and more per member
    one_shot_rank_s: Num
    scaleout_bytes_per_s: Num
    scaleout_t0_s: Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Tile:
    """An output tile that a matrix kernel works in, and the share of its best rate that it reaches."""

    m: Num
    n: Num
    rate: Num


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Tiers of memory and what may live in them; which step asks what stands in `Kinds.tiers`."""

    tier_bytes: tuple[Num, ...]  # room in each tier, the reserve taken off
    slowdown: tuple[Num, ...]  # bandwidth of the fastest tier in use over that of this one
    share: tuple[Num, ...]  # of each step: at most this share of the class; 0: not this machine's step
    home: tuple[Num, ...]  # 1 for the first tier of the running cache: what lies there need not be reloaded
    overlapped: Num  # tiers deliver at the same time
    reload_overlapped: Num  # a prefix is reloaded while the rest of the prompt is computed
    reload_fastest: Num  # or not at all where computing it again is faster
    idle_per_running: Num  # conversations whose cache waits for their next turn, per running request


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Machine:
    """Rates, capacities and bytes per element of one hardware x precision x efficiency combination."""

    # bytes per element
    attn_weight: Num
    ffn_weight: Num
    head_weight: Num
    act: Num
    kv: Num
    out: Num
    dispatch: Num
    combine: Num
    # kernels
    gemm_attn: OpRate
    gemm_ffn: OpRate
    gemm_head: OpRate
    experts: OpRate
    attention: OpRate
    mla: OpRate
    prefill: OpRate
    state: OpRate
    tiles: tuple[Tile, ...]
    n_sm: Num
    # collectives
    reduce: Link
    gather: Link  # all-gather and reduce-scatter
    exchange: Link
    experts_link: Link  # dispatch and combine
    hop: Link
    domain: Num
    in_network: Num
    # memory
    hbm_bytes: Num
    reserve_bytes: Num
    # overheads
    layer_s: Num
    host_s: Num
    request_s: Num
    elementwise: Num  # reads and writes of the residual stream per layer
    imbalance: Num  # slowest over mean GPU with expert load balancing, less 1
    imbalance_off: Num  # without: the simulated excess of the configuration, or the share of it that shows
    # for the shares of the machine that are reached
    peak_flops: Num
    peak_bytes_per_s: Num
    watts: Num
    usd_per_hour: Num
    memory: Memory | None = None  # None: all in the main memory


_WIDTH = {"fp4": 4, "fp8": 8, "int8": 8, "bf16": 16, "fp32": 32}
FACTORS = {"math": 1.0, "memory": 1.0, "floor": 1.0, "share": 1.0}  # of a kind of kernel or link, by generation
MESSAGE_BYTES = 2.0  # every message but dispatch and combine is bf16


@dataclass(frozen=True, kw_only=True)
class Band:
    """How far what is measured on a machine is from what is predicted: factors that hold 80 of 100 measurements."""

    relative: str | None  # the measured generation whose constants the machine takes
    inherited: bool  # not its own
    factors: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)  # by metric and kind
    frontend_s: Mapping[str, float] = field(default_factory=dict)  # before a first token, over its prefill's own factor
    launch_s: tuple[float, float] = (0.0, 0.0)  # of the host per layer, over the same factor; without and with experts

    def of(self, metric: str, kind: str) -> tuple[float, float]:
        """Low and high factor, NaN where unknown; metrics and kinds as in `sweep.calibration.bands`."""
        return self.factors.get(metric, {}).get(kind, (NAN, NAN))

    def first(self, kind: str) -> tuple[float, float, float]:
        """Of `ttft_s` of a sweep: low and high factor on it and the seconds of a frontend, and those seconds."""
        low, high = self.of("first", kind)
        prefill = self.frontend_s.get("prefill", NAN)
        return low * prefill, high * prefill, self.frontend_s.get(kind, NAN)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A machine's numbers, and what is missing to use them."""

    machine: Machine
    band: Band
    unknown: tuple[str, ...]  # figures that a point needs and nobody has published
    no_format: bool  # no rate for the math that the formats ask for
    plan: Plan | None = None  # tiers and the policy that fills them; None: all in the main memory


def weight_bytes(name: str) -> float:
    """Bytes of one weight, block scales included."""
    return FORMAT_BITS[check_format(name)][0] / 8


def element_bytes(name: str) -> float:
    """Bytes of one activation or cache element, block scales included."""
    return FORMAT_BITS[check_format(name)][1] / 8


def check_format(name: str, key: str = "precision") -> str:
    """The name itself if it is a known format."""
    if name not in FORMAT_BITS:
        raise BadInput(f"{key}={name}: no such format; {closest(str(name), FORMAT_BITS)}")
    return name


def flops_of(hardware: Hardware, unit: str) -> float:
    """Dense FLOP/s of a math unit, NaN where the machine has none or nobody has published it."""
    rate = getattr(hardware, f"{unit}_flops")
    return NAN if rate is None else float(rate)


def math_unit(weights: str, activations: str, hardware: Hardware) -> str:
    """The unit that multiplies two formats: that of the wider one if the machine has it, else bf16.

    Narrow weights on a machine without their format are widened before the multiplication: they save bytes, not
    math (weight-only quantization).
    """
    units = [FORMAT_MATH[weights], FORMAT_MATH[activations]]
    known = [u for u in units if u is not None] or ["bf16"]
    widest = max(known, key=lambda u: _WIDTH[u])
    if {"int8", "fp8"} <= set(known):
        widest = "bf16"
    return widest if flops_of(hardware, widest) == flops_of(hardware, widest) else "bf16"


def attention_unit(kv: str, hardware: Hardware) -> str:
    """fp8 where the cache has 8 bits or fewer and the machine computes in fp8, else bf16.

    A machine without either computes an int8 cache in int8.
    """
    narrow = FORMAT_BITS[kv][1] <= 8.25
    if narrow and flops_of(hardware, "fp8") == flops_of(hardware, "fp8"):
        return "fp8"
    return "int8" if kv == "int8" and hardware.bf16_flops is None and hardware.int8_flops is not None else "bf16"


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {
            k: _merge(base.get(k), over[k]) if k in over else base[k]
            for k in (*base, *(k for k in over if k not in base))
        }
    return base if over is None else over


def relative_of(efficiency: Mapping[str, Any], generation: str | None, vendor: str | None = None) -> str | None:
    """The measured generation whose constants a machine takes: its own, else the newest of its vendor, else none.

    Newest by the `year` that the preset gives each generation; of equal years the one that is named last. None: the
    machine takes the constants common to all chips.
    """
    known: Mapping[str, Any] = efficiency.get("generations") or {}
    if generation is not None and generation in known:
        return generation
    kin = [name for name, own in known.items() if vendor is not None and (own or {}).get("vendor") == vendor]
    return max(kin, key=lambda name: (known[name]["year"], kin.index(name))) if kin else None


def efficiency_for(efficiency: Mapping[str, Any], generation: str | None, vendor: str | None = None) -> dict[str, Any]:
    """The constants of an efficiency preset for one chip generation: the common ones, then its own on top.

    A generation without constants of its own takes its relative's (see `relative_of`).
    """
    own = (efficiency.get("generations") or {}).get(relative_of(efficiency, generation, vendor) or "", {})
    merged = _merge({k: v for k, v in efficiency.items() if k != "generations"}, own)
    assert isinstance(merged, dict)
    return merged


def band_of(efficiency: Mapping[str, Any], generation: str | None, vendor: str | None = None) -> Band:
    """The error bands of a machine, of `serving.band` of a preset; a preset without has none.

    `measured` where its generation was fitted, `inherited` where only others of its maker were, `unrelated` where
    nothing of its maker was. A preset with bands of the time per token alone (`undrafted`, `drafted`, `inherited`)
    gives throughput the inverse.
    Source: residuals of end-to-end points that the constants were not fitted on, see `sweep.calibration.bands`.
    """
    relative = relative_of(efficiency, generation, vendor)
    inherited = relative is None or relative != generation
    said = (efficiency.get("serving") or {}).get("band")
    if not said:
        return Band(relative=relative, inherited=inherited)
    if "undrafted" in said:
        said = _of_times(said)
    level = said.get("measured") or {}
    if inherited:
        level = said.get("inherited") or level
        level = level if relative is not None else said.get("unrelated") or level
    serving = efficiency["serving"]
    prefill, launches = common(serving.get("first", NAN)), serving.get("launch_s") or {}
    alone_s = float((serving.get("first_s") or {}).get("default", NAN)) / prefill
    launch_s = float(launches.get("default", 0.0)) / prefill
    return Band(
        relative=relative,
        inherited=inherited,
        factors={m: {k: (float(v[0]), float(v[1])) for k, v in kinds.items()} for m, kinds in level.items()},
        frontend_s={
            "prefill": prefill,
            "aggregated": alone_s,
            "disaggregated": alone_s * float(serving.get("handoff", NAN)),
        },
        launch_s=(launch_s, launch_s * float(launches.get("experts", 1.0))),
    )


def common(value: Any) -> float:
    """A constant of all services; of one that a preset of version 0.1 divides further, the first."""
    return float(next(iter(value.values())) if isinstance(value, Mapping) else value)


def _of_times(said: Mapping[str, Any]) -> dict[str, Any]:
    """Bands of all levels from those of the time per token alone."""

    def of(plain: str, drafted: str) -> dict[str, Any]:
        a, b = said[plain], said[drafted]
        rate = [1.0 / a[1], 1.0 / a[0]]
        return {
            "tpot": {"undrafted": a, "drafted": b},
            "tok_s_gpu": {"aggregated": rate, "drafted": [1.0 / b[1], 1.0 / b[0]], "disaggregated": rate},
        }

    return {"measured": of("undrafted", "drafted"), "inherited": of("inherited", "inherited")}


def kernel_constants(kind: Mapping[str, Any], unit: str, weights: str | None) -> dict[str, Any]:
    """The constants of one kind of kernel for a math unit and a weight format.

    The common ones; on top those of the unit (an int8 unit without any takes those of fp8); then those of the format
    where the unit multiplies it (`fp8_block`), or, where narrower weights are widened first, those of `weight_only` and
    of the pair (`mxfp4_fp8`).
    """
    own: Any = {key: v for key, v in kind.items() if not isinstance(v, Mapping)}
    own = _merge(own, kind.get(unit, kind.get("fp8") if unit == "int8" else None))
    if weights is not None:
        for name in (weights,) if FORMAT_MATH[weights] == unit else ("weight_only", f"{weights}_{unit}"):
            own = _merge(own, kind.get(name))
    assert isinstance(own, dict)
    return own


def resolve(
    hardware: Hardware,
    precision: Precision,
    efficiency: Mapping[str, Any],
    *,
    generation: str | None = None,
    vendor: str | None = None,
    plan: Plan | None = None,
    cut: bool = True,
) -> Resolved:
    """Rates of every kind of kernel and link for one machine, one set of formats and one efficiency preset.

    Args:
        hardware: dense peaks, bandwidths, capacity (SI units, one direction).
        precision: format names.
        efficiency: an efficiency preset (`conf/efficiency/*.yaml`) as nested mappings.
        generation: label of the chip's generation, for constants that differ between generations.
        vendor: its maker, for the relative of a generation that nobody has measured.
        plan: where the bytes live; the fastest tier in use is then the memory that rates are those of.
        cut: no share of a peak is above 1. A fit that multiplies rates takes them uncut, and cuts afterwards.
    Source: section 1 of the cost model for formats; measured shares from operator tables, see the preset.
    """
    e = efficiency_for(efficiency, generation, vendor)
    p = precision
    for key in ("weights", "activations", "kv", "output", "combine", "head"):
        check_format(getattr(p, key), f"precision.{key}")
    weights_attn, weights_ffn = p.weights_attn or p.weights, p.weights_ffn or p.weights
    dispatch = p.dispatch or p.activations
    for key, name in (("weights_attn", weights_attn), ("weights_ffn", weights_ffn), ("dispatch", dispatch)):
        check_format(name, f"precision.{key}")
    q = 1.0 if p.quantized_fraction is None else float(p.quantized_fraction)
    hbm = NAN if hardware.hbm_bytes_per_s is None else float(hardware.hbm_bytes_per_s)
    if plan is not None:
        hbm = plan.bytes_per_s
    missing_math = False

    def factors(kind: str, unit: str, weights: str | None) -> dict[str, float]:
        """What the generation's own measurements multiply a kind's rates and floor by."""
        return {**FACTORS, **kernel_constants((e.get("factors") or {}).get(kind) or {}, unit, weights)}

    def rate(kind: str, unit: str, weights: str | None = None, mix: float = 1.0) -> OpRate:
        nonlocal missing_math
        k = kernel_constants(e["kernels"][kind], unit, weights)
        own = factors(kind, unit, weights)
        peak = flops_of(hardware, unit)
        wide = flops_of(hardware, "bf16")
        if mix < 1.0:  # the share that stayed in bf16 computes in bf16
            peak = 1.0 / (mix / peak + (1.0 - mix) / wide)
        missing_math = missing_math or peak != peak
        # factors of separate fits multiply; no share of a peak is above 1
        slow = k.get("served", 1.0)
        math = k["math"] * e.get("math", 1.0) * own["math"] / slow
        memory = e.get("memory", 1.0) * own["memory"] / slow
        most = 1.0 if cut else float("inf")
        return OpRate(
            flops_per_s=peak * min(math, most),
            read_bytes_per_s=hbm * min(k["read"] * memory, most),
            input_bytes_per_s=hbm * min(k.get("input", k["read"]) * memory, most),
            write_bytes_per_s=hbm * min(k.get("write", k["read"]) * memory, most),
            t0_s=k["t0_s"] * e.get("floor", 1.0) * own["floor"] * slow,
            chain_s=k.get("chain_s", 0.0),
            overlap=k["overlap"],
        )

    unit_attn = math_unit(weights_attn, p.activations, hardware)
    unit_ffn = math_unit(weights_ffn, p.activations, hardware)
    unit_head = math_unit(p.head, p.activations, hardware)
    unit_kv = attention_unit(p.kv, hardware)

    up = hardware.link_bytes_per_s if hardware.link_bytes_per_s is not None else hardware.host_link_bytes_per_s
    out = hardware.scaleout_bytes_per_s

    def link(kind: str) -> Link:
        k = {**e["links"]["reduce"], **(e["links"].get(kind) or {})}
        own = {**FACTORS, **((e.get("factors") or {}).get(f"{kind}_link") or {})}
        floor = e.get("floor_link", 1.0) * own["floor"]
        return Link(
            bytes_per_s=(NAN if up is None else float(up)) * min(k["share"] * own["share"], 1.0),
            t0_s=k["t0_s"] * floor,
            t0_rank_s=k["t0_rank_s"] * floor,
            one_shot_s=k.get("one_shot_s", k["t0_s"]) * floor,
            one_shot_rank_s=k.get("one_shot_rank_s", k["t0_rank_s"]) * floor,
            scaleout_bytes_per_s=(NAN if out is None else float(out)) * k["scaleout_share"],
            scaleout_t0_s=k["scaleout_t0_s"],
        )

    capacity = NAN if hardware.hbm_bytes is None else float(hardware.hbm_bytes)
    reserved = capacity
    if plan is not None:
        capacity, reserved = plan.capacity_bytes, plan.reserved_bytes
    tiles = tuple(Tile(m=float(m), n=float(n), rate=float(r)) for m, n, r in e["tiles"])
    machine = Machine(
        attn_weight=q * weight_bytes(weights_attn) + (1 - q) * 2.0,
        ffn_weight=q * weight_bytes(weights_ffn) + (1 - q) * 2.0,
        head_weight=weight_bytes(p.head),
        act=element_bytes(p.activations),
        kv=element_bytes(p.kv),
        out=element_bytes(p.output),
        dispatch=element_bytes(dispatch),
        combine=element_bytes(p.combine),
        gemm_attn=rate("gemm", unit_attn, weights_attn, mix=q),
        gemm_ffn=rate("gemm", unit_ffn, weights_ffn, mix=q),
        gemm_head=rate("gemm", unit_head),
        experts=rate("experts", unit_ffn, weights_ffn, mix=q),
        attention=rate("attention", unit_kv),
        mla=rate("mla", unit_kv),
        prefill=rate("prefill", unit_kv),
        state=rate("state", "bf16" if hardware.bf16_flops is not None else unit_ffn),  # no math: bytes alone
        tiles=tiles,
        n_sm=1.0 if hardware.n_sm is None else float(hardware.n_sm),
        reduce=link("reduce"),
        gather=link("gather"),
        exchange=link("exchange"),
        experts_link=link("experts"),
        hop=link("hop"),
        domain=float(hardware.domain or 1),
        in_network=float(bool(hardware.in_network_reduce)),
        hbm_bytes=capacity,
        reserve_bytes=e["reserve_fraction"] * reserved,
        layer_s=e["layer_s"],
        host_s=e["host_s"],
        request_s=e["request_s"],
        elementwise=e["elementwise"],
        imbalance=e["imbalance"],
        imbalance_off=e["imbalance_off"],
        peak_flops=flops_of(hardware, math_unit(p.weights, p.activations, hardware)),
        peak_bytes_per_s=hbm,
        watts=NAN if hardware.watts is None else float(hardware.watts),
        usd_per_hour=NAN if hardware.usd_per_hour is None else float(hardware.usd_per_hour),
    )
    unknown = tuple(key for key in ("hbm_bytes", "hbm_bytes_per_s") if getattr(hardware, key) is None)
    if plan is not None:
        unknown = plan.unknown
    band = band_of(efficiency, generation, vendor)
    return Resolved(machine=machine, band=band, unknown=unknown, no_format=missing_math, plan=plan)
