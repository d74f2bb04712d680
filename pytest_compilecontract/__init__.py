"""Contracts for torch.compile: what compiling a model may do, held lane by lane, across torch releases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .calls import call

if TYPE_CHECKING:
    import pytest

__all__ = ["__version__", "call", "compile_contract"]
__version__ = "0.2.0"


def compile_contract(*function: object, **limits: object) -> pytest.MarkDecorator | Any:
    """State what compiling may do in a test; the same as `@pytest.mark.compile_contract(...)`.

    Limits (each is optional; those of module, class and function combine, the nearer wins):
        max_recompiles (int): code compiled again for a frame that had compiled code
        max_graph_breaks (int): distinct graph breaks: user line and torch's kind
        max_graphs (int): graphs that Dynamo made
        max_eager_frames (int): frames with something to compile that ran eager: Dynamo fell back, or skipped them by
            its rules; default 0
        max_eager_ops (int): operators of a steady call that ran eager, whatever the reason
        min_ops_captured (int): call nodes in the graphs; default 1
        fullgraph (bool): no graph break, no frame that falls back to eager
        allow_recompile_limit (bool): reaching the recompile limit is not a violation
        numerics ("fp64", "allclose", "bitwise", None): how compiled is compared with eager; default "fp64"
        rtol, atol (float): tolerances instead of those by dtype
        check_grads (bool): compare gradients; always in `compile_lane.train`, only if True in `compile_lane.run`
        check_state_dict (bool): the keys of `state_dict` and the module's type must not change
        lanes (list of names): only these of the lanes that the session chose
        frontier (list of names): a ladder of lanes, each rung adding one dimension to those below: capture, aot,
            inductor, train, autocast, dynamic, cudagraphs, distributed, or one of the project's lanes
        min_frontier (name): the rung of the frontier that has to hold; default the first
        capture_targets (list of classes, or of their names): a graph holds operations of each of these modules
        keeps_outputs (bool): what a call returned is not changed by the next one
        ranks (int): run the test in so many processes, which one process group joins; each is held, and all agree
        process_group ("gloo", "nccl", "fake"): of the ranks; default nccl on CUDA, else gloo; "fake" is as many ranks
            as you like in one process, and moves no data
        ranks_agree (bool): False: ranks may differ in graphs, breaks, recompiles, eager frames and collectives
        max_collectives (int): collectives over the calls, compiled, in lanes with ranks
        same_collectives (bool): of each kind as many compiled as eager, in lanes with ranks

    Limits that are judged only on a CUDA device, on a steady step after the calls that are counted:
        cudagraphs ("required", "partitioned"): in lanes that ask for CUDA graphs, every steady step is replayed from
            them, whole or in parts
        max_kernels (int): kernels that the device runs; max_kernels_ratio (float): by those of eager
        max_host_syncs (int): times that the CPU waits for the device
        max_memory_ratio (float): peak memory by that of eager, the pools of CUDA graphs included
        max_memory_growth (int): bytes that each step leaves behind; default 0
        min_speedup (float): device time of eager by that of compiled; times both, which takes a while

    Errors in them are reported when pytest collects the tests, all at once.
    """
    import pytest

    marker = pytest.mark.compile_contract
    return marker(*function, **limits) if function or limits else marker
