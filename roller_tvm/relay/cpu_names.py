"""Names of CPUs that this TVM's LLVM knows: for another it makes code of the least CPU, and says so nowhere."""

from __future__ import annotations

import difflib
from typing import Any

from roller_tvm.device import default_cpu_target
from roller_tvm.errors import TargetError

_ASK = "target.llvm_get_cpu_archlist"
_SHOWN = 12


def known_cpus(target: Any) -> list[str]:
    """CPU names that LLVM knows for the target's architecture; empty where this TVM cannot ask.

    Examples
    --------
    >>> known_cpus(tvm.target.Target("llvm"))[-2:]  # doctest: +SKIP
    ['znver1', 'znver2']
    """
    import tvm

    ask = tvm.get_global_func(_ASK, True)
    if ask is None:
        return []
    try:
        return sorted(str(name) for name in ask(target))
    except (tvm.TVMError, TypeError):  # an earlier signature, or an architecture that this LLVM has not
        return []


def check_cpu(target: Any) -> None:
    """Refuse an llvm target whose -mcpu this LLVM does not know.

    Raises
    ------
    TargetError
        With what this machine's CPU goes by, and the names nearest to the one that was asked for.
    """
    name = str(target.attrs.get("mcpu", "") or "") if target.kind.name == "llvm" else ""
    known = known_cpus(target) if name else []
    if not known or name in known:
        return
    near = difflib.get_close_matches(name, known, _SHOWN, 0.3) or known[-_SHOWN:]
    raise TargetError(
        f"-mcpu={name} is no CPU that this TVM's LLVM knows: it would make code for the least CPU there is",
        f"target '{target}'",
        f"for this machine: '{default_cpu_target()}'; some of the {len(known)} known: {', '.join(near)}",
    )
