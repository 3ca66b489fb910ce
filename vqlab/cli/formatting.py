"""One help style for every command: a short usage line, one line per option where it fits, defaults shown."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, ClassVar

from jsonargparse import DefaultHelpFormatter

_NAME_WIDTH = 30


class CompactHelp(DefaultHelpFormatter):
    """Help that fits on two screens: options by the last part of their name as metavar, defaults in brackets."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_NAME_WIDTH + 4, width=150)

    def add_argument(self, action: argparse.Action) -> None:
        # "Path to a configuration file" for each group says nothing that --config does not.
        if action.help != "Path to a configuration file.":
            super().add_argument(action)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return action.dest.rpartition(".")[2].upper()

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").rstrip(".")
        shown = action.option_strings and action.default not in (None, argparse.SUPPRESS) and action.dest != "help"
        return f"{text} [%(default)s]" if shown and not isinstance(action, argparse._StoreTrueAction) else text

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # The second spelling that appends to a list would double the line.
        text = super()._format_action_invocation(action)
        text = text.split(", --")[0] if "+ " in text else text
        # A line of its own for a long name is too much when only its last word repeats it.
        return text if len(text) <= _NAME_WIDTH or not action.option_strings or action.nargs == 0 else action.option_strings[-1]


class BriefHelp(CompactHelp):
    """The same with some groups in one line each, which names their options; `--help_all` (`HelpAll`) shows them whole.

    brief: title -> prefix of the groups that are shortened.
    """

    brief: ClassVar[Mapping[str, str]] = {}

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._shortened = ""
        self._names: dict[str, list[str]] = {}

    def start_section(self, heading: str | None) -> None:
        self._shortened = self.brief.get(heading or "", "")
        super().start_section(heading)

    def add_argument(self, action: argparse.Action) -> None:
        if not self._shortened:
            super().add_argument(action)
        elif action.dest.startswith(f"{self._shortened}."):
            self._names.setdefault(self._shortened, []).append(action.dest.partition(".")[2])

    def format_help(self) -> str:
        super().start_section("further options, by name (--help_all explains them)")
        for prefix, names in self._names.items():
            self._add_item(self._line, [prefix, names])
        self.end_section()
        self._names = {}
        return super().format_help()

    def _line(self, prefix: str, names: list[str]) -> str:
        return f"  --{f'{prefix}.*':{_NAME_WIDTH}}{', '.join(names)}\n"


class HelpAll(argparse.Action):
    """Prints the help with every group whole, and ends."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "nargs": 0, "default": argparse.SUPPRESS})

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.formatter_class = CompactHelp
        parser.print_help()
        parser.exit()
