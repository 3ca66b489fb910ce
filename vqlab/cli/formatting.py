"""One help style for every command: a short usage line, one line per option where it fits, defaults shown."""

from __future__ import annotations

import argparse

from jsonargparse import DefaultHelpFormatter


class CompactHelp(DefaultHelpFormatter):
    """Help that fits on two screens: options by the last part of their name as metavar, defaults in brackets."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=150)

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
        return text.split(", --")[0] if "+ " in text else text
