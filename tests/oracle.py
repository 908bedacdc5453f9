"""An independent model of one design point: plain Python floats, no array library, nothing imported from `sweep`.

It is written from the specification of the cost model alone (sections 1 to 8 of `cost_model.md`), as slowly and as
literally as possible, with loops over chunks and over operations instead of closed forms. Its only purpose is to keep
the vectorised implementation honest: two programs that share no line and still agree on random points are unlikely to
share a mistake. `evaluate` takes one point as five dictionaries and returns the columns of the schema and `ops`.

Units are SI: bytes, FLOPs (one multiply-add is 2), seconds, tokens. Link rates are per GPU and direction.
"Stage" means pipeline stage, "group" the GPUs that share the requests of one attention replica (tpa x kvp of them).

Where the specification leaves a choice, the choice is marked "CHOICE" next to the line that makes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

NAN = float("nan")

# format: (bits per element as weights, as activations or cache, width of a bare element, unit that multiplies it)
FORMATS: dict[str, tuple[float, float, float, str | None]] = {
    "fp32": (32.0, 32.0, 32.0, "fp32"),
    "bf16": (16.0, 16.0, 16.0, "bf16"),
    "fp8": (8.0, 8.0, 8.0, "fp8"),
    "fp8_block": (8.0 + 32.0 / 16384.0, 8.25, 8.0, "fp8"),
    "mxfp8": (8.25, 8.25, 8.0, "fp8"),
    "int8": (8.0, 8.0, 8.0, "int8"),
    "fp4": (4.0, 4.0, 4.0, "fp4"),
    "nvfp4": (4.5, 4.5, 4.0, "fp4"),
    "mxfp4": (4.25, 4.25, 4.0, "fp4"),
    "int4": (4.125, 4.125, 4.0, None),
}

# A message that is neither dispatch nor combine is bf16; Helix sends two fp32 statistics per token and head.
ACT = 2.0
STATISTICS = 8.0

# CHOICE: norms and `extra_params` are held as well as counted: bf16, norms copied on every GPU, extra_params cut over tpa (section 2: "their
# parameters count"; the table of section 1 has no row for them).
HOLD_NORMS = True

PARTS = ("math", "weight_read", "kv_read", "activation", "comm", "latency")

DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {
        "n_layers": None, "d_model": None, "n_heads": None, "n_kv_heads": None, "head_dim": None, "v_head_dim": None, "d_ff": 0,
        "ffn_matrices": 3, "vocab": None, "tied_embeddings": False,
        "n_experts": 0, "top_k": 0, "d_expert": 0, "n_shared_experts": 0, "d_shared": None, "n_dense_layers": None, "n_moe_layers": None,
        "latent_ratio": 1,
        "q_lora_rank": 0, "kv_lora_rank": 0, "qk_nope_dim": 0, "qk_rope_dim": 0,
        "n_full_layers": None, "n_window_layers": 0, "window": 0, "window_kv_heads": None, "window_head_dim": None,
        "window_v_head_dim": None, "n_linear_layers": 0, "state_bytes_per_layer": 0, "linear_in_width": 0, "linear_out_width": 0,
        "sparse_top_k": 0, "index_heads": 0, "index_dim": 0, "n_index_layers": None, "attn_gate": False, "k_equals_v": False,
        "extra_params": 0, "max_context": None, "n_draft": 0, "acceptance": 0, "draft_cost": 0,
    },
    "hardware": {
        "fp32_flops": None, "bf16_flops": None, "fp8_flops": None, "int8_flops": None, "fp4_flops": None, "hbm_bytes": None,
        "hbm_bytes_per_s": None, "n_sm": None, "domain": 1, "link_bytes_per_s": None, "host_link_bytes_per_s": None,
        "scaleout_bytes_per_s": None, "link_latency_s": None, "scaleout_latency_s": None, "in_network_reduce": False,
        "watts": None, "usd_per_hour": None,
        "sram_bytes": None, "sram_bytes_per_s": None, "host_bytes": None, "host_bytes_per_s": None, "nvme_bytes": None,
        "nvme_bytes_per_s": None, "remote_bytes": None, "remote_bytes_per_s": None,
    },
    "precision": {
        "weights": "bf16", "weights_attn": None, "weights_ffn": None, "activations": "bf16", "kv": "bf16", "output": "bf16",
        "dispatch": None, "combine": "bf16", "head": "bf16", "quantized_fraction": 1,
    },
    "layout": {
        "tpa": 1, "kvp": 1, "dpa": 1, "tpf": None, "ep": None, "pp": 1, "wo_shard": "n", "ffn_tied": False, "overlap": 0, "hop_b": False,
        "two_batch": False, "redundant_slots": 0, "balanced": True, "prefill_chunk": None, "dynamic_chunks": False, "microbatches": None,
    },
    "workload": {
        "isl": 1024, "osl": 1024, "context": None, "batch": 64, "prefix_hit": 0, "routing_skew": 0, "ttft_max_s": None,
        "tpot_max_s": None,
    },
}  # fmt: skip

CLASSES = ("weights", "experts", "kv", "activations", "prefix")

# The roofline itself, in the form of a preset file. Kernel constants may hold a dictionary per math unit on top.
_PLAIN = {"math": 1.0, "read": 1.0, "write": 1.0, "t0_s": 0.0, "input": 1.0, "overlap": 1.0, "chain_s": 0.0}
_WIRE = {"share": 1.0, "t0_s": 0.0, "t0_rank_s": 0.0, "scaleout_share": 1.0, "scaleout_t0_s": 0.0}
IDEAL: dict[str, Any] = {
    "math": 1.0,
    "memory": 1.0,
    "floor": 1.0,
    "floor_link": 1.0,
    "tiles": [],
    "kernels": {kind: _PLAIN for kind in ("gemm", "experts", "attention", "mla", "prefill", "state")},
    "links": {kind: _WIRE for kind in ("reduce", "gather", "exchange", "experts", "hop")},
    "layer_s": 0.0,
    "host_s": 0.0,
    "request_s": 0.0,
    "elementwise": 0.0,
    "reserve_fraction": 0.0,
    "imbalance": 0.0,
}
LINK_OF = {
    "all_gather": "gather",
    "reduce_scatter": "gather",
    "all_to_all": "exchange",
    "dispatch": "experts",
    "combine": "experts",
    "pipeline_hop": "hop",
}


# ---------------------------------------------------------------------------------------------------------------------
# small helpers


def ceil(x: float) -> float:
    """Round up, forgiving the rounding error of a quotient; NaN stays NaN."""
    if math.isnan(x):
        return NAN
    return float(math.ceil(x - 1e-9 * max(1.0, abs(x))))


def floor(x: float) -> float:
    """Round down; NaN stays NaN."""
    return NAN if math.isnan(x) else float(math.floor(x))


def larger(a: float, b: float) -> float:
    """The maximum that never hides a NaN."""
    return NAN if math.isnan(a) or math.isnan(b) else max(a, b)


def number(x: Any) -> float:
    """A float, NaN where a figure is missing."""
    return NAN if x is None else float(x)


def record(name: str, given: dict[str, Any]) -> SimpleNamespace:
    """A record with the defaults filled in. An explicit null of a field whose default is a value takes the default."""
    fields = dict(DEFAULTS[name])
    for key, value in given.items():
        if key not in fields:
            raise KeyError(f"{name}.{key}")
        if value is not None:
            fields[key] = value
    return SimpleNamespace(**fields)


def bytes_of(fmt: str, as_weights: bool = False) -> float:
    """Bytes per element, block scales included."""
    return FORMATS[fmt][0 if as_weights else 1] / 8.0


def distinct_experts(n_experts: float, top_k: float, tokens: float, skew: float) -> float:
    """Experts that at least one of `tokens` tokens selects (section 4)."""
    if not skew:
        return n_experts * (1.0 - (1.0 - top_k / n_experts) ** tokens)
    weights = [(i + 1.0) ** -skew for i in range(int(n_experts))]
    total = sum(weights)
    # CHOICE: an expert's chance per token is top_k times its Zipf share, at most 1 (the excess is not dealt out again).
    return sum(1.0 - (1.0 - min(1.0, top_k * w / total)) ** tokens for w in weights)


def expected_tokens(acceptance: float, n_draft: float) -> float:
    """Tokens that a verification step yields: the sum of a^i for i = 0..g (section 6)."""
    return sum(acceptance**i for i in range(int(n_draft) + 1))


def crossover_m(a: float, b: float, c: float, n: float, k: float, machine_intensity: float) -> float | None:
    """The M from which on a GEMM is bound by math (section 2); None: never."""
    room = 2.0 / machine_intensity - a / n - c / k
    return b / room if room > 0 else None


def hop_b_time(requests: float, t_attn: float, t_comm: float) -> float:
    """Attention and all-to-all of all requests when one request's message hides behind the next one's attention."""
    return t_attn + (requests - 1.0) * max(t_attn, t_comm) + t_comm


# ---------------------------------------------------------------------------------------------------------------------
# a point with everything that is derived from its fields

Made = TypeVar("Made", bound=Callable[..., Any])


def once(method: Made) -> Made:
    """A method of a point that computes once what it is asked for again: chunks of a prompt differ in attention alone.

    Callers get a copy. What is known is forgotten when the rates change at which memory is read.
    """

    @functools.wraps(method)
    def ask(self: Point, *args: Any, **named: Any) -> Any:
        key = (method.__name__, args, tuple(named.items()))
        if key not in self.known:
            self.known[key] = method(self, *args, **named)
        found = self.known[key]
        return None if found is None else dict(found)

    return ask  # type: ignore[return-value]


class Point:
    """The five records, what they imply, and the reasons against the point as they turn up."""

    def __init__(
        self,
        model: dict[str, Any],
        hardware: dict[str, Any],
        precision: dict[str, Any],
        layout: dict[str, Any],
        workload: dict[str, Any],
        efficiency: dict[str, Any] | None,
        placement: dict[str, Any] | None = None,
    ) -> None:
        self.model = m = record("model", model)
        self.hw = hw = record("hardware", hardware)
        self.prec = record("precision", precision)
        self.lay = lay = record("layout", layout)
        self.load = record("workload", workload)
        self.eff: dict[str, Any] = efficiency or IDEAL
        self.reasons: set[str] = set()
        self.known: dict[Any, Any] = {}  # see `once`

        # --- model (section 1)
        if any(x is None for x in (m.n_layers, m.d_model, m.n_heads, m.vocab)):
            self.reasons.add("unknown_figure")
        self.L, self.d, self.H, self.vocab = (number(x) for x in (m.n_layers, m.d_model, m.n_heads, m.vocab))
        self.mla = m.kv_lora_rank > 0
        self.hd = self.d / self.H if m.head_dim is None else float(m.head_dim)
        self.v = self.hd if m.v_head_dim is None else float(m.v_head_dim)
        self.n_kv = self.H if m.n_kv_heads is None else float(m.n_kv_heads)
        if self.mla:
            self.hd, self.n_kv = float(m.qk_nope_dim + m.qk_rope_dim), 1.0
            if m.v_head_dim is None:
                self.v = float(m.qk_nope_dim)
        self.w_hd = self.hd if m.window_head_dim is None else float(m.window_head_dim)
        same_width = m.window_head_dim is None or float(m.window_head_dim) == self.hd
        w_v = self.v if same_width else float(m.window_head_dim)
        self.w_v = w_v if m.window_v_head_dim is None else float(m.window_v_head_dim)
        self.w_kv = self.n_kv if m.window_kv_heads is None else float(m.window_kv_heads)
        self.n_window, self.n_linear = float(m.n_window_layers), float(m.n_linear_layers)
        self.n_full = self.L - self.n_window - self.n_linear if m.n_full_layers is None else float(m.n_full_layers)
        moe = m.n_experts > 0
        self.n_dense = (0.0 if moe else self.L) if m.n_dense_layers is None else float(m.n_dense_layers)
        self.n_moe = (self.L - self.n_dense if moe else 0.0) if m.n_moe_layers is None else float(m.n_moe_layers)
        if not moe:
            self.n_moe = 0.0
        self.d_shared = float(m.n_shared_experts * m.d_expert if m.d_shared is None else m.d_shared)
        self.d_latent = self.d / m.latent_ratio
        self.latent = m.latent_ratio != 1 and self.n_moe > 0
        self.ups = float(m.ffn_matrices - 1)  # matrices that widen: up and gate, or up alone
        indexed = m.index_dim > 0 and m.index_heads > 0
        self.n_index = (self.n_full if indexed else 0.0) if m.n_index_layers is None else float(m.n_index_layers)
        if not indexed:
            self.n_index = 0.0
        self.g = float(m.n_draft)

        # --- layout (section 1)
        self.tpa, self.kvp, self.dpa, self.pp = float(lay.tpa), float(lay.kvp), float(lay.dpa), float(lay.pp)
        self.N = self.tpa * self.kvp * self.dpa
        self.gpus = self.N * self.pp
        self.ep = 1.0 if lay.ep is None else float(lay.ep)
        if lay.ffn_tied:
            self.tpf = self.tpa if lay.tpf is None else float(lay.tpf)
            if self.dpa != 1 or self.ep != 1 or self.tpf != self.tpa:
                self.reasons.add("not_divisible")
        else:
            self.tpf = self.N / self.ep if lay.tpf is None else float(lay.tpf)
            if self.tpf * self.ep != self.N or self.tpf != int(self.tpf):
                self.reasons.add("not_divisible")
        # GPUs over which a dense FFN (and the shared experts) is cut, and its rounded widths
        self.dense_split = self.tpf if (self.dpa > 1 or lay.ffn_tied) else self.N
        rounded = ceil if self.dpa == 1 else (lambda x: x)
        self.ff_width = rounded(m.d_ff / self.dense_split)
        self.shared_width = rounded(self.d_shared / self.dense_split)
        self.wo_split = self.tpa if lay.wo_shard == "tpa" else self.tpa * self.kvp

        def divides(a: float, b: float) -> bool:
            return b % a == 0

        if not math.isnan(self.H) and not divides(self.tpa, self.H):
            self.reasons.add("not_divisible")
        if self.ep > (m.n_experts if self.n_moe > 0 else 1):
            self.reasons.add("not_divisible")
        if self.n_moe > 0 and not divides(self.tpf, m.d_expert):
            self.reasons.add("not_divisible")
        if self.dpa > 1:
            if self.n_dense > 0 and not divides(self.tpf, m.d_ff):
                self.reasons.add("not_divisible")
            if self.n_moe > 0 and not divides(self.tpf, self.d_shared):
                self.reasons.add("not_divisible")
        if self.pp > self.L:
            self.reasons.add("not_divisible")

        # --- workload (sections 1, 3, 6)
        w = self.load
        self.B = float(w.batch)
        # more microbatches than requests would only be empty ones
        self.mb = min(self.pp if lay.microbatches is None else float(lay.microbatches), self.B)
        self.b = ceil(self.B / self.mb)
        if w.context is None:
            self.prompt, self.S, self.longest = float(w.isl), w.isl + w.osl / 2.0, float(w.isl + w.osl)
        else:
            self.prompt = self.S = self.longest = float(w.context)
        self.osl = float(w.osl)

        # --- machine
        self.policy = placement
        if placement is None:
            self.bw = self.figure(hw.hbm_bytes_per_s)
            self.capacity = self.reserve_of = self.figure(hw.hbm_bytes)
            self.rates = dict.fromkeys(("weights", "experts", "kv", "activations"), self.bw)
        else:
            self.shelves = self.find_shelves()  # name: (bytes, bytes/s)
            used = {t for c in CLASSES for t, _ in self.wishes(c)} & set(self.shelves)
            self.bw = max(self.shelves[t][1] for t in used)
            self.capacity = sum(self.shelves[t][0] for t in used)
            main = "hbm" if "hbm" in used else max(used, key=lambda t: self.shelves[t][0])
            self.reserve_of, self.reserve_in = self.shelves[main][0], main
        self.domain = float(hw.domain)
        self.kv_b = bytes_of(self.prec.kv)
        self.act_b = bytes_of(self.prec.activations)
        self.out_b = bytes_of(self.prec.output)
        self.w_attn = self.prec.weights_attn or self.prec.weights
        self.w_ffn = self.prec.weights_ffn or self.prec.weights
        self.imbalance = 1.0 + float(self.eff["imbalance"]) if self.ep > 1 else 1.0

    # --- tiers of memory: a placement is the plain mapping of its file

    def find_shelves(self) -> dict[str, tuple[float, float]]:
        """Size and bandwidth of every tier whose figures are known; behind a link, the link may be the slower."""
        hw, out = self.hw, {}
        for name, link in (
            ("sram", None),
            ("hbm", None),
            ("host", hw.host_link_bytes_per_s),
            ("nvme", hw.host_link_bytes_per_s),
            ("remote", hw.scaleout_bytes_per_s),
        ):
            size, rate = getattr(hw, f"{name}_bytes"), getattr(hw, f"{name}_bytes_per_s")
            if rate is None and name in ("host", "remote"):
                rate = link
            if size is not None and rate is not None:
                out[name] = (float(size), float(rate if link is None else min(rate, link)))
        return out

    def wishes(self, of: str) -> list[tuple[str, float]]:
        """Tiers that a class may live in, first choice first, and how much of it at most."""
        assert self.policy is not None
        said = self.policy.get(of)
        if said is None:
            return self.wishes("weights") if of == "experts" else []
        entries = [said] if isinstance(said, str | dict) else said
        flat: list[tuple[str, float]] = []
        for entry in entries:
            flat += [(entry, 1.0)] if isinstance(entry, str) else list(entry.items())
        return flat

    def shelve(self, sizes: dict[str, float]) -> tuple[dict[str, dict[str, float]], float]:
        """Bytes of each class per tier, and how many bytes find no room at all."""
        assert self.policy is not None
        free = {name: size for name, (size, _) in self.shelves.items()}
        free[self.reserve_in] -= self.eff["reserve_fraction"] * self.reserve_of
        lies: dict[str, dict[str, float]] = {}
        homeless = 0.0
        order = list(self.policy.get("order") or CLASSES)
        for c in [*order, *(c for c in CLASSES if c not in order)]:
            todo, lies[c] = sizes[c], {}
            for tier, most in self.wishes(c):
                if tier in free:
                    here = min(todo, free[tier], most * sizes[c])
                    lies[c][tier] = here
                    free[tier] -= here
                    todo -= here
            homeless += todo
        return lies, homeless

    def read_from(self, sizes: dict[str, float]) -> None:
        """Set the rate at which each class is read when these bytes are held."""
        assert self.policy is not None
        self.known.clear()
        lies, _ = self.shelve(sizes)
        slowest = min(self.shelves[t][1] for c in CLASSES for t, _ in self.wishes(c) if t in self.shelves)
        for c in ("weights", "experts", "kv", "activations"):
            seconds = [lies[c][t] / self.shelves[t][1] for t in lies[c]]
            seconds.append((sizes[c] - sum(lies[c].values())) / slowest)
            whole = max(seconds) if self.policy.get("reads") == "overlapped" else sum(seconds)
            self.rates[c] = sizes[c] / whole if sizes[c] > 0 else self.bw

    def all_sizes(self, requests: float, tokens: float) -> dict[str, float]:
        """Bytes of each class on one GPU with so many requests and tokens of one attention group."""
        assert self.policy is not None
        kv = requests * self.request_cache()
        return {
            "weights": self.held_weights(routed=False),
            "experts": self.held_weights() - self.held_weights(routed=False),
            "kv": kv,
            "activations": 8.0 * self.d * tokens,
            "prefix": float(self.policy.get("idle_per_running") or 0) * kv,
        }

    def tiered_prefill(self) -> tuple[float, list[dict[str, Any]]]:
        """Time to the first token with a prefix that waits in another tier: read it back, or compute it again."""
        assert self.policy is not None
        hit = float(self.load.prefix_hit)
        longest, self.longest = self.longest, self.prompt * hit
        prefix = self.request_cache() if hit > 0 else 0.0
        self.longest = longest
        sizes = self.all_sizes(1.0, 1.0) | {"prefix": prefix}
        self.rates = {}
        self.read_from(sizes)
        rest, ops = self.prefill(hit)
        if not hit or not self.wishes("prefix"):
            return rest, ops
        lies, _ = self.shelve(sizes)
        home = next(t for t, _ in self.wishes("kv") if t in self.shelves)
        share = self.constants("prefill", self.attention_unit(), None)["read"]
        times = [size / (self.shelves[t][1] * share) for t, size in lies["prefix"].items() if t != home]
        back = max(times, default=0.0) if self.policy.get("reads") == "overlapped" else sum(times)
        how = self.policy.get("reload") or "serial"
        total = rest + back if how == "serial" else max(rest, back)
        if how == "fastest":
            total = min(total, self.prefill(0.0)[0])
        return total, ops

    # --- figures

    def figure(self, x: Any) -> float:
        """A figure that this point needs."""
        if x is None:
            self.reasons.add("unknown_figure")
        return number(x)

    def peak(self, unit: str | None) -> float:
        """The dense rate of a unit; where the machine lacks it, that of bf16."""
        rate = getattr(self.hw, f"{unit}_flops") if unit else None
        if rate is None:
            rate = self.hw.bf16_flops
        if rate is None:
            self.reasons.add("no_format")
        return number(rate)

    def gemm_peak(self, weights: str) -> float:
        """The rate of the wider of weights and activations (section 1). int4 is weight-only: activations decide."""
        acts = self.prec.activations
        if FORMATS[weights][3] is None:
            return self.peak(FORMATS[acts][3])
        # CHOICE: widths are compared as bits of a bare element; of equal ones (fp8 and int8) the weights' unit runs.
        wider = acts if FORMATS[acts][2] > FORMATS[weights][2] else weights
        return self.peak(FORMATS[wider][3])

    def gemm_unit(self, which: str) -> str:
        """The unit that a GEMM of one kind of weights runs on, bf16 where the machine lacks it."""
        weights = {"attn": self.w_attn, "ffn": self.w_ffn, "head": self.prec.head}[which]
        acts = self.prec.activations
        wider = acts if FORMATS[weights][3] is None or FORMATS[acts][2] > FORMATS[weights][2] else weights
        unit = FORMATS[wider][3] or "bf16"
        return unit if getattr(self.hw, f"{unit}_flops") is not None else "bf16"

    def attention_unit(self) -> str:
        """fp8 or bf16, as `attention_peak`."""
        return "fp8" if FORMATS[self.prec.kv][2] <= 8 and self.hw.fp8_flops is not None else "bf16"

    @once
    def constants(self, kind: str, unit: str, weights: str | None) -> dict[str, float]:
        """What a kind of kernel reaches on a unit: shares of the peaks, and its floor in seconds.

        A weight format may have constants on top: its own where the unit multiplies it, else those of weight-only GEMMs.
        """
        own = self.eff["kernels"][kind]
        of_unit = own.get("fp8", {}) if unit == "int8" and "int8" not in own else own.get(unit, {})
        flat = {"chain_s": 0.0} | {k: v for k, v in own.items() if not isinstance(v, dict)} | of_unit
        if weights is not None:
            flat |= (
                own.get(weights, {})
                if FORMATS[weights][3] == unit
                else own.get("weight_only", {}) | own.get(f"{weights}_{unit}", {})
            )
        raw = self.eff.get("factors", {}).get(kind, {})
        own_factors = {k: v for k, v in raw.items() if not isinstance(v, dict)} | raw.get(unit, {})
        served = flat.get("served", 1.0)  # so many times longer inside a service than timed alone
        flat["math"] = min(1.0, flat["math"] / served * self.eff.get("math", 1.0) * own_factors.get("math", 1.0))
        flat = {"write": flat["read"], "input": flat["read"]} | flat
        for moved in ("read", "write", "input"):
            flat[moved] = min(1.0, flat[moved] / served * self.eff.get("memory", 1.0) * own_factors.get("memory", 1.0))
        flat["t0_s"] *= served * self.eff.get("floor", 1.0) * own_factors.get("floor", 1.0)
        return dict(flat)

    def attention_peak(self) -> float:
        """fp8 where the cache has 8-bit elements or narrower and the machine computes in fp8, else bf16."""
        # CHOICE: block scales do not make an 8-bit cache wider than 8 bits.
        if FORMATS[self.prec.kv][2] <= 8 and self.hw.fp8_flops is not None:
            return float(self.hw.fp8_flops)
        return self.peak("bf16")

    def weight_bytes(self, which: str) -> float:
        """Bytes per weight of one kind: attn, ffn (both mixed with bf16 by `quantized_fraction`) or head."""
        if which == "head":
            return bytes_of(self.prec.head, as_weights=True)
        q = float(self.prec.quantized_fraction)
        fmt = self.w_attn if which == "attn" else self.w_ffn
        return q * bytes_of(fmt, as_weights=True) + (1.0 - q) * 2.0

    def seconds_per_flop(self, which: str) -> float:
        """Math time per FLOP of a GEMM whose weights are of one kind."""
        if which == "head":
            return 1.0 / self.gemm_peak(self.prec.head)  # CHOICE: `quantized_fraction` is about `weights`, not `head`
        q = float(self.prec.quantized_fraction)
        per_flop = q / self.gemm_peak(self.w_attn if which == "attn" else self.w_ffn) if q > 0 else 0.0
        if q < 1:
            per_flop += (1.0 - q) / self.peak("bf16")
        return per_flop

    @once
    def wire(self, op: str) -> dict[str, float]:
        """Constants of the link that a collective uses."""
        kind = LINK_OF.get(op, "reduce")
        own = self.eff.get("factors", {}).get(f"{kind}_link", {})
        constants = self.eff["links"]["reduce"] | self.eff["links"].get(kind, {})
        constants["share"] = min(1.0, constants["share"] * own.get("share", 1.0))
        for name in ("t0_s", "t0_rank_s", "one_shot_s", "one_shot_rank_s"):
            if name in constants:
                constants[name] *= own.get("floor", 1.0)
        return constants

    def link_bw(self, op: str) -> float:
        """The scale-up link; without one, the link to the host."""
        rate = self.hw.link_bytes_per_s
        return self.figure(self.hw.host_link_bytes_per_s if rate is None else rate) * self.wire(op)["share"]

    def scaleout_bw(self, op: str) -> float:
        """The network between domains."""
        if self.hw.scaleout_bytes_per_s is None:
            self.reasons.add("over_domain")  # CHOICE: both reasons, the group is too large and the figure is missing
        return self.figure(self.hw.scaleout_bytes_per_s) * self.wire(op)["scaleout_share"]

    # --- operations

    def kernel(
        self,
        op: str,
        count: float,
        mnk: tuple[float | None, float | None, float | None],
        *,
        flops: float,
        per_flop: float,
        weight: float = 0.0,
        kv: float = 0.0,
        act_read: float = 0.0,
        write: float = 0.0,
        cache_write: float = 0.0,
        kind: str = "gemm",
        unit: str = "bf16",
        weights: str | None = None,
        chain: float = 0.0,
        keys: float = 0.0,
        tiled_flops: float = 0.0,
        crossover: float | None = None,
    ) -> dict[str, Any]:
        """Time of one kernel, and its share-out (sections 2 and 8)."""
        eff = self.constants(kind, unit, weights)
        t_math = larger(flops, tiled_flops) * per_flop / eff["math"] if flops else 0.0
        read = weight + kv + act_read
        held = self.rates[{"gemm": "weights", "experts": "experts"}.get(kind, "kv")]
        plain = self.rates["activations"]
        t_held = (weight + kv) / (held * eff["read"])
        t_act = act_read / (plain * eff["input"]) + write / (plain * eff["write"]) + cache_write / (held * eff["write"])
        t_mem = t_held + t_act
        write = write + cache_write
        shown_math, shown_mem = (1.0, 1.0 - eff["overlap"]) if t_math >= t_mem else (1.0 - eff["overlap"], 1.0)
        parts = {
            "math": t_math * shown_math,
            "weight_read": weight / (held * eff["read"]) * shown_mem,
            "kv_read": kv / (held * eff["read"]) * shown_mem,
            "activation": t_act * shown_mem,
            "comm": 0.0,
            "latency": eff["t0_s"] + keys * eff["chain_s"],
        }
        # one processor takes `chain` steps in order; it hides behind the roofline, or the roofline behind it
        steps, roof = chain * eff["chain_s"], sum(parts.values()) - parts["latency"]
        parts["latency"] += max(steps, roof) + (1.0 - eff["overlap"]) * min(steps, roof) - roof
        time = sum(parts.values())
        return {
            "op": op,
            "count": count,
            "m": mnk[0],
            "n": mnk[1],
            "k": mnk[2],
            "flops": flops,
            "weight_bytes": weight,
            "kv_bytes": kv,
            "read_bytes": read,
            "write_bytes": write,
            "comm_bytes": 0.0,
            "intensity": flops / (read + write) if read + write > 0 else None,
            "math_s": t_math,
            "memory_s": t_mem,
            "comm_s": 0.0,
            "floor_s": parts["latency"],
            "time_s": time,
            "crossover_m": crossover,
            "parts": parts,
            "hidden": None,
        }

    @once
    def gemm(
        self,
        op: str,
        count: float,
        m: float,
        n: float,
        k: float,
        which: str,
        times: float = 1.0,
        kind: str = "gemm",
    ) -> dict[str, Any]:
        """(M x K) times (K x N), `times` over with other weights each (heads, experts)."""
        w, per_flop = self.weight_bytes(which), self.seconds_per_flop(which)
        cross = None
        if n > 0 and k > 0:
            cross = crossover_m(self.act_b, w, self.out_b, n, k, 1.0 / (per_flop * self.bw))
        return self.kernel(
            op,
            count,
            (m, n, k),
            flops=2.0 * m * n * k * times,
            per_flop=per_flop,
            tiled_flops=self.tiled(m, n, k, times) if kind == "gemm" else 0.0,
            unit=self.gemm_unit(which),
            weights={"attn": self.w_attn, "ffn": self.w_ffn, "head": None}[which],
            chain=0.0 if op == "kv_up" else k,  # CHOICE: all keys of a prompt at once are never bound by one tile
            weight=n * k * w * times,
            act_read=m * k * self.act_b * times,
            write=m * n * self.out_b * times,
            kind=kind,
            crossover=cross,
        )

    def tiled(self, m: float, n: float, k: float, times: float) -> float:
        """FLOPs that the fastest tile makes of a GEMM: whole tiles in whole waves; fewer tiles than SMs split K."""
        best = math.inf
        sms = float(self.hw.n_sm or 1)
        for rows, columns, rate in self.eff["tiles"]:
            waves = math.ceil((m - 0.5) / rows) * math.ceil((n - 0.5) / columns) * times / sms
            waves = waves if waves < 1 else math.ceil(waves - 1e-3)
            best = min(best, 2.0 * k * rows * columns * sms * waves / rate)
        return best if best < math.inf else 0.0

    @once
    def message(
        self,
        op: str,
        pattern: str,
        count: float,
        m: float,
        n: float,
        stride: float = 1.0,
        hidden: str | None = None,
    ) -> dict[str, Any] | None:
        """A collective of `m` bytes over `n` GPUs (section 5); None for a group of one."""
        if n <= 1:
            return None
        wire, slow = self.wire(op), self.eff.get("floor_link", 1.0)
        n_in = max(1.0, min(n, self.domain / stride))
        n_out = n / n_in
        sent_in = sent_out = 0.0
        if pattern == "all_to_all":
            sent_in = m * (n_in - 1.0) / n
            sent_out = m * (n - n_in) / n
        else:
            passes = 2.0 if pattern == "all_reduce" else 1.0
            sent_in = passes * m * (n_in - 1.0) / n_in
            if pattern == "all_reduce" and self.hw.in_network_reduce and n_in > 1:
                sent_in = m  # CHOICE: the switches of the scale-up domain reduce, not those between domains
            sent_out = passes * (m / n_in) * (n_out - 1.0) / n_out
        seconds = 0.0
        latency = (wire["t0_s"] + wire["t0_rank_s"] * min(n, 16.0)) * slow
        if n_in > 1:
            seconds += sent_in / self.link_bw(op)
        if n > n_in:
            seconds += sent_out / self.scaleout_bw(op)
            latency += wire["scaleout_t0_s"]
        if pattern == "all_reduce" and n <= n_in:  # everybody sends everything, where that is faster
            once = m * (n - 1.0) / self.link_bw(op)
            start = wire.get("one_shot_s", wire["t0_s"]) + wire.get("one_shot_rank_s", wire["t0_rank_s"]) * min(n, 16.0)
            if once + start * slow < seconds + latency:
                return self.sent(op, count, m * (n - 1.0), once, start * slow, hidden)
        return self.sent(op, count, sent_in + sent_out, seconds, latency, hidden)

    @once
    def idle(self) -> dict[str, Any]:
        """The record of a kernel that does nothing."""
        return self.kernel("", 0.0, (None, None, None), flops=0.0, per_flop=0.0)

    def sent(
        self, op: str, count: float, sent: float, seconds: float, latency: float, hidden: str | None = None
    ) -> dict[str, Any]:
        """The record of a message."""
        row = self.idle()
        row["op"], row["count"] = op, count
        row["comm_bytes"] = sent
        row["comm_s"] = seconds
        row["floor_s"] = latency
        row["time_s"] = seconds + latency
        row["memory_s"] = 0.0
        row["parts"] = dict.fromkeys(PARTS, 0.0) | {"comm": seconds, "latency": latency}
        row["hidden"] = hidden
        return row

    def hop(self, tokens: float) -> dict[str, Any] | None:
        """Activations handed to the next pipeline stage."""
        if self.pp <= 1:
            return None
        m = tokens * self.d * ACT
        op, wire = "pipeline_hop", self.wire("pipeline_hop")
        inside = self.gpus <= self.domain
        bw = self.link_bw(op) if inside else self.scaleout_bw(op)
        latency = wire["t0_s"] * self.eff.get("floor_link", 1.0) + (0.0 if inside else wire["scaleout_t0_s"])
        return self.sent(op, self.pp - 1.0, m, m / bw, latency)

    # --- layers

    def cache_bytes(self, kind: str) -> float:
        """KV bytes per token and layer of the whole model: full (MLA or GQA) or window layers."""
        if self.mla:
            return (self.model.kv_lora_rank + self.model.qk_rope_dim) * self.kv_b
        if kind == "window":
            return self.w_kv * (self.w_hd + self.w_v) * self.kv_b
        if self.model.k_equals_v:
            return self.n_kv * self.hd * self.kv_b
        return self.n_kv * (self.hd + self.v) * self.kv_b

    def held_share(self, kind: str) -> float:
        """Share of the KV heads that a GPU holds: past tpa = heads the cache is duplicated."""
        heads = self.w_kv if kind == "window" and not self.mla else self.n_kv
        return ceil(heads / self.tpa) / heads

    def index_bytes(self) -> float:
        """Index keys per token and indexer layer; one set, on every tpa rank."""
        return self.model.index_dim * self.kv_b

    def attention_layer(
        self,
        kind: str,
        count: float,
        *,
        requests: float,
        tokens: float,
        projected: float,
        prefix: float | None,
    ) -> list[dict[str, Any] | None]:
        """Everything of full or window layers up to the residual stream.

        `tokens` are those of the group, `projected` those that this GPU projects; `prefix` is None in decode, and in
        prefill the tokens in the cache before the chunk.
        """
        m = self.model
        prefill = prefix is not None
        window = kind == "window"
        hd, v, n_kv = (self.w_hd, self.w_v, self.w_kv) if window and not self.mla else (self.hd, self.v, self.n_kv)
        heads = self.H / self.tpa
        kl, rope, nope = float(m.kv_lora_rank), float(m.qk_rope_dim), float(m.qk_nope_dim)
        out: list[dict[str, Any] | None] = []

        # projections
        if self.mla:
            q_in = self.d
            if m.q_lora_rank > 0:
                out.append(self.gemm("q_down", count, projected, m.q_lora_rank, self.d, "attn"))
                q_in = float(m.q_lora_rank)
            out.append(self.gemm("q_up", count, projected, heads * (nope + rope), q_in, "attn"))
            out.append(self.gemm("kv_down", count, projected, kl + rope, self.d, "attn"))
            if prefill:
                keys_held = (prefix + tokens) / self.kvp
                out.append(self.gemm("kv_up", count, keys_held, heads * (nope + v), kl, "attn"))
            else:
                out.append(self.gemm("k_up", count, projected, kl, nope, "attn", times=heads))
        else:
            kv_width = hd if (m.k_equals_v and not window) else hd + v
            n = heads * hd * (2.0 if m.attn_gate else 1.0) + ceil(n_kv / self.tpa) * kv_width
            out.append(self.gemm("qkv_proj", count, projected, n, self.d, "attn"))

        # queries to all ranks of the sequence
        if prefill:
            out.append(
                self.message("all_gather", "all_gather", count, tokens * heads * hd * ACT, self.kvp, stride=self.tpa)
            )

        # attention: keys that a query meets, and tokens of the cache that are read
        limit = float(m.window) if window else (float(m.sparse_top_k) if m.sparse_top_k > 0 else math.inf)
        if prefill:
            keys = min(prefix + tokens / 2.0, limit)
            cached = (min(prefix, limit) if window else prefix) + tokens
            new = tokens
        else:
            keys = cached = min(self.S, limit)
            new = 1.0
        per_token = self.cache_bytes(kind) * self.held_share(kind)
        q_width, v_width = (kl + rope, kl) if self.mla and not prefill else (hd, v)
        attention = self.kernel(
            "attention",
            count,
            (tokens, keys / self.kvp, None),
            flops=2.0 * tokens * (keys / self.kvp) * heads * (q_width + v_width),
            per_flop=1.0 / self.attention_peak(),
            kv=requests * (cached / self.kvp) * per_token,
            act_read=tokens * heads * q_width * self.act_b,
            write=tokens * heads * v_width * self.out_b,
            cache_write=requests * new * per_token / self.kvp,
            kind="prefill" if prefill else ("mla" if self.mla and kind == "full" else "attention"),
            keys=keys / self.kvp,
            unit=self.attention_unit(),
        )
        out.append(attention)

        if self.mla and not prefill:
            out.append(self.gemm("v_up", count, tokens, v, kl, "attn", times=heads))

        # Helix: partial results of all heads against whole results of some
        helix = self.message(
            "all_to_all",
            "all_to_all",
            count,
            tokens * heads * (v * ACT + STATISTICS),
            self.kvp,
            stride=self.tpa,
            hidden="hop_b",
        )
        if helix is not None:
            helix["attention_s"], helix["requests"] = attention["time_s"], requests
        out.append(helix)
        out.append(self.gemm("o_proj", count, tokens, self.d, self.H * v / self.wo_split, "attn"))
        return out

    def indexer(
        self, *, requests: float, tokens: float, projected: float, prefix: float | None
    ) -> list[dict[str, Any] | None]:
        """The sparse-attention indexer: its projections and the scores over the whole context, copied over tpa."""
        m, count = self.model, self.n_index
        if count <= 0:
            return []
        width = float(m.index_heads * m.index_dim)
        q_in = float(m.q_lora_rank) if m.q_lora_rank > 0 else self.d
        if prefix is None:
            keys = cached = self.S
            new = 1.0
        else:
            keys, cached, new = prefix + tokens / 2.0, prefix + tokens, tokens
        # CHOICE: two GEMMs (queries; keys and head weights together) and one scoring kernel in the attention format;
        # the scores themselves never reach memory.
        return [
            self.gemm("index_q", count, projected, width, q_in, "attn"),
            self.gemm("index_k", count, projected, m.index_dim + m.index_heads, self.d, "attn"),
            self.kernel(
                "indexer",
                count,
                (tokens, keys / self.kvp, None),
                flops=2.0 * tokens * (keys / self.kvp) * width,
                per_flop=1.0 / self.attention_peak(),
                kv=requests * (cached / self.kvp) * self.index_bytes(),
                cache_write=requests * new * self.index_bytes() / self.kvp,
                kind="attention" if prefix is None else "prefill",
                keys=keys / self.kvp,
                unit=self.attention_unit(),
            ),
        ]

    def linear_layer(self, *, requests: float, tokens: float) -> list[dict[str, Any] | None]:
        """Linear attention or SSM: two projections, the state read and written once per step or chunk."""
        m, count = self.model, self.n_linear
        if count <= 0:
            return []
        state = requests * m.state_bytes_per_layer / self.tpa
        out: list[dict[str, Any] | None] = []
        if m.linear_in_width > 0:
            out.append(self.gemm("linear_in", count, tokens, m.linear_in_width / self.tpa, self.d, "attn"))
        out.append(
            self.kernel(
                "linear_state",
                count,
                (tokens, None, None),
                flops=0.0,
                per_flop=0.0,
                kv=state,
                cache_write=state,
                kind="state",
            )
        )
        if m.linear_out_width > 0:
            out.append(self.gemm("linear_out", count, tokens, self.d, m.linear_out_width / self.tpa, "attn"))
        return out

    def layers(self, *, requests: float, tokens: float, T: float, prefix: float | None) -> list[dict[str, Any]]:
        """All operations of all layers for one microbatch (decode) or one chunk (prefill), on one GPU."""
        m = self.model
        ops: list[dict[str, Any] | None] = []
        # in prefill each rank of the sequence projects its own share of the chunk
        projected = ceil(tokens / self.kvp) if prefix is not None else tokens
        common = {"requests": requests, "tokens": tokens, "prefix": prefix}
        group = self.tpa * self.kvp
        residual = tokens * self.d * ACT
        # CHOICE: kinds of mixers side by side in a layer share one collective
        mixers = max(
            min(self.n_full + self.n_window + self.n_linear, self.L), self.n_full, self.n_window, self.n_linear
        )

        if self.dpa > 1:
            ops.append(self.message("all_gather", "all_gather", mixers, residual, group))
        if self.n_full > 0:
            ops += self.attention_layer("full", self.n_full, projected=projected, **common)
        if self.n_window > 0:
            ops += self.attention_layer("window", self.n_window, projected=projected, **common)
        ops += self.indexer(projected=projected, **common)
        ops += self.linear_layer(requests=requests, tokens=tokens)
        # CHOICE: the same collective after every kind of mixer and for either `wo_shard`, as section 5 says it.
        if self.dpa > 1:
            ops.append(self.message("reduce_scatter", "reduce_scatter", mixers, residual, group))
        else:
            ops.append(self.message("all_reduce", "all_reduce", mixers, residual, group))

        # tokens that meet the dense FFN, and those that meet the router and the latent projections
        dense_tokens = T if self.dpa == 1 else ceil(T / self.ep)
        own_tokens = T if self.dpa == 1 else ceil(T / self.N)
        ffn_message = dense_tokens * self.d * ACT

        def gathered(count: float, width: float, up: str, down: str) -> None:
            """A dense FFN or the shared experts, with their messages."""
            if self.dpa > 1:
                ops.append(self.message("all_gather", "all_gather", count, ffn_message, self.tpf))
            ops.append(self.gemm(up, count, dense_tokens, self.ups * width, self.d, "ffn"))
            ops.append(self.gemm(down, count, dense_tokens, self.d, width, "ffn"))
            if self.dpa > 1:
                ops.append(self.message("reduce_scatter", "reduce_scatter", count, ffn_message, self.tpf))

        if self.n_dense > 0 and m.d_ff > 0:
            gathered(self.n_dense, self.ff_width, "ffn_up_gate", "ffn_down")

        if self.n_moe > 0:
            count, E, k = self.n_moe, float(m.n_experts), float(m.top_k)
            ops.append(self.gemm("router", count, own_tokens, E, self.d, "head"))
            if self.d_shared > 0:
                gathered(count, self.shared_width, "shared_up_gate", "shared_down")
            if self.latent:
                ops.append(self.gemm("latent_down", count, own_tokens, self.d_latent, self.d, "ffn"))
            d_in = self.d_latent if self.latent else self.d
            ranks = self.ep * (1.0 - (1.0 - 1.0 / self.ep) ** k)
            send_b = bytes_of(self.prec.dispatch or self.prec.activations)
            back_b = bytes_of(self.prec.combine)
            # CHOICE: what arrives is the literal T distinct_ranks / ep, not rounded, in the format that travelled; the
            # slowest GPU gets as much more of it as of tokens.
            arrived = T * ranks / self.ep * d_in * self.imbalance
            to_rank = own_tokens * ranks * d_in * self.imbalance
            if self.dpa > 1:
                ops.append(self.message(
                    "dispatch", "all_to_all", count, to_rank * send_b, self.ep, self.tpf, hidden="two_batch"
                ))  # fmt: skip
                ops.append(self.message("all_gather", "all_gather", count, arrived * send_b, self.tpf))
            hit = distinct_experts(E, k, T, float(self.load.routing_skew))
            per_expert = T * k / hit * self.imbalance
            width = m.d_expert / self.tpf
            run = hit / self.ep
            ops.append(self.gemm("experts_up_gate", count, per_expert, self.ups * width, d_in, "ffn", run, "experts"))
            ops.append(self.gemm("experts_down", count, per_expert, d_in, width, "ffn", run, "experts"))
            if self.dpa > 1:
                ops.append(self.message("reduce_scatter", "reduce_scatter", count, arrived * back_b, self.tpf))
                ops.append(self.message(
                    "combine", "all_to_all", count, to_rank * back_b, self.ep, self.tpf, hidden="two_batch"
                ))  # fmt: skip
            if self.latent:
                ops.append(self.gemm("latent_up", count, own_tokens, self.d, self.d_latent, "ffn"))

        if self.dpa == 1:
            # CHOICE: a layer with a dense FFN beside its experts reduces once.
            ffns = min(self.L, self.n_dense + self.n_moe)
            over = self.tpa if self.lay.ffn_tied else self.N
            ops.append(self.message("all_reduce", "all_reduce", ffns, T * self.d * ACT, over))
        if self.eff["elementwise"] > 0:
            moved = tokens * self.d * ACT * self.eff["elementwise"] / 2.0
            none = (None, None, None)
            ops.append(self.kernel(
                "elementwise", self.L, none, flops=0.0, per_flop=0.0, act_read=moved, write=moved, kind="state"
            ))  # fmt: skip
        return [op for op in ops if op is not None and op["count"] > 0]

    def lm_head(self, m: float) -> dict[str, Any]:
        """The output embedding; `m` tokens."""
        return self.gemm("lm_head", 1.0, m, self.vocab / (self.tpa * self.kvp), self.d, "head")

    def exposed(self, ops: list[dict[str, Any]], decode: bool) -> dict[str, float]:
        """The parts of all layers together, hidden communication taken out (section 5, Overlap)."""
        lay = self.lay
        work = sum(op["count"] * op["time_s"] for op in ops if op["comm_bytes"] == 0)
        shown: list[float] = []  # per op: share of its communication that is paid
        for op in ops:
            share = 1.0
            if op["hidden"] == "hop_b" and lay.hop_b and decode and op["time_s"] > 0:
                t_attn, t_comm = op["attention_s"] / op["requests"], op["time_s"] / op["requests"]
                share = (hop_b_time(op["requests"], t_attn, t_comm) - op["attention_s"]) / op["time_s"]
            shown.append(share)
        if lay.two_batch:
            # CHOICE: the two halves alternate, so dispatch and combine show only where they outlast the layer's work.
            both = sum(op["count"] * op["time_s"] for op in ops if op["hidden"] == "two_batch")
            if both > 0:
                share = max(both - work, 0.0) / both
                shown = [share if op["hidden"] == "two_batch" else s for op, s in zip(ops, shown, strict=True)]

        def own_scheme(op: dict[str, Any]) -> bool:
            return (op["hidden"] == "hop_b" and lay.hop_b and decode) or (op["hidden"] == "two_batch" and lay.two_batch)

        # CHOICE: of all other messages a share hides behind the work of the mean layer.
        rest = sum(op["count"] * op["time_s"] for op in ops if op["comm_bytes"] > 0 and not own_scheme(op))
        if lay.overlap and rest > 0:
            share = (rest - lay.overlap * min(rest, work)) / rest
            shown = [
                share if op["comm_bytes"] > 0 and not own_scheme(op) else s for op, s in zip(ops, shown, strict=True)
            ]
        parts = dict.fromkeys(PARTS, 0.0)
        for op, s in zip(ops, shown, strict=True):
            for name in PARTS:
                parts[name] += op["count"] * op["parts"][name] * (s if op["comm_bytes"] > 0 else 1.0)
        parts["latency"] += self.L * self.eff["layer_s"]
        return parts

    # --- steps

    def decode_step(self, drafted: float) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """One decode step of all microbatches: its parts in seconds, and its operations."""
        requests = ceil(self.b / self.dpa)
        tokens = requests * (1.0 + drafted)
        ops = self.layers(requests=requests, tokens=tokens, T=self.b * (1.0 + drafted), prefix=None)
        head, hop = self.lm_head(tokens), self.hop(tokens)
        parts = self.exposed(ops, decode=True)
        t_layers = sum(parts.values())
        t_head = head["time_s"]
        t_hop = hop["time_s"] if hop else 0.0
        for name in PARTS:
            parts[name] += head["parts"][name]
            if hop:
                parts[name] += hop["count"] * hop["parts"][name]
        through = t_layers + (self.pp - 1.0) * t_hop + t_head
        slowest = t_layers * ceil(self.L / self.pp) / self.L + t_head / self.pp
        parts["latency"] += larger(through, self.mb * (slowest + t_hop)) - through
        parts["latency"] += self.eff["host_s"] + ceil(self.B / self.dpa) * self.eff["request_s"]
        ops = [*ops, head]
        if hop:
            ops.append(hop)
        for op in ops:
            op["phase"] = "decode"
        return parts, ops

    def prefill(self, hit: float) -> tuple[float, list[dict[str, Any]]]:
        """Time to the first token with a share of the prompt in the cache, and the operations of the slowest chunk.

        Kept beside them: the chunks, and how long a prompt occupies a stage when another one follows at once.
        """
        todo, prefix = self.prompt * (1.0 - hit), self.prompt * hit
        chunk = todo if self.lay.prefill_chunk is None else min(float(self.lay.prefill_chunk), todo)
        times: list[float] = []
        slowest_ops: list[dict[str, Any]] = []
        n_chunks = int(ceil(todo / chunk)) if chunk > 0 else 0
        for i in range(n_chunks):
            c = chunk if i < n_chunks - 1 else todo - chunk * (n_chunks - 1)
            ops = self.layers(requests=1.0, tokens=c, T=c * self.dpa, prefix=prefix + i * chunk)
            t = sum(self.exposed(ops, decode=False).values())
            if not times or t > max(times):
                slowest_ops = ops
            times.append(t)
        head, hop = self.lm_head(1.0), self.hop(chunk)
        self.chunks = float(n_chunks)
        self.stage_busy = sum(times) * ceil(self.L / self.pp) / self.L
        ttft = 0.0
        if times:
            pace = sum(times) / len(times) if self.lay.dynamic_chunks else max(times)
            imbalance = ceil(self.L / self.pp) * self.pp / self.L
            ttft = (sum(times) + (self.pp - 1.0) * pace) / self.pp * imbalance
        if hop:
            ttft += (self.pp - 1.0) * hop["time_s"]
        ttft += head["time_s"] + self.eff["host_s"]
        ops = [*slowest_ops, head]
        if hop:
            ops.append(hop)
        for op in ops:
            op["phase"] = "prefill"
        return ttft, ops

    # --- parameters and memory

    def parameters(self) -> tuple[float, float]:
        """(all, what a token multiplies): section 1, formulas of the catalogue."""
        m = self.model
        layers = self.n_full * self.attention_weights("full", 1.0, 1.0)
        layers += self.n_window * self.attention_weights("window", 1.0, 1.0)
        layers += self.n_index * self.index_weights()
        layers += self.n_linear * self.d * (m.linear_in_width + m.linear_out_width)
        layers += self.n_dense * m.ffn_matrices * self.d * m.d_ff
        d_in = self.d_latent if self.latent else self.d
        expert = m.ffn_matrices * d_in * m.d_expert
        moe = self.d * m.n_experts + m.ffn_matrices * self.d * self.d_shared
        if self.latent:
            moe += 2.0 * self.d * self.d_latent
        layers += self.n_moe * moe
        layers += self.norms() + m.extra_params
        table = self.vocab * self.d
        total = layers + self.n_moe * m.n_experts * expert + table * (1.0 if m.tied_embeddings else 2.0)
        active = layers + self.n_moe * m.top_k * expert + table
        return total, active

    def norms(self) -> float:
        """Norm weights: two of width d per layer, a last one, MLA's own (the convention of the records' extra_params)."""
        m = self.model
        count = self.d * (2.0 * self.L + 1.0)
        if self.mla:
            count += (self.n_full + self.n_window) * (m.q_lora_rank + m.kv_lora_rank)
        return count

    def attention_weights(self, kind: str, tpa: float, wo_split: float) -> float:
        """Weights of one full or window layer's projections on a GPU."""
        m, heads = self.model, self.H / tpa
        if self.mla:
            kl, rope, nope, ql = m.kv_lora_rank, m.qk_rope_dim, m.qk_nope_dim, m.q_lora_rank
            q = self.d * ql + heads * (nope + rope) * ql if ql > 0 else heads * (nope + rope) * self.d
            up = heads * (nope + self.v) * kl
            return q + self.d * (kl + rope) + up + self.d * self.H * self.v / wo_split
        window = kind == "window"
        hd, v, n_kv = (self.w_hd, self.w_v, self.w_kv) if window else (self.hd, self.v, self.n_kv)
        kv_width = hd if (m.k_equals_v and not window) else hd + v
        n = heads * hd * (2.0 if m.attn_gate else 1.0) + ceil(n_kv / tpa) * kv_width
        return n * self.d + self.d * self.H * v / wo_split

    def index_weights(self) -> float:
        """Weights of one indexer, without its norm."""
        m = self.model
        q_in = m.q_lora_rank if m.q_lora_rank > 0 else self.d
        return q_in * m.index_heads * m.index_dim + self.d * (m.index_dim + m.index_heads)

    def held_weights(self, routed: bool = True) -> float:
        """Bytes of weights on a GPU of the fullest stage (section 7)."""
        m = self.model
        attn = self.n_full * self.attention_weights("full", self.tpa, self.wo_split)
        attn += self.n_window * self.attention_weights("window", self.tpa, self.wo_split)
        attn += self.n_index * self.index_weights()
        attn += self.n_linear * self.d * (m.linear_in_width + m.linear_out_width) / self.tpa
        d_in = self.d_latent if self.latent else self.d
        ffn = self.n_dense * m.ffn_matrices * self.d * self.ff_width
        moe = m.ffn_matrices * self.d * self.shared_width
        if self.n_moe > 0 and routed:
            copies = ceil(m.n_experts / self.ep) + self.lay.redundant_slots
            moe += copies * m.ffn_matrices * d_in * m.d_expert / self.tpf
        if self.latent:
            moe += 2.0 * self.d * self.d_latent
        ffn += self.n_moe * moe
        router = self.n_moe * m.n_experts * self.d
        held = attn * self.weight_bytes("attn") + ffn * self.weight_bytes("ffn") + router * self.weight_bytes("head")
        if HOLD_NORMS:
            held += (self.norms() + m.extra_params / self.tpa) * 2.0
        # CHOICE: a stage holds mean layers, ceil(L / pp) of them, for dense layers beside MoE layers too.
        held *= ceil(self.L / self.pp) / self.L
        tables = 1.0 if (self.pp > 1 or m.tied_embeddings) else 2.0
        return held + tables * self.vocab * self.d / (self.tpa * self.kvp) * self.weight_bytes("head")

    def request_cache(self) -> float:
        """KV and state bytes of one request at its longest context on a GPU of the fullest stage."""
        m, S = self.model, self.longest
        held = self.n_full * S * self.cache_bytes("full") * self.held_share("full") / self.kvp
        if self.n_window > 0:
            held += self.n_window * min(S, m.window) * self.cache_bytes("window") * self.held_share("window") / self.kvp
        held += self.n_index * S * self.index_bytes() / self.kvp
        held += self.n_linear * m.state_bytes_per_layer / self.tpa
        return held * ceil(self.L / self.pp) / self.L


# ---------------------------------------------------------------------------------------------------------------------


def evaluate(
    model: dict[str, Any],
    hardware: dict[str, Any],
    precision: dict[str, Any],
    layout: dict[str, Any],
    workload: dict[str, Any],
    efficiency: dict[str, Any] | None = None,
    placement: dict[str, Any] | None = None,
    phi: float = 0.0,
) -> dict[str, object]:
    """All columns of one point, and `ops`. `efficiency` None is `ideal`, `placement` None all in main memory.

    `phi` above 0: aggregated serving, which lets a replica's decode steps wait for that share of prefill work.
    """
    p = Point(model, hardware, precision, layout, workload, efficiency, placement)
    m = p.model
    if placement is not None:
        ttft, prefill_ops = p.tiered_prefill()
        running = p.all_sizes(ceil(p.B / p.dpa), ceil(p.b / p.dpa) * (1.0 + p.g))
        p.read_from(running)

    # --- time
    parts, ops = p.decode_step(p.g)
    flops = sum(op["count"] * op["flops"] for op in ops)
    moved = sum(op["count"] * (op["read_bytes"] + op["write_bytes"]) for op in ops)
    if p.g > 0 and m.draft_cost > 0:
        # CHOICE: drafting is a share of an undrafted step, in time as in FLOPs and bytes.
        undrafted, plain_ops = p.decode_step(0.0)
        flops += p.g * m.draft_cost * sum(op["count"] * op["flops"] for op in plain_ops)
        moved += p.g * m.draft_cost * sum(op["count"] * (op["read_bytes"] + op["write_bytes"]) for op in plain_ops)
        for name in PARTS:
            parts[name] += p.g * m.draft_cost * undrafted[name]
    t_step = sum(parts.values())
    expected = expected_tokens(float(m.acceptance), p.g)
    parts = {name: seconds / expected for name, seconds in parts.items()}
    tpot = t_step / expected
    if placement is None:
        ttft, prefill_ops = p.prefill(float(p.load.prefix_hit))

    # --- a replica that prefills too: follow one request from its first token to its last. Meanwhile each of the other
    # requests of its attention group ends once and is replaced, and the prompt of the new one is prefilled in between.
    prefill_part, in_flight = 0.0, p.B
    if phi > 0:
        others = max(p.B / p.dpa - 1.0, 0.0)
        waited = others * p.stage_busy * phi  # seconds over the whole answer
        prefill_part = waited / p.osl
        tpot += prefill_part
        ttft += p.chunks * t_step  # every chunk shares a step with those who decode
        ends_per_s = p.B / (tpot * max(p.osl - 1.0, 1.0))
        in_flight = p.B + ends_per_s * ttft

    # --- rates
    user = 1.0 / tpot if tpot > 0 else NAN
    per_gpu = p.B * user / p.gpus
    weights_peak = p.gemm_peak(p.prec.weights)
    on_mean_gpu = p.mb / p.pp

    # --- memory
    weights = p.held_weights()
    request = p.request_cache()
    kv = ceil(p.B / p.dpa) * request
    per_request_activations = 4.0 * p.d * 2.0 * (1.0 + p.g)
    activations = ceil(p.b / p.dpa) * per_request_activations
    reserve = p.eff["reserve_fraction"] * p.reserve_of
    held = weights + kv + activations + reserve
    fits = held <= p.capacity
    room = (p.capacity - weights - reserve) / (request + per_request_activations)
    max_batch = p.dpa * larger(floor(room), 0.0)
    if placement is not None:
        fits = p.shelve(running)[1] <= 1e-7 * held
        low, high = 0.0, 2.0**24
        while high - low > 1:
            mid = floor((low + high) / 2.0)
            homeless = p.shelve(p.all_sizes(mid, mid * (1.0 + p.g)))[1]
            low, high = (mid, high) if homeless <= 0 else (low, mid)
        max_batch = p.dpa * low

    total, active = p.parameters()
    growing = p.n_full * p.cache_bytes("full") + p.n_index * p.index_bytes()

    # --- reasons
    if not fits and not math.isnan(held) and not math.isnan(p.capacity):
        p.reasons.add("capacity")
    if p.load.ttft_max_s is not None and ttft > p.load.ttft_max_s:
        p.reasons.add("ttft_cut")
    if p.load.tpot_max_s is not None and tpot > p.load.tpot_max_s:
        p.reasons.add("tpot_cut")

    all_ops = []
    for op in ops + prefill_ops:
        row = {key: value for key, value in op.items() if key not in ("parts", "hidden", "attention_s", "requests")}
        row["bound"] = max(PARTS, key=lambda name: op["parts"][name])
        all_ops.append(row)

    watts, price = p.hw.watts, p.hw.usd_per_hour
    return {
        "tpot_s": tpot,
        "ttft_s": ttft,
        "request_s": ttft + (p.osl - 1.0) * tpot,
        "tok_s_user": user,
        "tok_s_gpu": per_gpu,
        # CHOICE: with a fixed context the prompt is that context.
        "total_tok_s_gpu": per_gpu * (p.prompt + p.osl) / p.osl,
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "bound": max([*PARTS, "prefill"], key=lambda name: {**parts, "prefill": prefill_part}[name]),
        **({"prefill_s": prefill_part, "concurrency": in_flight} if phi > 0 else {}),
        "mfu": flops * on_mean_gpu / (weights_peak * t_step),
        "mbu": moved * on_mean_gpu / (p.bw * t_step),
        "intensity": flops / moved if moved > 0 else NAN,
        "weights_bytes": weights,
        "kv_bytes": kv,  # CHOICE: the state of linear layers is in this column
        "activation_bytes": activations,
        "held_bytes": held,
        "max_batch": max_batch,
        "params_total": total,
        "params_active": active,
        "kv_bytes_per_tok": growing,
        "fits": fits,
        "feasible": not p.reasons,
        "reasons": sorted(p.reasons),
        "tok_s_mw": None if watts is None else 1e6 * per_gpu / watts,
        "usd_per_mtok": None if price is None else 1e6 * price / (3600.0 * per_gpu),
        "joule_per_tok": None if watts is None else watts / per_gpu,
        "ops": all_ops,
    }
