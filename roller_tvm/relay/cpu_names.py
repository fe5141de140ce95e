"""The CPU names that this TVM's LLVM knows. For an unknown name it silently generates code for the baseline CPU."""

from __future__ import annotations

import difflib
from typing import Any

from roller_tvm.device import default_cpu_target
from roller_tvm.errors import TargetError
from roller_tvm.tvm_env.llvm_features import check_features

_ASK = "target.llvm_get_cpu_archlist"
_SHOWN = 12


def known_cpus(target: Any) -> list[str]:
    """Return the CPU names that LLVM knows for the target's architecture; [] if this TVM cannot list them."""
    import tvm

    ask = tvm.get_global_func(_ASK, True)
    if ask is None:
        return []
    triple = str(target.attrs.get("mtriple", "") or "")
    try:  # without its mcpu: about an unknown one LLVM would print an error of its own
        return sorted(str(name) for name in ask(tvm.target.Target(f"llvm -mtriple={triple}" if triple else "llvm")))
    except (tvm.TVMError, TypeError):  # an earlier signature, or an architecture that this LLVM has not
        return []


def check_cpu(target: Any) -> None:
    """Refuse an llvm target whose -mcpu or -mattr this LLVM does not know.

    Raises
    ------
    TargetError
        The remedy names this machine's CPU and the known names nearest to the given one.
    """
    import tvm

    if target.kind.name == "llvm":
        features = [str(word) for word in target.attrs.get("mattr", None) or ()]
        check_features(tvm, features, str(target.attrs.get("mtriple", "") or ""), f"target '{target}'")
    name = str(target.attrs.get("mcpu", "") or "") if target.kind.name == "llvm" else ""
    known = known_cpus(target) if name else []
    if not known or name in known:
        return
    near = difflib.get_close_matches(name, known, _SHOWN, 0.3) or known[-_SHOWN:]
    raise TargetError(
        f"this TVM's LLVM does not know -mcpu={name}: it would generate code for the baseline CPU",
        f"target '{target}'",
        f"for this machine: '{default_cpu_target()}'; some of the {len(known)} known: {', '.join(near)}",
    )
