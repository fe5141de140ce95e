"""The network between nodes: the outermost level of the memory hierarchy, where each node has a memory of its own."""

from __future__ import annotations

from dataclasses import dataclass

from roller_tvm.device.frozen import check, is_int, positive
from roller_tvm.device.level import FileNumber


@dataclass(frozen=True)
class Network:
    """Nodes of one kind, each linked to every other.

    Attributes
    ----------
    nodes : int
        Nodes that there are; a plan may use fewer.
    bandwidth_gbps : float
        GB/s that a node sends, and at the same time receives.
    latency_us : float
        Microseconds from a send to its receive, of a message of a few bytes.

    Examples
    --------
    >>> Network(4, 1.25, 20.0).seconds(messages=3, size=1_250_000)
    0.00106
    """

    nodes: int
    bandwidth_gbps: float
    latency_us: float

    def __post_init__(self) -> None:
        check(is_int(self.nodes) and self.nodes > 0, f"nodes must be a whole number above 0, not {self.nodes!r}",
              "network.nodes")  # fmt: skip
        for name in ("bandwidth_gbps", "latency_us"):
            value = getattr(self, name)
            check(positive(value), f"{name.split('_')[0]} must be above 0, not {value!r}", f"network.{name}")

    def seconds(self, messages: int, size: int) -> float:
        """Return the time in which a node sends `messages` messages of `size` bytes in all, one after the other."""
        return messages * self.latency_us * 1e-6 + size / (self.bandwidth_gbps * 1e9)


#: Keys of the table [network].
NETWORK = {
    "nodes": FileNumber("nodes", "nodes", False),
    "bandwidth": FileNumber("bandwidth_gbps", "bandwidth", False),
    "latency": FileNumber("latency_us", "time_us", False),
}
