"""What a message about a wrong word proposes."""

from collections.abc import Collection
from difflib import get_close_matches


def did_you_mean(word: str, words: Collection[str]) -> str:
    """Give the end of a message that names what was probably meant.

    Parameters
    ----------
    word : str
        What was given; a hyphen is as good as an underscore.
    words : collection of str
        What could be given.

    Returns
    -------
    str
        Such as "; did you mean uniform?", or "" where no word is close.
    """
    by_form = {name.replace("_", "-"): name for name in words}
    close = get_close_matches(word.replace("_", "-"), by_form, n=1)
    return f"; did you mean {by_form[close[0]]}?" if close else ""
