"""TVM's OpenCL made to run on PoCL: limits of its device, and shared memory that TVM's code leaves out."""

from __future__ import annotations

import re
from dataclasses import replace

from roller_tvm.codegen.errors import NotEmulated
from roller_tvm.codegen.host_code import HostCode

#: Limits of PoCL's device, named as in TVM's targets.
LIMITS = {"max_num_threads": 1024, "max_shared_memory_per_block": 1 << 20}


def local_memory(source: str, host: HostCode) -> tuple[str, HostCode]:
    """Return source and host code with the dynamic shared memory as the kernels' own, of fixed size.

    TVM's code generator for OpenCL omits the qualifier ``__local``, which makes a block share it.

    Raises
    ------
    NotEmulated
        The source does not declare its dynamic shared memory.

    Examples
    --------
    >>> from roller_tvm.codegen.host_code import Launch
    >>> text = "__kernel void f() { uchar d[64]; vstore2(x, 0, (float*)d + 8); }"
    >>> made, host = local_memory(text, HostCode((), (), (Launch("f", (), (1, 1, 1), (1, 1, 1), 64),)))
    >>> made
    '__kernel void f() { __local uchar d[64]; vstore2(x, 0, (__local float*)d + 8); }'
    >>> host.launches[0].dynamic_shared
    0
    """
    if not any(launch.dynamic_shared for launch in host.launches):
        return source, host
    sizes = "|".join({str(launch.dynamic_shared) for launch in host.launches if launch.dynamic_shared})
    names = "|".join({m[1] for m in re.finditer(rf"\buchar (\w+)\[(?:{sizes})\];", source)})
    if not names:
        raise NotEmulated("the source does not declare its dynamic shared memory", where=host.launches[0].kernel)
    source = re.sub(rf"\buchar ((?:{names})\[(?:{sizes})\];)", r"__local uchar \1", source)
    source = re.sub(rf"\(([\w ]+\*\)\s*\(?(?:{names})\b)", r"(__local \1", source)
    return source, replace(host, launches=tuple(replace(launch, dynamic_shared=0) for launch in host.launches))
