"""Names of rows without what they have in common."""

import re
from collections.abc import Sequence

from heatsmooth.reporting.board.entries import Entry
from heatsmooth.reporting.formats import one_line
from heatsmooth.results.logs import NUMBER

LONGEST = 160


def words_of(entry: Entry) -> tuple[str, ...]:
    """The parts of its path, without the noise level that its group states and without the ending .tsv."""
    words = []
    for part in entry.parts:
        word = part.removesuffix(".tsv")
        for stated in re.finditer(rf"(?:sigma|noise)[_=-]?({NUMBER})", word):
            if float(stated[1]) == entry.sigma:
                word = word.replace(stated[0], "")
        words.append(re.sub(r"([_-])[_-]+", r"\1", word).strip("_-. "))
    return tuple(word for word in words if word)


def common_words(entries: Sequence[Entry]) -> list[str]:
    """The parts that the paths of all these entries have, in their order; none of a single one."""
    if len(entries) < 2:
        return []
    first, *others = [words_of(entry) for entry in entries]
    return list(dict.fromkeys(word for word in first if all(word in words for words in others)))


def telling_words(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Of each path, the words at which it differs from another one that begins in the same way.

    >>> telling_words([("a", "x", "1"), ("a", "x", "2"), ("b", "y")])
    [('a', '1'), ('a', '2'), ('b',)]
    """
    following: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        for place in range(len(path) + 1):
            following.setdefault(path[:place], set()).add("".join(path[place : place + 1]))
    return [tuple(word for place, word in enumerate(path) if len(following[path[:place]]) > 1) for path in paths]


def names_of(entries: Sequence[Entry], everywhere: Sequence[str]) -> list[str]:
    """A name per entry about the same data, unique among those of the same noise level and kind of guarantee.

    ``everywhere``: words that say nothing, because all entries have them.
    """
    common = {*common_words(entries), *everywhere}
    told = telling_words([tuple(word for word in words_of(entry) if word not in common) for entry in entries])
    short = ["/".join(words) or _noise(entry) for words, entry in zip(told, entries, strict=True)]
    groups = [(entry.about, entry.sigma) for entry in entries]
    named = list(zip(groups, short, strict=True))
    return [
        one_line(name if named.count((group, name)) == 1 else "/".join(entry.parts), LONGEST)
        for (group, name), entry in zip(named, entries, strict=True)
    ]


def _noise(entry: Entry) -> str:
    """The part of the path that states the noise of training, else the last part."""
    parts = [part.removesuffix(".tsv") for part in entry.parts]
    return next((part for part in reversed(parts) if "noise" in part), parts[-1])
