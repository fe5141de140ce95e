"""A worker that checks kernels of a model's library on a server of TVM's RPC tracker.

Each check has a session of its own: a kernel that crashes or hangs ends only that.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from . import worker
from .line import worker_side
from .linked import LinkedTask, answers_of, wrong
from .remote_worker import attempted, held


def check_linked(library: str, task: LinkedTask) -> list[str]:
    """Return for each kernel of a library why its results are not right, or ''."""
    answers, side = answers_of(task), worker_side()

    def there() -> list[str]:
        with held() as server:
            server.upload(library)
            module, make = server.load_module(Path(library).name), partial(side.tensor, device=server.cpu(0))
            return [wrong(module[kernel.name], kernel, answers, make) for kernel in task.kernels]

    return attempted(there)


FUNCTIONS = {f.__name__: f for f in (worker.hello, check_linked)}

if __name__ == "__main__":
    worker.main(FUNCTIONS)
