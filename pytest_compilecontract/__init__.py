"""Contracts for torch.compile: what compiling a model may do, checked in each lane and across torch releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, overload

from .calls import call

if TYPE_CHECKING:
    import pytest

__all__ = ["__version__", "call", "compile_contract"]
__version__ = "0.2.0"


# The test, or class of tests, that is decorated.
Decorated = TypeVar("Decorated", bound=Callable[..., object])


@overload
def compile_contract(function: Decorated, /) -> Decorated: ...


@overload
def compile_contract(**limits: object) -> pytest.MarkDecorator: ...


def compile_contract(*function: object, **limits: object) -> object:
    """State what compiling may do in a test; the same as `@pytest.mark.compile_contract(...)`.

    Limits (all optional; those of module, class and function combine, and the closest wins):
        max_recompiles (int): maximum number of recompiles: code compiled again for a frame that has compiled code
        max_graph_breaks (int): maximum number of distinct graph breaks, by user line and torch's kind
        max_graphs (int): maximum number of graphs that Dynamo makes
        max_eager_frames (int): maximum number of frames with something to compile that run in eager, because Dynamo
            fell back or skipped them by its rules; default 0
        max_eager_ops (int): maximum number of operators that run in eager in a steady call, for any reason
        min_ops_captured (int): minimum number of call nodes in the graphs; default 1
        fullgraph (bool): no graph break, and no frame that falls back to eager
        allow_recompile_limit (bool): reaching the recompile limit is not a violation
        numerics ("fp64", "allclose", "bitwise", None): how compiled results are compared with eager; default "fp64"
        rtol, atol (float): tolerances to use instead of the defaults for the dtype
        check_grads (bool): compare gradients; always in `compile_lane.train`, only if True in `compile_lane.run`
        check_state_dict (bool): the keys of `state_dict` and the module's type must not change
        lanes (list of names): run only in these lanes, of those chosen for the session
        frontier (list of names): a ladder of lanes, each rung adding one dimension to those below: capture, aot,
            inductor, train, autocast, dynamic, cudagraphs, distributed, or one of the project's lanes
        min_frontier (name): the rung of the frontier that must hold; default the first
        capture_targets (list of classes, or of their names): module classes, each of which must have operations in
            some graph
        max_guards (int): maximum number of guards that a call has to pass to run the code of a frame
        max_cache_misses, max_cache_bypasses (int): maximum number of graphs that are not in torch's compile caches, and
            of graphs that a cache does not take; in lanes with backend "inductor"
        max_cold_seconds (float): maximum seconds of compiling from empty compile caches, judged over repeats
        max_warm_misses (int), max_warm_seconds (float): the same for a second process that starts from the caches of
            the first: maximum number of look-ups that find nothing or are bypassed, and seconds of compiling
        keeps_outputs (bool): the outputs of a call must not be changed by the next call
        ranks (int): run the test in this many processes with one process group; each must hold, and all must agree
        process_group ("gloo", "nccl", "fake"): backend of the process group; default nccl on CUDA, else gloo; "fake"
            simulates any number of ranks in one process, and moves no data
        ranks_agree (bool): if False, ranks may differ in graphs, breaks, recompiles, eager frames, placements and
            collectives
        max_collectives (int): maximum number of collectives over the compiled calls, in lanes with ranks
        same_collectives (bool): compiled must run as many collectives of each kind as eager, in lanes with ranks
        same_placements (bool): every parameter must be placed on its device mesh as in eager, and some must be
        max_saved_ratio (float): maximum bytes that autograd saves for the backward, relative to eager
        max_recomputed_graphs (int): maximum number of compiled graphs of a forward that run again in a backward

    Lanes compared with one another:
        same_as (str): a lane that every other lane of the contract must agree with, in graphs, breaks, recompiles,
            eager frames, changes of the state dict, and results; that lane runs first, in the same test

    Limits that are judged only on a CUDA device, in a steady step after the calls that are counted:
        cudagraphs ("required", "partitioned"): in lanes that use CUDA graphs, every steady step must be replayed
            from them, whole or in parts
        max_kernels (int): maximum number of kernels on the device; max_kernels_ratio (float): relative to eager
        max_host_syncs (int): maximum number of times that the CPU waits for the device
        max_memory_ratio (float): maximum peak memory relative to eager, including the pools of CUDA graphs
        max_memory_growth (int): maximum number of bytes that each step leaves allocated; default 0
        min_speedup (float): minimum speedup, the device time of eager divided by that of compiled; timing both makes
            the test slower

    Errors in limits are reported when pytest collects the tests, all at once.
    """
    import pytest

    marker = pytest.mark.compile_contract
    return marker(*function, **limits) if function or limits else marker
