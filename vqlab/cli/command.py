"""What a sub-command of `vqlab` is, and the parser that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jsonargparse import ArgumentParser, Namespace

from vqlab.cli.formatting import CompactHelp


@dataclass(frozen=True)
class Command:
    """A sub-command.

    name: the word after `vqlab`.  help: a few words for the list of commands.  description: the head of its own help.  usage: what follows
    the name.  add_arguments: declares its options.  run: does it, with the parsed options; an exit code, or None for 0.
    """

    name: str
    help: str
    description: str
    usage: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int | None]


def new_parser(description: str, usage: str, prog: str | None = None) -> ArgumentParser:
    """A parser in the help style of all commands, whose errors are exceptions."""
    return ArgumentParser(prog=prog, usage=usage, description=description, formatter_class=CompactHelp, exit_on_error=False)


def command_parser(command: Command) -> ArgumentParser:
    """The parser of one sub-command."""
    parser = new_parser(command.description, f"vqlab {command.name} {command.usage}")
    command.add_arguments(parser)
    return parser
