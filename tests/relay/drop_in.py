"""What a script written for Ansor builds with the drop-in."""

import tvm
from tvm import relay

from roller_tvm import auto_scheduler


def built_by_drop_in(mod, log, target="llvm", **options):
    """A model, built with the records of a file."""
    relay.backend.te_compiler.get().clear()
    with auto_scheduler.ApplyHistoryBest(str(log), **options), tvm.transform.PassContext(
        opt_level=3, config={"relay.backend.use_auto_scheduler": True}
    ):
        return relay.build(mod, target)
