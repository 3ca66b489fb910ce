"""The one exception that stands for a mistake a user can correct."""


class VqlabError(Exception):
    """A bad file, option or input; the message is one clear line and the command line prints it as such."""
