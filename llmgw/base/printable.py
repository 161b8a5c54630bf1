"""Text of strangers, made fit to be shown: in a terminal, in a log line, in JSON."""

import unicodedata

STAND_IN = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Return a text of one line, in which U+FFFD stands for each character that has no shape of its own.

    Those are controls (an escape sequence would rule the terminal it is shown in), line ends, marks that turn the reading
    order, and surrogates, which no UTF-8 can hold. Other kinds of space become plain ones.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _stand_in(each) for each in text)


def _stand_in(character: str) -> str:
    return " " if character == "\t" or unicodedata.category(character) == "Zs" else STAND_IN
