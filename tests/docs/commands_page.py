"""The page of the site that lists the commands and their options, made from the command's own parsers."""

import argparse
from pathlib import Path

from roller_tvm.cli import EXAMPLES, EXIT_CODES, VERBS, make_parser

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEAD = f"""# Commands

`roller-tvm COMMAND --help` prints the options of a command. This page is made from the same parsers:
`pytest tests/docs/test_commands_page.py --update-golden` writes it anew.

    roller-tvm [--version] [--traceback] COMMAND ...

{EXIT_CODES[0].upper()}{EXIT_CODES[1:]}.

```text
{EXAMPLES}
```
"""


def text():
    """Return the page."""
    return "\n".join([HEAD, *(section(verb) for verb in VERBS)])


def parser_of(verb):
    """Return the parser of a command."""
    actions = make_parser(verb)._actions
    return next(a for a in actions if isinstance(a, argparse._SubParsersAction)).choices[verb]


def section(verb):
    """Return a command's heading, its description and a table of its arguments."""
    parser = parser_of(verb)
    formatter = parser._get_formatter()
    lines = [f"## {verb}", "", (parser.description or "").strip(), ""]
    rows = [(name(action), " ".join(formatter._expand_help(action).split()))
            for action in parser._actions
            if action.help not in (None, argparse.SUPPRESS) and action.dest != "help"]  # fmt: skip
    if rows:
        lines += ["| argument | meaning |", "| --- | --- |"]
        lines += [f"| `{cell(names)}` | {cell(meaning)} |" for names, meaning in rows] + [""]
    if parser.epilog:
        lines += ["```text", parser.epilog.strip(), "```", ""]
    return "\n".join(lines)


def name(action):
    """Return an argument as it is written, with its value."""
    value = action.metavar if action.metavar is not None else action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    value = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return value
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def cell(words):
    return words.replace("|", "\\|")
