"""Text for a terminal."""


def printable(text: str) -> str:
    """Return `text` with its control characters escaped: what comes from a dataset may hold anything."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
