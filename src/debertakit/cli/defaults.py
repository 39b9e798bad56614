"""The model of a command that was given none: the bundled model for the language of the texts. Light to import."""

import sys
from collections.abc import Iterable

from debertakit.model_names import BUNDLED, bundled_folder
from debertakit.text.characters import looks_chinese


def default_model(texts: Iterable[str], otherwise: str | None = None) -> str:
    """Choose the bundled model for the language of the texts, and print the choice.

    ``otherwise``: the model to use if the installation has no bundled models. None: raise.
    """
    name = BUNDLED["zh" if looks_chinese("".join(texts)) else "en"]
    folder = bundled_folder(name)
    if folder is not None:
        announce(f"{name}, bundled with debertakit, for the language of the text")
        return str(folder)
    if otherwise is None:
        raise ValueError(
            f"this installation has no bundled model {name}: pass --model FOLDER, or the name of a hub model"
        )
    return announce(otherwise)


def announce(model: str) -> str:
    """Print the model that a command chose."""
    print(f"model: {model} (--model FOLDER for another one)", file=sys.stderr)
    return model


def bundled_specs() -> list[str]:
    """Models of ``deberta serve`` without arguments: each bundled model for fill and for embed."""
    found = {name: folder for name in BUNDLED.values() if (folder := bundled_folder(name)) is not None}
    if not found:
        raise ValueError("pass a model to serve (deberta serve FOLDER): this installation has no bundled models")
    names = ", ".join(found)
    print(f"models: {names}, bundled with debertakit (deberta serve FOLDER for another one)", file=sys.stderr)
    suffixes = {"fill": "", "embed": "-embed"}
    return [f"{name}{end}={folder}::{task}" for task, end in suffixes.items() for name, folder in found.items()]
