"""The tables of bad input in docs/troubleshooting.md: what is wrong, the command, the exit code, the message."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
# Parts of a message that depend on the machine, or on a version: paths, CPUs and their lists, numbers with a point.
VARIES = re.compile(
    r"""(…|\.\.\.|(?<=mcpu=)[\w-]+|(?<="mcpu":")[\w-]+|(?<=num-cores=)\d+|\d+\.[\w.]+"""
    r"""|(?<=near: ).*?(?=;|$)|(?<=known: ).*?(?=;|$))"""
)


def rows():
    """Yield (what is wrong, commands, exit code, messages) of each row; a message for each of the two lines."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[2].isdigit():
            yield cells[0], re.findall(r"`([^`]*)`", cells[1]) or [""], int(cells[2]), cells[3].split("<br>")


def matches(shown, told):
    """True if a message is the one shown, which may be cut, up to what varies."""
    parts = VARIES.split(" ".join(shown.split()))
    pattern = "".join(".*" if n % 2 else re.escape(part) for n, part in enumerate(parts))
    return re.match(pattern, " ".join(told.split())) is not None


def fault(what, words, code, told):
    """Return why the page does not show this message for this command, or None."""
    message = told.removeprefix("roller-tvm: error: ")
    found = [row for row in rows() if row[0] == what and words in row[1]]
    if not found:
        return f"{PAGE.name} has no row '{what}' with `{words}`: | {what} | `{words}` | {code} | {message} |"
    if not any(code == row[2] and any(matches(shown, message) for shown in row[3]) for row in found):
        return f"{PAGE.name}, row '{what}': the message now is: {code} | {message}"
    return None
