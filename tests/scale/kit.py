"""Programs of several nodes within one process: pieces by onnxruntime, ranks as threads."""

import threading
from dataclasses import replace

import onnxruntime

from roller_tvm.device import DeviceSpec, Limits, MemoryLevel, Network
from roller_tvm.scale.choose import Choice, choose
from roller_tvm.scale.lowering import lower
from roller_tvm.scale.onnx_reader import read_graph
from roller_tvm.scale.pieces import piece_model
from roller_tvm.scale.running import Node
from roller_tvm.scale.times import Times

GB = 1 << 30
#: A CPU with round numbers.
CPU = DeviceSpec(
    "node", "cpu", "x86-64", 4, 8, 32,
    (MemoryLevel("dram", "device", 16 * GB, 20.0, 64, 64), MemoryLevel("l2", "unit", 1 << 20, 200.0, 64, 64),
     MemoryLevel("l1", "unit", 1 << 15, 800.0, 64, 64), MemoryLevel("register", "thread", 512, 1600.0, 64, 64)),
    Limits(vector_registers=16), {"float32": 256.0}, {}, 2.0, 1.0,
)  # fmt: skip
#: Networks: of no cost, as within a rack, and slow.
FREE, RACK, SLOW = Network(64, 1e6, 1e-6), Network(64, 12.5, 2.0), Network(64, 0.125, 100.0)


def device(network):
    return replace(CPU, network=network)


def lowered(model, nodes, network=FREE, states=None):
    """Return (source, program with its pieces) of a model."""
    source = read_graph(model, "model", states=states)
    spec = device(network)
    return source, lower(source.graph, Times(source.graph, spec, nodes), choose(source.graph, spec, nodes))


def forced(model, nodes, wanted, network=FREE):
    """Return a model's program in which each operator goes the way of an axis that `wanted` names for its output."""
    source = read_graph(model, "model")
    ops = tuple([
        replace(op, ways=tuple([w for w in op.ways if w.axis == wanted.get(op.outputs[0], "")]))
        for op in source.graph.ops
    ])  # fmt: skip
    graph = replace(source.graph, ops=ops)
    times = Times(graph, device(network), nodes)
    made: Choice = choose(graph, times.device, nodes)
    return source, lower(graph, times, made)


class Piece:
    """A piece of a node, as a built model is called."""

    def __init__(self, model):
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options)

    def run(self, inputs):
        return self.session.run(None, inputs)


class Post:
    """Messages between threads."""

    def __init__(self, count):
        self.count, self.messages, self.arrived = count, {}, threading.Condition()

    def put(self, key, value):
        with self.arrived:
            self.messages.setdefault(key, []).append(value)
            self.arrived.notify_all()

    def take(self, key):
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.messages.get(key), timeout=20), f"no message {key}"
            return self.messages[key].pop(0)


class Thread:
    """One rank, as `roller_tvm.scale.mpi.Ranks` is."""

    def __init__(self, post, rank):
        self.post, self.rank, self.count, self.sent, self.received = post, rank, post.count, 0, 0
        self.tells = 0

    def send(self, array, peer, tag):
        self.sent += array.nbytes
        self.post.put((self.rank, peer, tag), array.copy())

    def receive(self, array, peer, tag):
        return array, (peer, self.rank, tag)

    def wait(self, pending, what, received=True):
        for _, request in pending:
            if received:
                array, key = request
                array[...] = self.post.take(key)
                self.received += array.nbytes

    def told(self, value):
        self.tells += 1
        for peer in range(self.count):
            self.post.put(("told", self.tells, self.rank, peer), value)
        return [self.post.take(("told", self.tells, peer, self.rank)) for peer in range(self.count)]


def run(source, made, inputs, times=1):
    """Return the nodes and node 0's outputs of each run, the bytes of all nodes held against the plan's."""
    program, outputs, faults = made.program, [], []
    post = Post(program.nodes)
    pieces = range(len(program.pieces))
    nodes = [
        Node(program, [Piece(piece_model(source, made, n, rank)) for n in pieces], Thread(post, rank))
        for rank in range(program.nodes)
    ]  # fmt: skip

    def work(node):
        try:
            for _ in range(times):
                found = node.run(inputs)
                if found is not None:
                    outputs.append(found)
            node.check_bytes()
        except BaseException as error:  # raised again by the thread of the test
            faults.append(error)

    threads = [threading.Thread(target=work, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return nodes, outputs


def expected(model, inputs, times=1, states=None):
    """Return the outputs of the model itself, run by run."""
    piece, found, given = Piece(model), [], dict(inputs)
    names = [o.name for o in model.graph.output]
    for _ in range(times):
        made = dict(zip(names, piece.run(given), strict=True))
        given |= {name: made[output] for name, output in (states or {}).items()}
        found.append({n: a for n, a in made.items() if n not in (states or {}).values()})
    return found
