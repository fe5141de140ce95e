"""The registry of verbs: errors become messages and exit codes, missing verbs are not offered."""

import errno
import sys
import types

import pytest

from roller_tvm import cli
from roller_tvm.errors import BadInput


@pytest.fixture
def verb(monkeypatch):
    """Registers a verb `probe` whose run does what the test says."""

    def register(action):
        module = types.ModuleType("roller_tvm.cli.probe")
        module.__spec__ = types.SimpleNamespace(name="roller_tvm.cli.probe")
        module.add_arguments = lambda parser: parser.add_argument("file", nargs="?")
        module.run = lambda args: action()
        monkeypatch.setitem(sys.modules, "roller_tvm.cli.probe", module)
        monkeypatch.setitem(cli.VERBS, "probe", "a verb for tests")

    return register


def fail(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("action", "code", "said"),
    [
        (lambda: 0, 0, ""),
        (lambda: 5, 5, ""),
        (fail(BadInput("not ONNX", "m.onnx", "give an ONNX file")), 2, "m.onnx: not ONNX; remedy: give an"),
        (fail(KeyboardInterrupt()), 130, "interrupted"),
        (fail(OSError(errno.ENOSPC, "No space left", "r.json")), 1, "r.json: no space left"),
        (fail(PermissionError(errno.EACCES, "Permission denied", "r.json")), 2, "r.json: Permission denied"),
    ],
)
def test_exit_codes_and_messages(verb, capsys, action, code, said):
    verb(action)
    assert cli.main(["probe"]) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(errno.EACCES, "denied"), "PermissionError: [Errno 13] denied"),
        (RuntimeError("a trace\n  of calls\nno such thing"), "RuntimeError: no such thing"),
    ],
)
def test_what_nobody_foresaw_is_one_line_and_a_traceback_if_asked(verb, capsys, error, told):
    verb(fail(error))
    assert cli.main(["probe"]) == 1
    err = capsys.readouterr().err
    assert err == f"roller-tvm: internal error: {told}; remedy: run again with --traceback and report it\n"
    for words in (["--traceback", "probe"], ["probe", "--traceback"]):
        assert cli.main(words) == 1
        *trace, last = capsys.readouterr().err.splitlines()
        assert trace[0].startswith("Traceback") and last.startswith(f"roller-tvm: internal error: {told}; remedy: ")


@pytest.mark.parametrize(
    ("error", "limit", "told"),
    [
        (MemoryError(), -1, "no limit: MemoryError: MemoryError"),
        (SystemError("error return without exception set"), 700 << 20, "a limit of 700 MiB: SystemError: error return"),
    ],
)
def test_little_memory_is_told(verb, capsys, monkeypatch, error, limit, told):
    monkeypatch.setattr(cli.resource, "getrlimit", lambda _: (limit, limit))
    verb(fail(error))
    assert cli.main(["probe"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and told in err and err.endswith("remedy: give it more (ulimit -v)\n")


def test_an_error_of_many_lines_is_printed_as_one(verb, capsys):
    verb(fail(BadInput("two faults:\n  no name\n  no shape", "m.onnx", "name it\nand shape it")))
    assert cli.main(["probe"]) == 2
    told = "roller-tvm: error: m.onnx: two faults: no name; no shape; remedy: name it; and shape it\n"
    assert capsys.readouterr().err == told


def test_verbs_without_a_module_are_not_offered(monkeypatch, capsys):
    monkeypatch.setitem(cli.VERBS, "teleport", "not written")
    assert cli.main(["teleport"]) == 2
    err = capsys.readouterr().err
    assert "invalid choice: 'teleport'" in err and "remedy: roller-tvm --help" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "relu", "shape=4", "--target", "llvm", "-mcpu=skylake"], 'in quotes: --target "llvm -mcpu=..."'),
        (["plan", "--top", "many"], "argument --top: invalid int value: 'many'; remedy: roller-tvm plan --help"),
        (["plan", "relu", "--devise", "v100"], "unrecognized arguments: --devise"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_command_line_is_an_error_like_any_other(capsys, words, said):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("roller-tvm: error: ") and "remedy: " in err


def test_help_shows_the_way(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in cli.VERBS) and "exit codes: 0 done" in out
    for verb in ("plan", "profile", "doctor"):
        with pytest.raises(SystemExit):
            cli.main([verb, "--help"])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
