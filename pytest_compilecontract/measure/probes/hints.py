"""Hints: what would avoid a recompile, by the guard that failed. No torch here.

Each rule has been seen to work: tests/with_torch/test_recompile_hints.py runs its case with and without what it says.
A guard that no rule knows gets no hint, because many recompiles cannot be avoided: a branch on a size, a number that
is used as a constant, another Python object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_compilecontract.facts.measurement import RecompileKind

from .reasons import guard_text

# Not "instance": another object has what it has.
_ANY: tuple[RecompileKind, ...] = ("dynamic", "guard", "backend")
# What the frame after a graph break calls a value that the break left: no argument that a caller could change.
_OWN = r"(?!___stack)"
_NUMBER = r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
_SIZE = r"tensor '(?P<name>.+?)' size mismatch at index (?P<index>\d+)\. expected"
_KEYS = r"tensor '(?P<name>.+?)' dispatch key set mismatch\. "
_UNSPECIALIZED = "allow_unspec_int_on_nn_module"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A guard in torch's words, of a recompile of one of these kinds, and what would avoid the recompile.

    `dynamic` are the arguments of torch.compile with which it would.
    """

    guard: str
    says: str
    kinds: tuple[RecompileKind, ...] = _ANY
    dynamic: tuple[bool | None, ...] = (None, True, False)


# The first that matches is used. torch's texts are in torch/csrc/dynamo/guards.cpp and torch/_dynamo/guards.py.
RULES = (
    # The state of the process.
    Rule(guard=r"GLOBAL_STATE changed: grad_mode", says="make every call in the same grad mode"),
    Rule(
        guard=r"GLOBAL_STATE changed: autocast",
        says="make every call under the same torch.autocast, or enter it inside what is compiled",
    ),
    Rule(guard=r"GLOBAL_STATE changed: (?P<name>\w+)", says="set {name} before the first call, and not between calls"),
    Rule(
        guard=r"___check_torch_function_mode_stack",
        says="make every call under the same modes (torch.device(...) and torch.set_default_device are modes)",
    ),
    Rule(guard=r"BACKEND_MATCH failure", says="call torch.compile once, with one backend, and keep what it returns"),
    # Sizes: those of 0 and 1, then those that became dynamic.
    Rule(
        guard=rf"{_SIZE} [01],",
        says="torch specializes a size of 0 or 1: try torch._dynamo.decorators.mark_unbacked({name}, {index}) "
        "before the first call",
        kinds=("dynamic",),
    ),
    Rule(
        guard=rf"{_SIZE.replace('(?P<name>', f'{_OWN}(?P<name>')}",
        says="torch._dynamo.mark_dynamic({name}, {index}) before the first call, or torch.compile(dynamic=True)",
        kinds=("dynamic",),
        dynamic=(None,),
    ),
    Rule(guard=_SIZE, says="torch.compile(dynamic=True)", kinds=("dynamic",), dynamic=(None,)),
    Rule(
        guard=r"tensor '(?P<name>\w+)' size mismatch",
        says="compiled with dynamic=False: without it, torch makes a size dynamic that changes, where the code allows",
        kinds=("guard",),
        dynamic=(False,),
    ),
    Rule(
        guard=r"\S+\.size\(\)\[\d+\] == \S+\.size\(\)\[\d+\]$",
        says="make the first call with sizes that differ",
        kinds=("guard",),
    ),
    Rule(
        guard=r"_has_dynamo_dim_marking|.*_dynamo_\w*indices",
        says="mark the tensor before the first call too",
        kinds=("dynamic",),
    ),
    # Tensors.
    Rule(guard=rf"tensor '{_OWN}(?P<name>\w+)' stride mismatch", says="pass {name}.contiguous() in every call"),
    Rule(guard=rf"tensor '{_OWN}(?P<name>\w+)' dtype mismatch", says="pass {name} with the same dtype in every call"),
    Rule(
        guard=rf"tensor '{_OWN}(?P<name>\w+)' requires_grad mismatch",
        says="pass {name} with the same requires_grad in every call",
    ),
    Rule(
        guard=_KEYS + r"expected DispatchKeySet\((?P<keys>.*?)(?:, Autograd\w+)?\), actual DispatchKeySet\((?P=keys)\)",
        says="{name} was made under torch.inference_mode(): clone() it outside, or make it there",
    ),
    Rule(guard=_KEYS + r"expected [^)]*\), actual .*\bConjugate\b", says="pass {name}.resolve_conj()"),
    Rule(guard=_KEYS + r"expected [^)]*\), actual .*\bNegative\b", says="pass {name}.resolve_neg()"),
    Rule(
        guard=r"Duplicate tensors found|\w+ is (?!None\b|True\b|False\b)\w+$",
        says="pass different tensors in every call: clone() one where both are the same",
    ),
    # Numbers.
    Rule(
        guard=rf".+\['lr'\] == {_NUMBER}$",
        says="make the learning rate a tensor (lr=torch.tensor(...)) and change it in place",
    ),
    Rule(
        guard=rf"G\['(?P<name>\w+)'\] == {_NUMBER}$",
        says="torch makes a constant of a global integer: if {name} is only computed with, make it a tensor",
        kinds=("guard",),
    ),
    Rule(
        guard=rf"{_OWN}[^()=<>%]+ == -?\d+\.\d*(?:e[-+]?\d+)?$",
        says="torch.compile(dynamic=True), or pass it as a tensor",
        kinds=("dynamic",),
        dynamic=(None,),
    ),
    Rule(
        guard=rf"[^()=<>%]+ == {_NUMBER}$",
        says="torch.compile(dynamic=True), which makes the number dynamic from the first call",
        kinds=("dynamic",),
        dynamic=(None,),
    ),
)


def hint_of(kind: RecompileKind, reason: str, *, dynamic: bool | None) -> str:
    """What would avoid a recompile for this reason, in one line; empty if nothing is known to.

    `dynamic` is the argument of torch.compile.
    """
    guard = guard_text(reason)
    # torch says so itself, behind the guard, and knows that it is an attribute of a module (`variables/builder.py`).
    if _UNSPECIALIZED in reason.partition("\n")[0]:
        return f"make it a tensor (a buffer), or set torch._dynamo.config.{_UNSPECIALIZED} = True"
    for rule in RULES:
        if kind in rule.kinds and dynamic in rule.dynamic and (found := re.match(rule.guard, guard)):
            return rule.says.format(**found.groupdict())
    return ""
