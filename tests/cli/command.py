"""The command in this process: exit code, output and errors of `roller-tvm` with some words."""

from roller_tvm import cli


def main(capsys, *words):
    code = cli.main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out, out.err
