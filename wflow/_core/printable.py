"""Printable forms of the texts and names of files.

A stranger's file may hold characters that move the cursor, write over other lines, reverse the
order of letters or cannot be seen: `printable` shows them as escapes.
"""

import re

# Control characters, line and paragraph separators, surrogates, and what Unicode calls ignorable
# (bidirectional and invisible characters) but the variation selectors of emoji.
_HIDDEN = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_OF_LINES = re.compile(f"[{_HIDDEN}]")
UNPRINTABLE = re.compile(rf"[{_HIDDEN}\t\n]")


def printable(text: str, *, lines: bool = True) -> str:
    r"""Replace characters that steer a terminal or are invisible by escapes, such as \x1b.

    Letters of all scripts stay. So do newlines and tabs, unless `lines` is False. Bytes of a name
    that Python did not decode are read as UTF-8 where they are that, whatever the locale.

    Parameters
    ----------
    text : str
        Any text.
    lines : bool, default True
        False for a name, a field or a message, which is one line.

    Returns
    -------
    str
        The text, which UTF-8 can encode.
    """
    pattern = _OF_LINES if lines else UNPRINTABLE
    if not pattern.search(text):
        return text
    return pattern.sub(_escape, decoded(text))


_SIGNS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "omega": "ω", "pi": "π", "rho": "ρ", "sigma": "σ",
    "tau": "τ", "phi": "φ", "psi": "ψ", "Delta": "Δ", "infty": "∞", "int": "∫", "sum": "Σ",
    "partial": "∂", "nabla": "∇", "sqrt": "√", "le": "≤", "ge": "≥", "ne": "≠", "to": "→",
    "approx": "≈", "sim": "~", "times": "×", "cdot": "·", "pm": "±", "lvert": "|", "rvert": "|",
    "langle": "⟨", "rangle": "⟩", "quad": " ",
}  # fmt: skip


def without_latex(text: str) -> str:
    r"""Write formulas between dollars as a terminal shows them.

    Examples
    --------
    >>> from wflow._core.printable import without_latex
    >>> without_latex(r"slope $-1/2$ for $\beta \ge 4$, $G^2$ like $H^{-1}$")
    'slope -1/2 for β ≥ 4, G^2 like H^-1'
    """

    def one(found: re.Match[str]) -> str:
        signs = re.sub(r"\\([a-zA-Z]+)", lambda name: _SIGNS.get(name[1], name[1]), found[1])
        return re.sub(r"\\[,;!]|[{}]", "", signs).replace("\\ ", " ")

    return re.sub(r"\$([^$\n]+)\$", one, text)


def decoded(text: str) -> str:
    """Decode the undecoded bytes of a text, if they are UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        return text


def _escape(found: re.Match[str]) -> str:
    """Return the escape of a character, as Python writes it."""
    return found[0].encode("unicode_escape", "backslashreplace").decode()
