"""The check of a TaskProgram: every rTask runs once, where it fits, after all that it needs."""

from __future__ import annotations

from roller_tvm.rammer import BadProgram, BarrierTask, Dependences, RTask, TaskProgram, simulate


def check_program(program: TaskProgram, dependences: Dependences | None = None) -> None:
    """Raise ``BadProgram`` unless every rTask occurs exactly once, fits a vEU, no barrier waits forever, and all needs
    are met.
    """
    expected = {RTask(o, p, i) for o, k in program.kernels for p, ph in enumerate(k.phases) for i in range(ph.tasks)}
    places = program.places
    if program.tasks != len(places) or set(places) != expected:
        odd = sorted(set(places) ^ expected)
        raise BadProgram(f"the program has {program.tasks} rTasks, {len(expected)} have to run once each",
                         where=str(odd[0]) if odd else "an rTask that occurs twice")
    device = program.device
    for number, phase in enumerate(ph for _, k in program.kernels for ph in k.phases):
        for what, wanted, have in (("threads", phase.threads, device.threads),
                                   ("registers", phase.registers, device.registers),
                                   ("bytes of shared memory", phase.shared_bytes, device.shared_bytes)):
            if wanted > have:
                raise BadProgram(f"phase {number} needs {wanted} {what}, a vEU has {have}", where=str(device))
    simulate(program)  # a barrier that waits forever
    if dependences is None:
        return
    waited = [_waited(entries) for entries in program.prog]
    for operator, kernel in program.kernels:
        for number, phase in enumerate(kernel.phases):
            for need in dependences.of(operator, number, program.kernel_of):
                count = program.kernel_of[need.producer].phases[need.phase].tasks
                for index in range(phase.tasks):
                    v, order = places[RTask(operator, number, index)]
                    for other in need.tasks[index] if need.tasks is not None else range(count):
                        u, before = places[RTask(need.producer, need.phase, other)]
                        held = before < order if u == v else any(
                            n < order and o >= before for n, o in waited[v].get(u, ())
                        )
                        if not held:
                            raise BadProgram(f"it runs without waiting for {RTask(need.producer, need.phase, other)}",
                                             where=str(RTask(operator, number, index)))


def _waited(entries):
    """Return, for other vEUs, the (order of a barrier, order that it waits for) of one vEU's entries."""
    mine: dict[int, list[tuple[int, int]]] = {}
    for n, entry in enumerate(entries):
        if isinstance(entry, BarrierTask):
            for u, order in entry.waits:
                mine.setdefault(u, []).append((n, order))
    return mine
