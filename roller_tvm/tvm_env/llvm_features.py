"""Features that a target asks of LLVM, which ignores an unknown one."""

from __future__ import annotations

from typing import Any

from ..errors import TargetError


def check_features(tvm: Any, mattr: list[str], triple: str, where: str) -> None:
    """Refuse features (``-mattr``) that this TVM's LLVM does not know.

    Parameters
    ----------
    mattr : list of str
        Such as ["+avx2", "-fma"].
    triple : str
        Architecture; "" for this machine's.

    Raises
    ------
    TargetError
    """
    ask = tvm.get_global_func("target.llvm_get_cpu_features", True)
    if ask is None:
        return
    for word in filter(None, (word.strip() for word in mattr)):
        own = {"kind": "llvm", "mattr": [f"+{word.lstrip('+-')}"], **({"mtriple": triple} if triple else {})}
        known = {str(name) for name in ask(tvm.target.Target(own))}
        if word[0] not in "+-" or word[1:] not in known:
            what = f"this TVM's LLVM knows no feature '{word}', and would ignore it"
            raise TargetError(what, where, "write mattr=+avx2, or leave it out: mcpu says what a CPU has")
