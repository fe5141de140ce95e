"""LLVM optimises little what a test runs a few times: half of the work of building a kernel is LLVM's.

Code is generated as TVM generates it, at LLVM's level 0 instead of 3, unless the target names a level. The level comes
from the environment, so processes that the tests fork have it too; real processes build as a user's do.
"""

import os

#: LLVM's level, or "" for the product's own.
VARIABLE, LITTLE = "ROLLER_TESTS_LLVM_LEVEL", "0"
GENERATE = "target.build.llvm"
KEY = "opt-level"


def stand_before_llvm():
    """Put the level before TVM's code generator, once a process and before anything of the product stands there."""
    import tvm

    generate = tvm.get_global_func(GENERATE)

    def generated(mod, target):
        level = os.environ.get(VARIABLE, "")
        if level and KEY not in target.attrs:
            target = tvm.target.Target({**target.export(), KEY: int(level)})
        return generate(mod, target)

    register = tvm.register_func if hasattr(tvm, "register_func") else tvm.register_global_func
    register(GENERATE, generated, override=True)
