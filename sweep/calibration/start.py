"""Where a calibration begins: every constant of the preset that is not fitted, and a first value of those that are.

A fit never begins at the shipped preset, so that the same measurements give the same constants however often it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

START: dict[str, Any] = {
    # The two large tiles give back the steps measured on GB300 at N = K = 8192 (M 512 -> 513, 1792 -> 1793,
    # 3584 -> 3585); the rate of the small one is an estimate.
    "tiles": [[64, 128, 0.75], [128, 128, 1.0], [256, 256, 1.0]],
    # What a kind does not say it takes from elsewhere: input and write are read, a format's are the kind's, an int8
    # unit's are the fp8 one's, a link's are the all-reduce's.
    "kernels": {
        "gemm": {
            **{"math": 0.8, "read": 0.85, "t0_s": 3e-6, "chain_s": 0.65e-9, "overlap": 0.7},
            "fp8": {"math": 0.7, "input": 0.06, "t0_s": 5.4e-6},
            "fp4": {"math": 0.4, "input": 0.1, "t0_s": 4.5e-6},
            "fp8_block": {},
            "weight_only": {},
        },
        "experts": {"math": 0.5, "read": 0.85, "input": 0.075, "t0_s": 11e-6, "overlap": 1.0},
        "attention": {"math": 0.3, "read": 0.85, "t0_s": 11e-6, "overlap": 1.0},
        "mla": {"math": 0.55, "read": 0.72, "t0_s": 12.5e-6, "chain_s": 0.0, "overlap": 1.0},
        # keys and values of a prompt are never what a prefill waits for; 0.80 is the share that decode reads with
        "prefill": {"math": 0.55, "read": 0.8, "t0_s": 15e-6, "chain_s": 15e-9, "overlap": 0.0},
        # linear-attention and SSM state, norms, residuals: no table; elementwise kernels reach about 0.6 of bandwidth
        "state": {"math": 0.5, "read": 0.6, "t0_s": 0.0, "overlap": 1.0},
    },
    "links": {
        "reduce": {
            **{"share": 0.66, "t0_s": 5e-6, "t0_rank_s": 0.5e-6, "one_shot_s": 3e-6, "one_shot_rank_s": 0.15e-6},
            **{"scaleout_share": 0.8, "scaleout_t0_s": 20e-6},  # estimates
        },
        "gather": {"share": 0.5, "t0_s": 6e-6, "t0_rank_s": 1e-6},
        "exchange": {"share": 0.5, "t0_s": 10e-6},
        "experts": {"share": 0.5, "t0_s": 15e-6, "t0_rank_s": 0.0, "scaleout_share": 0.8, "scaleout_t0_s": 9e-6},
        # one stage to the next: no table
        "hop": {"share": 0.8, "t0_s": 10e-6, "scaleout_t0_s": 5e-6},
    },
    # what no kernel accounts for: first values of the end-to-end fit
    "layer_s": 9.2e-6,
    "host_s": 0.67e-3,
    "request_s": 5.8e-6,
    "elementwise": 12.0,  # reads and writes of the residual stream per layer: norms, residuals, rotary
    "reserve_fraction": 0.1,
    "imbalance": 0.11,  # TensorRT-LLM wide-EP blogs, EP32 with load balancing
    "imbalance_off": 1.0,
    "generations": {},
}


def numbers(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], float]:
    """The numbers of a preset by path; a 0 says that something is absent, and is none."""
    if isinstance(value, Mapping):
        return {k: v for key, inner in value.items() for k, v in numbers(inner, (*path, str(key))).items()}
    if isinstance(value, list | tuple):
        return {k: v for i, inner in enumerate(value) for k, v in numbers(inner, (*path, str(i))).items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {path: float(value)} if is_number and value != 0 else {}


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many constants a preset holds."""

    machine: int  # fitted: kernels, links, overheads; any machine uses them
    service: int  # fitted: how a service is run, of no framework
    assumed: int  # stand as a fit began with them: estimates, published figures, tiles
    generations: int  # more for measured chip generations alone
    frameworks: int  # and for measured serving frameworks

    def __str__(self) -> str:
        return (
            f"constants: {self.machine} of machines and {self.service} of services are fitted to all measurements, "
            f"{self.assumed} assumed;\n"
            f"beside them {self.generations} of single chip generations (an unmeasured chip takes its nearest "
            f"relative's) and {self.frameworks} of single serving frameworks"
        )


def count(preset: Mapping[str, Any]) -> Count:
    """The constants of a preset, error bands aside.

    A generation's number that an older one of its architecture has too is not counted again.
    """
    began = numbers(START)
    found = {p: v for p, v in numbers(preset).items() if p[:2] != ("serving", "band")}
    own: set[tuple[str, ...]] = set()
    for path, value in found.items():
        if path[0] == "generations" and path[-1] != "year":
            own.add((path[1].partition("_")[0], *path[2:], f"{value:g}"))
    common = {p: v for p, v in found.items() if p[0] not in ("generations", "serving")}
    assumed = [p for p, v in common.items() if began.get(p) == v]
    serving = [p for p in found if p[0] == "serving"]
    general = [p for p in serving if len(p) == 2 or p[2] in ("default", "experts", "tensor", "grouped")]
    return Count(
        machine=len(common) - len(assumed),
        service=len(general),
        assumed=len(assumed),
        generations=len(own),
        frameworks=len(serving) - len(general),
    )
