"""The network of a device file."""

import pytest

from roller_tvm.device import DeviceSpec, Network, load_device, spec_text
from roller_tvm.errors import SpecError

TABLE = """base = "v100"
[network]
nodes = { value = 64, unit = "nodes" }
bandwidth = { value = 10, unit = "Gbit/s" }
latency = { value = 2000, unit = "ns" }
"""


def test_a_device_file_states_a_network(tmp_path):
    path = tmp_path / "nodes.toml"
    path.write_text(TABLE)
    read = load_device(path)
    assert read.network == Network(64, 1.25, 2.0)
    assert "network: 64 nodes, 1.25 GB/s a node, 2 us" in read.describe()
    assert DeviceSpec.from_json(read.to_json()) == read
    assert read != load_device("v100") and read.digest() == load_device("v100").digest()
    path.write_text(spec_text(read))
    assert load_device(path).network == read.network
    (tmp_path / "more.toml").write_text('base = "nodes.toml"\n[network]\nnodes = { value = 8, unit = "nodes" }\n')
    assert load_device(tmp_path / "more.toml").network == Network(8, 1.25, 2.0)


@pytest.mark.parametrize(("old", "new", "told"), [
    ("latency = { value = 2000, unit", "latency = { value = 0, unit", "latency must be above 0"),
    ("nodes = { value = 64", "nodes = { value = 0", "nodes must be a whole number above 0"),
    ("Gbit/s", "GB", "does not fit here"), ("bandwidth", "bandwith", "did you mean 'bandwidth'"),
    ('latency = { value = 2000, unit = "ns" }', "", "'network.latency' is missing"),
])  # fmt: skip
def test_mistakes_are_told(tmp_path, old, new, told):
    path = tmp_path / "nodes.toml"
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(SpecError) as caught:
        load_device(path)
    assert told in str(caught.value)
