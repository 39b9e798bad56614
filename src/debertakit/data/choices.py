"""Multiple choice: RACE, SWAG, and the user's own rows with any number of options."""

from collections.abc import Iterator, Sequence

from debertakit.data.examples import Choice
from debertakit.data.problems import Problems, shorten
from debertakit.data.tables import TableRow
from debertakit.data.texts import as_text, hidden, line_of, require

LETTERS = "ABCDEFGHIJ"


def letter_index(answer: str) -> int:
    """Index of the option with this letter, or -1."""
    return LETTERS.find(answer) if len(answer) == 1 else -1


def choices(
    rows: Iterator[TableRow],
    problems: Problems,
    text: str,
    pair: str | None,
    options: Sequence[str],
    label: str,
    *,
    labelled: bool,
) -> list[Choice]:
    """Read options from one column that holds a list, or from one column per option, where empty cells are no options.

    The label is the option's index (from 0), letter, column name or text.
    """
    examples: list[Choice] = []
    needed = [text, *([pair] if pair else []), *options, *([label] if labelled else [])]
    for index, (number, row) in enumerate(rows):
        if index == 0:
            require(row, [(name.casefold(),) for name in needed], problems)
        values = {name.casefold(): value for name, value in row.items()}
        try:
            found = _options([values.get(name.casefold()) for name in options])
            body = as_text(values.get(text.casefold()))
            question = as_text(values.get(pair.casefold())) if pair else ""
            raw = values.get(label.casefold())
            if not body:
                raise ValueError("empty text")
            if sum(map(bool, found)) < 2:
                raise ValueError("fewer than two options", shorten(found))
            if labelled and hidden(raw):
                raise ValueError("no label")
            place = None if hidden(raw) else _place(raw, options, found)
        except ValueError as error:
            problems.skip(number, *error.args)
            continue
        given = tuple(filter(None, found))
        examples.append(Choice(str(len(examples)), body, question, given, place, line=line_of(number)))
    return examples


def _options(cells: Sequence[object]) -> list[str]:
    """Keep empty options, because the label may count them."""
    return [as_text(option) for option in (cells[0] if len(cells) == 1 and isinstance(cells[0], list) else cells)]


def _place(raw: object, columns: Sequence[str], options: Sequence[str]) -> int:
    """Index of the labelled option among the non-empty options."""
    given = str(raw).strip()
    if given in columns and len(columns) == len(options):
        place = columns.index(given)
    elif given.isdecimal():
        place = int(given)
    elif options.count(given) == 1:
        place = options.index(given)
    else:
        place = letter_index(given.upper())
    if not 0 <= place < len(options) or not options[place]:
        raise ValueError("label is not one of the options", shorten(raw))
    return sum(map(bool, options[:place]))
